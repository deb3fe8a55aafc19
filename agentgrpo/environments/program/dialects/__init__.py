"""The HTTP dialects of programs: how each reads requests and writes answers, streams and errors.

chat.py        OpenAI's chat completions
responses.py   OpenAI's Responses
messages.py    Anthropic's messages
"""

from __future__ import annotations

from agentgrpo.environments.program.dialects.chat import CHAT as CHAT
from agentgrpo.environments.program.dialects.messages import MESSAGES as MESSAGES
from agentgrpo.environments.program.dialects.responses import RESPONSES as RESPONSES
from agentgrpo.environments.program.exchange import ProgramDialect

DIALECTS: tuple[ProgramDialect, ...] = (CHAT, RESPONSES, MESSAGES)
