"""Any agent behind an endpoint: the user's program asks, the policy answers, and its tokens are trained on.

environment.py   the factory and one attempt: starts the program, counts its reward
program.py       the program itself, an async function or a command; ended at its deadline with its child processes
sandbox.py       a command behind bubblewrap
endpoint.py      the HTTP server for its requests, with a base URL for each attempt
dialects/        the formats of requests and answers: OpenAI's chat completions and Responses, Anthropic's messages
exchange.py      the form common to all dialects: checked requests, and answers
trained.py       which branches are trained
session.py       one attempt's requests: each continues a branch or opens one
"""
