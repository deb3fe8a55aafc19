"""Whether what was written of a chunk is right."""

from agentgrpo.memory.validity.asserted import AssertedValidity
from agentgrpo.memory.validity.llm import LLMValidity
from agentgrpo.memory.validity.unjudged import NoValidity

__all__ = ["AssertedValidity", "LLMValidity", "NoValidity"]
