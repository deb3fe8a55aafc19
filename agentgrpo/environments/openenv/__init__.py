"""OpenEnv environments: on a running server, or on one that the run starts.

server.py        the client: the server's action schema, and a session for each attempt
forms.py         how the policy acts (a text, or tool calls), and observations as text
environment.py   the factory and one attempt
"""
