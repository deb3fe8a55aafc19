"""The user's own and published conversations and documents as tasks of a memory agent."""
