"""The agent that searches before it answers."""
