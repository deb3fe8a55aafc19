"""Frozen readers: they answer questions from documents, and nothing here trains them."""

from agentgrpo.memory.reader.agentic import AgenticReader
from agentgrpo.memory.reader.cloze import ClozeReader
from agentgrpo.memory.reader.completer import CompleterReader

__all__ = ["AgenticReader", "ClozeReader", "CompleterReader"]
