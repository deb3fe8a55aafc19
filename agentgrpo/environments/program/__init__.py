"""Any agent behind an endpoint: a program of the user's own asks, the policy answers, and what it samples is trained.

environment.py   the factory and one attempt: the program is started, its reward is counted
program.py       the program itself, an async function or a command, ended at its deadline with all it has started
sandbox.py       a command behind bubblewrap
endpoint.py      the HTTP server that it asks, with a base URL for each attempt
dialects/        how requests and answers are spelled: OpenAI's chat completions and Responses, Anthropic's messages
exchange.py      what all of them come to: requests read with suspicion, and answers
trained.py       which branches are trained
session.py       one attempt's requests: each goes on with a branch, or opens one
"""
