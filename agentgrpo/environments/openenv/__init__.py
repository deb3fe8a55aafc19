"""Environments of OpenEnv: a server that runs already, or one that the run starts.

server.py        the server: what it says of its actions, and a session for each attempt
forms.py         what an action is to the policy (a text, or calls of tools), and what an observation is as text
environment.py   the factory and one attempt
"""
