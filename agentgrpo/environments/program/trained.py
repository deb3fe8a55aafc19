"""Which branches of an episode are trained; the others are recorded and have no gradient."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentgrpo.core.errors import ConfigError
from agentgrpo.environments.program.exchange import ChatRequest

Which: TypeAlias = Literal["all", "last", "matching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBranches:
    """system, model: regular expressions that must occur in a branch's system prompt and in the model name of its
    requests, for which=matching only. Raises ConfigError if matching has no pattern, another choice has one, or a
    pattern is invalid."""

    which: Which = "all"
    system: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.which not in ("all", "last", "matching"):
            raise ConfigError(f"environment.train={self.which}: all, last or matching is allowed")
        if (self.which == "matching") != (self.system is not None or self.model is not None):
            raise ConfigError(
                f"environment.train={self.which}: environment.train_system and train_model (regular expressions) go "
                "with environment.train=matching only; give at least one of them with it, and neither without it"
            )
        for name, pattern in (("train_system", self.system), ("train_model", self.model)):
            try:
                re.compile(pattern or "")
            except re.error as e:
                raise ConfigError(f"environment.{name}={pattern}: {e}; a regular expression is needed") from e

    def has(self, asked: ChatRequest) -> bool:
        """Return whether the answer to this request may be trained."""
        system = "\n\n".join(message.content for message in asked.messages if message.role == "system")
        given = ((self.system, system), (self.model, asked.model))
        return all(pattern is None or re.search(pattern, text) is not None for pattern, text in given)
