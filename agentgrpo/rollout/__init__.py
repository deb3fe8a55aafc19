"""Rolling out: tasks to scored groups of episodes. Async, no torch."""
