"""A language model as the judge of answers."""

from agentgrpo.judges.llm.completer import Completer, Reply
from agentgrpo.judges.llm.http import HttpCompleter
from agentgrpo.judges.llm.judge import LLMJudge

__all__ = ["Completer", "HttpCompleter", "LLMJudge", "Reply"]
