"""The Engine over a pool of servers: it writes and checks weights, distributes calls, retries them, and accepts a reply
only if it is a possible result of the request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from agentgrpo.core.errors import ConfigError, EngineError, boundary
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey, WeightFiles
from agentgrpo.engines.remote.folders import SyncFolders
from agentgrpo.engines.remote.server import OURS, Dialect, Pool, Sampled, SamplingServer, Version, seed_of
from agentgrpo.engines.remote.text import refuse_grammar

ROUNDING = 1e-3
"""Tolerance by which a log-prob may exceed 0."""
POLL_S = 0.2
"""Seconds between checks of a server that receives its weights from another process."""


class _Canary(NamedTuple):
    token_ids: tuple[int, ...]
    expected: tuple[float, ...]
    tolerance: float


class RemoteEngine:
    """attempts: number of servers on which a call is tried, one after another. wait_s: how long calls wait while all
    servers are out, including calls that have failed on the last server; then NoServer is raised. sync_timeout_s: how
    long this process waits for the first process to give a server its weights.

    weights: the trained weights; None = the servers sample from their own weights, whatever is trained here. rank: of
    this process; process 0 updates the servers."""

    def __init__(
        self,
        *,
        dialect: Dialect,
        servers: Sequence[SamplingServer],
        run_seed: int,
        max_context: int,
        weights: WeightFiles | None,
        sync_dir: Path,
        rank: int,
        attempts: int,
        wait_s: float,
        sync_timeout_s: float,
    ) -> None:
        """Raises ConfigError."""
        if attempts < 1 or max_context < 2:
            raise ConfigError(
                f"engine: attempts={attempts} and max_context={max_context} were given; at least 1 and 2 are allowed"
            )
        self.trainable, self.max_context, self.policy_version = dialect.trainable, max_context, 0
        self.pool = Pool(servers, join=self._join, wait_s=wait_s)
        self._dialect, self._run_seed, self._rank = dialect, run_seed, rank
        self._weights, self._folders = weights, SyncFolders(sync_dir)
        self._attempts, self._sync_timeout_s = attempts, sync_timeout_s
        self._version: Version | None = None
        self._canary: _Canary | None = None
        self._gaps: dict[SamplingServer, float] = {}
        """Largest log-prob difference of each server from the canary, as last measured."""
        self._is_closed = False

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        """Sample on a server; a failed call is retried on the next server, with the same seed."""
        refuse_grammar(sampling)
        room = self._room(token_ids, sampling)
        sampling = replace(sampling, max_tokens=room)
        version, policy_version, seed = self._version, self.policy_version, seed_of(self._run_seed, key)
        asked, attempt = time.monotonic(), 1
        while True:
            server = await self.pool.server_for(key.episode)
            began = time.monotonic()
            try:
                with server.at_work(), boundary(EngineError, server.shown):
                    found = await self._dialect.sample(server, token_ids, sampling, seed, version)
                _refuse_impossible(found, room, server, self._dialect.unused_ids)
                break
            except EngineError as e:
                self._refuse_replaced(version)
                if e.kind in OURS:
                    raise
                self.pool.leave_out(server, e)
                if attempt == self._attempts:
                    await self.pool.until_serving()  # the episode is not to blame if no server could answer
                    raise
                attempt += 1
        self._refuse_replaced(version)
        return Completion(
            token_ids=found.token_ids,
            logprobs=tuple(min(x, 0.0) for x in found.logprobs),
            finish_reason=found.finish_reason,
            policy_version=policy_version,
            time_queue=began - asked,
            time_generate=time.monotonic() - began,
        )

    def release(self, key: SeedKey) -> None:
        self.pool.release(key.episode)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Score on one of the servers."""
        try:
            return await self._dialect.score(await self.pool.server_for(None), token_ids, self._version)
        finally:
            self.pool.release(None)

    async def load_weights(self, policy_version: int) -> None:
        """Give the servers new weights. Every process takes part in writing sharded weights; the first one updates the
        servers. Raises NoServer if no server accepts them in time."""
        self._refuse_closed()
        self.policy_version, self._canary = policy_version, None
        if self._weights is not None:
            folder = self._folders.coming()
            digest = self._weights.write(folder)
            self._version = Version(
                policy_version=policy_version,
                name=f"agentgrpo-v{policy_version}-{digest[:16]}",
                folder=folder,
                is_adapter=self._weights.is_adapter,
            )
        await self.pool.renew()
        if self._weights is not None and self._rank == 0:
            self._folders.prune()

    async def check(self, token_ids: Sequence[int], expected: Sequence[float], tolerance: float) -> float:
        """Compare every server with `expected`, the log-probs that `score` must return, including servers that join
        later. A server that fails is left out. Returns the largest difference of the servers that pass or, if no server
        passes, the smallest difference."""
        self._canary, self._gaps = _Canary(tuple(token_ids), tuple(expected), tolerance), {}
        servers = self.pool.serving
        outcomes = await asyncio.gather(*(self._pass(s, self._canary) for s in servers), return_exceptions=True)
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                self.pool.leave_out(server, outcome)
            elif outcome is not None:
                raise outcome
        if not self._gaps:  # all have failed since they joined: the first to return is checked when it joins
            await self.score(token_ids)
        passed = [gap for server, gap in self._gaps.items() if server in self.pool.serving]
        return max(passed) if passed else min(self._gaps.values())

    async def close(self) -> None:
        self._is_closed = True
        await self.pool.close()

    async def _join(self, server: SamplingServer, is_new: bool) -> None:
        """Raises an error if `server` must not be sampled from yet."""
        room = await self._dialect.look(server)
        if room is not None and room < self.max_context:
            raise ConfigError(
                f"{server.shown} has room for {room} tokens, fewer than engine.max_context={self.max_context}; lower "
                "that, or start the server with more"
            )
        version = self._version
        if version is not None:
            await self._have_hold(server, version, is_new=is_new)
        if self._canary is not None:
            await self._pass(server, self._canary)

    async def _have_hold(self, server: SamplingServer, version: Version, *, is_new: bool) -> None:
        if self._rank == 0:
            if is_new or not await self._dialect.holds(server, version):
                await self._dialect.install(server, version)
            if not await self._dialect.holds(server, version):
                raise EngineError(f"{server.shown} accepted {version.name} but does not have it", kind="stale")
            return
        late = time.monotonic() + self._sync_timeout_s
        while not await self._dialect.holds(server, version):
            if time.monotonic() > late:
                raise EngineError(f"{server.shown} was not given {version.name} in time", kind="stale")
            await asyncio.sleep(POLL_S)

    async def _pass(self, server: SamplingServer, canary: _Canary) -> None:
        """Raises EngineError if `server` fails the canary."""
        found = await self._dialect.score(server, canary.token_ids, self._version)
        if len(found) != len(canary.expected):
            raise EngineError(f"{server.shown} scored {len(found)} tokens of {len(canary.expected)}", kind="garbage")
        gaps = [abs(a - b) for a, b in zip(found, canary.expected, strict=True)]
        gap = self._gaps[server] = max(gaps) if all(map(math.isfinite, gaps)) else math.inf
        if gap > canary.tolerance:
            raise EngineError(
                f"{server.shown} samples from stale or damaged weights: its log-probs are {gap:.3g} nats off on a "
                f"fixed prompt (allowed: {canary.tolerance})",
                kind="stale",
            )

    def _room(self, token_ids: Sequence[int], sampling: SamplingParams) -> int:
        self._refuse_closed()
        if not token_ids:
            raise EngineError("generate: a context of 0 tokens was given; it needs at least one", kind="bad_tokens")
        room = min(sampling.max_tokens, self.max_context - len(token_ids))
        if room < 1:
            raise EngineError(
                f"generate: a context of {len(token_ids)} tokens was given, max_context is {self.max_context} and one "
                "token must be left to sample; end the episode before, or raise max_context",
                kind="context_overflow",
            )
        return room

    def _refuse_replaced(self, version: Version | None) -> None:
        if self._version is not version or self._is_closed:
            raise EngineError("the weights were replaced during generation, or the engine closed", kind="replaced")

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed; make a new one", kind="closed")


def _refuse_impossible(found: Sampled, room: int, server: SamplingServer, unused: frozenset[int]) -> None:
    """Raise EngineError for a reply that cannot come from sampling at most `room` tokens, none of them in `unused`."""
    tokens, logprobs = len(found.token_ids), len(found.logprobs)
    problem = ""
    if not 1 <= tokens <= room or (found.finish_reason is FinishReason.LENGTH and tokens != room):
        problem = f"{tokens} tokens, ended by {found.finish_reason}, where {room} were asked for"
    elif logprobs != tokens:
        problem = f"{logprobs} log-probs for {tokens} tokens"
    elif odd := [x for x in found.logprobs if not -math.inf < x <= ROUNDING]:
        problem = f"a log-prob of {odd[0]}"
    elif not unused.isdisjoint(found.token_ids):
        problem = f"the id {next(i for i in found.token_ids if i in unused)}, which is no token of the tokenizer's"
    if problem:
        raise EngineError(f"{server.shown} gave {problem}", kind="garbage")
