"""Any agent behind an endpoint: a program of the user's own asks, the policy answers, and what it samples is trained.

environment.py   the factory and one attempt: the program is started, its reward is counted
program.py       the program itself, an async function or a command, ended at its deadline with all it has started
endpoint.py      the HTTP server that it asks, with a base URL for each attempt
openai.py        OpenAI's chat completions: requests read with suspicion, answers and errors written
session.py       one attempt's requests: each goes on with a branch, or opens one
"""
