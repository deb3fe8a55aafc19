"""The nodes `task.sources.NAME` and `task.sources.NAME.filter`: what is read, and what of it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.tasks.questions.entry import Entry
from agentgrpo.tasks.questions.formats import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which questions are used. It counts characters, so that it knows no language."""

    has_answer: bool = True
    """Only with an answer: test sets are published without, and some questions have none."""
    max_question_chars: int | None = None
    max_answer_chars: int | None = None
    """Of the shortest acceptable answer."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Metadata key, or data_source -> the value that is used, or a list of them."""

    def reason_against(self, entry: Entry) -> str | None:
        """Why it is left out, in a few words; None where it is used."""
        if self.has_answer and not entry.answers:
            return "no answer"
        if self.max_question_chars is not None and len(entry.question) > self.max_question_chars:
            return "question too long"
        if self.max_answer_chars is not None and min(map(len, entry.answers), default=0) > self.max_answer_chars:
            return "answer too long"
        for key, wanted in self.where.items():
            given = entry.data_source if key == "data_source" else entry.metadata.get(key)
            if given not in (wanted if isinstance(wanted, list | tuple) else [wanted]):
                return f"another {key}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Questions of one kind. Raises ConfigError for what cannot be meant."""

    path: str
    """A file (.jsonl, .json, .parquet, .csv, .tsv), a folder as datasets.save_to_disk writes it, or a name of the hub
    (from the local cache); PATH#PART for one part of those two."""
    format: str = "auto"
    """auto = as the first record looks."""
    subset: str | None = None
    """The configuration of a name of the hub."""
    split: Literal["train", "dev", "test"] | None = None
    """Where all of `path` goes; null = where its rows or parts say, the others by chance."""
    dev_path: str | None = None
    """What is wholly dev; nothing of `path` then goes there by chance."""
    test_path: str | None = None
    weight: float | None = None
    """Share of training among the sources; 0 = only for evaluation; null for all of them = every question equally
    often."""
    limit: int | None = None
    """Questions of each split at most, the same ones when the file grows."""
    filter: Filter = field(default_factory=Filter)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of format plain: what id, question and answers are called there."""

    def __post_init__(self) -> None:
        if self.format not in ("auto", *FORMATS):
            raise ConfigError(
                f"format={self.format}; auto, {', '.join(FORMATS)} are allowed.{did_you_mean(self.format, FORMATS)}"
            )
        if self.keys and self.format not in ("auto", "plain"):
            raise ConfigError(f"keys={dict(self.keys)} with format={self.format}; only plain has keys to rename")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError(f"weight={self.weight}; a finite number >= 0 is allowed, or null")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit={self.limit}; 1 or more is allowed, or null")
