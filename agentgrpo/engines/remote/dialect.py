"""What the kinds of servers differ in: a Dialect each. Whatever fails is an EngineError; its `kind` decides what then.

http_4xx, bad_tokens     the request's own fault: raised
all others               the server's: it is left out until it has joined again, and the call goes to another
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.remote.server import Server
from agentgrpo.types import FinishReason

OURS = frozenset({"http_4xx", "bad_tokens", "context_overflow"})
"""Kinds of failure that any server would answer with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The weights that are to be sampled from."""

    policy_version: int
    name: str
    """Of this version of this content, on every process the same: no other weights have it."""
    folder: Path
    """Where the first process has written them."""
    is_adapter: bool


class Sampled(NamedTuple):
    """One turn as a server gives it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class Dialect(Protocol):
    """version: None = whatever the server serves."""

    trainable: bool
    """See Engine."""

    async def look(self, server: Server) -> int | None:
        """Whether it serves, which must not cost it much: returns the tokens that fit into a context, None = it does
        not say. Forgets what was known of the server: it may have been started anew."""
        ...

    async def holds(self, server: Server, version: Version) -> bool:
        """Whether what it would sample from is `version`, as far as it says."""
        ...

    async def install(self, server: Server, version: Version) -> None:
        """Have it sample from `version`, and from nothing that was computed with older weights. Called on the first
        process only, with nothing sampling."""
        ...

    async def sample(
        self, server: Server, token_ids: Sequence[int], sampling: SamplingParams, seed: int, version: Version | None
    ) -> Sampled:
        """One turn. The log-probs are of the distribution that was drawn from: else ConfigError, saying what to do.
        Raises EngineError (`stale`) where the server may not have sampled from `version`. Cancelled, it stops."""
        ...

    async def score(self, server: Server, token_ids: Sequence[int], version: Version | None) -> list[float]:
        """See Engine."""
        ...


def seed_of(run_seed: int, key: SeedKey) -> int:
    """Of a turn's random numbers, below 2**63: a function of the run's seed and the turn's names."""
    names = json.dumps([run_seed, *key])  # unambiguous: no two different keys share one spelling
    digest = hashlib.blake2b(names.encode(), digest_size=8, person=b"agentgrpo.remote").digest()
    return int.from_bytes(digest, "little") >> 1
