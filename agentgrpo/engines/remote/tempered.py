"""Check whether a server's log-probs are those of the distribution that it samples from, if that is not the plain
one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentgrpo.engines.remote.server import Sampled, SamplingServer

PROBED = 4
"""Number of tokens sampled for the check."""
TEMPERED = 1e-2
"""Minimum difference from the plain log-probs; below it, the log-probs are not tempered."""
Sample = Callable[[Sequence[int], float], Awaitable[Sampled]]
"""(prompt, temperature) -> a turn of at most PROBED tokens."""
Score = Callable[[Sequence[int]], Awaitable[list[float]]]


async def is_tempered(
    server: SamplingServer, token_ids: Sequence[int], temperatures: tuple[float, float], *, sample: Sample, score: Score
) -> bool:
    """Return whether log-probs change with the temperature, at one of two temperatures at least, however flat or sharp
    the policy is. Determined once each time the server joins; server.memory may be cleared at any await."""
    async with server.memory.setdefault("probing", asyncio.Lock()):
        found: bool | None = server.memory.get("is_tempered")
        if found is None:
            found = server.memory["is_tempered"] = await _probe(token_ids, temperatures, sample, score)
        return found


async def _probe(token_ids: Sequence[int], temperatures: tuple[float, float], sample: Sample, score: Score) -> bool:
    prompt = token_ids[: max(1, len(token_ids) - PROBED)]
    gaps = []
    for temperature in temperatures:
        found = await sample(prompt, temperature)
        plain = (await score([*prompt, *found.token_ids]))[len(prompt) - 1 :]
        gaps += [abs(a - b) for a, b in zip(plain, found.logprobs, strict=True)]
    return max(gaps) > TEMPERED
