"""The names of the tags: what the policy writes and what the environment wraps its observations in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from agentgrpo.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Every tag under the name that the code knows it by. Raises ConfigError for a name that is no tag name or that is
    used twice."""

    think: str = "think"
    search_decision: str = "search_decision"
    subquestions: str = "subquestions"
    search: str = "search"
    searches: str = "searches"
    rerank: str = "rerank"
    fetch: str = "fetch"
    answer: str = "answer"

    information: str = "information"
    search_evaluation: str = "search_evaluation"
    full_page: str = "full_page"
    subquestions_feedback: str = "subquestions_feedback"
    decision_feedback: str = "decision_feedback"
    answer_feedback: str = "answer_feedback"
    search_feedback: str = "search_feedback"

    def __post_init__(self) -> None:
        used: dict[str, str] = {}
        for tag, name in asdict(self).items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
                raise ConfigError(f"tags.{tag} '{name}': letters, digits, _ and - are allowed; rename it")
            if (other := used.setdefault(name.lower(), tag)) != tag:
                raise ConfigError(f"tags.{tag} '{name}': also the name of tags.{other}; each tag needs its own")

    @classmethod
    def named(cls, names: Mapping[str, str]) -> Tags:
        """The default names except for those given. Raises ConfigError for a tag that does not exist."""
        known = [f.name for f in fields(cls)]
        for tag in names:
            if tag not in known:
                raise ConfigError(f"tags.{tag}: {', '.join(known)} are allowed.{did_you_mean(tag, known)}")
        return cls(**names)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """What ends a turn: the end of an action."""
        closing = tuple(f"</{name}>" for name in (self.search, self.searches, self.fetch, self.answer))
        return (*closing, f"<{self.rerank}/>")
