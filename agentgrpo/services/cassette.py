"""The cassette: recorded answers of external services, to be replayed.

    mode=live     no cassette is used
    mode=fill     recorded answers are replayed; other requests are sent, and their answers recorded
    mode=strict   replay only; a request without a recorded answer ends the run, and no service is ever called

A request consists of its kind and JSON with sorted keys: everything that decides the answer, but no address, key or
time limit. The first answer to it is kept. If a web search finds other pages tomorrow, it still gets today's answer, in
the recording run and in its replays; otherwise a replay would diverge from its recording.

Permanent failures (a page that does not exist) are recorded as answers. Transient failures (a time-out, a full server,
a refused key) are not: replayed, they would fail every later run, and also the second attempt at an episode, which
exists to undo them. If a transient failure changed an episode (vdb served a web search), a strict replay makes a
request that is not recorded. Another run with mode=fill sends it and completes the recording.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.services.paid import PaidCache

_SHOWN = 300
"""Maximum number of characters of a request in a message."""


class CassetteMiss(DataError):
    """In mode=strict, a request is not on the cassette."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CassetteSettings:
    """The `cassette` node."""

    mode: Literal["live", "fill", "strict"] = "live"
    path: Path | None = None
    """The file; several runs and processes may share one. Use a file for one set of services only, because requests do
    not contain the server's address."""

    def __post_init__(self) -> None:
        if self.mode != "live" and self.path is None:
            raise ConfigError(f"cassette.mode={self.mode} needs a file; give it one: cassette.path=FILE")

    def open(self) -> Cassette | None:
        """Open the cassette; None in mode=live. Raises ConfigError if there is nothing to replay."""
        if self.mode == "live" or self.path is None:
            return None
        if self.mode == "strict" and not self.path.expanduser().is_file():
            raise ConfigError(
                f"cassette.path={self.path}: no such file; record it first, with cassette.mode=fill "
                "(a run that asks no service has nothing to record)"
            )
        return Cassette(self.path, read_only=self.mode == "strict")


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A request as recorded; `text` is canonical JSON."""

    kind: str
    text: str

    @classmethod
    def of(cls, kind: str, body: Mapping[str, Any]) -> ServiceRequest:
        return cls(kind, json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False))

    @property
    def key(self) -> str:
        return sha256(f"{self.kind}\n{self.text}".encode()).hexdigest()

    @property
    def shown(self) -> str:
        """The request for messages, cut to length; JSON has no control characters."""
        cut = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}... ({len(self.text)} characters)"
        return f"{self.kind} {cut}"


@dataclass(frozen=True, slots=True)
class RecordedReply:
    request: ServiceRequest
    outcome: str
    """JSON: {"reply": ...} or {"failure": [kind, message]}."""
    seconds: float
    """Duration of the original request."""


class Cassette(PaidCache[RecordedReply]):
    """Recorded answers in an SQLite file. Each row has a seal, because SQLite does not notice changed bytes in a
    text."""

    advice = "copy it again with the files beside it (FILE*), once nobody writes to it, or give {setting} another file"
    table, columns, what = "cassette", ("kind", "request", "outcome", "seconds", "seal"), "the cassette's answers"

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, setting="cassette.path", read_only=read_only)

    def miss(self, request: ServiceRequest) -> CassetteMiss:
        return CassetteMiss(
            f"{self._path} has no answer to {request.shown}; cassette.mode=strict asks nobody: record it with "
            "cassette.mode=fill, or replay with the settings and the version that it was recorded with"
        )

    def _row(self, value: RecordedReply) -> tuple[str, ...]:
        row = (value.request.kind, value.request.text, value.outcome, repr(value.seconds))
        return *row, _seal(row)

    def _value(self, row: tuple[str, ...]) -> RecordedReply:
        kind, text, outcome, seconds, seal = row
        request = ServiceRequest(str(kind), str(text))
        if seal != _seal(row[:-1]):
            raise self.unusable(f"the answer to {request.shown} is damaged")
        return RecordedReply(request, outcome, float(seconds))


def _seal(row: tuple[str, ...]) -> str:
    return sha256("\n".join(map(str, row)).encode("utf-8", "replace")).hexdigest()[:16]
