"""Conversations and documents of the user's own, and of published data sets, as tasks of a memory agent."""
