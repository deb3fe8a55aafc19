"""Memory: what an agent writes down, and how it is searched, read and judged afterwards."""
