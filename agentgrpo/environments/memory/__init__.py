"""Memory: the notes of an agent, and how they are searched, read and judged afterwards."""
