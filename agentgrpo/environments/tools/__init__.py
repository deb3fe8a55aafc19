"""The agent that calls tools before it answers."""
