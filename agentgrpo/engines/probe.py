"""A determinism probe: does an episode get the same tokens and log-prob bits on this machine, whatever runs beside
it?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey

SAMPLING = SamplingParams(max_tokens=6)
TURNS = 2
GROUP = 3
"""Episodes that share a prompt, so that prompt sharing is probed as well."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Differences between runs of the same episodes in different batches."""

    same_tokens: bool
    max_logprob_difference: float
    """Maximum over tokens that both runs sampled; 0.0 = not one bit differs."""

    @property
    def level(self) -> str:
        """The level for the run's records: "exact", "tokens-only" or "none"."""
        if not self.same_tokens:
            return "none"
        return "exact" if self.max_logprob_difference == 0 else "tokens-only"


async def determinism_probe(engine: Engine, prompts: Sequence[Sequence[int]]) -> ProbeReport:
    """Run two-turn episodes over `prompts` (at least one, like those of the task) alone, in groups of 4 and 17, and in
    the opposite order, and compare each with its first run. Raises EngineError if the engine fails."""
    runs = [[0], [1, 16, 0, 5], list(range(17)), list(range(17))[::-1]]
    first: dict[int, list[Completion]] = {}
    same_tokens, difference = True, 0.0
    for run in runs:
        for i, turns in zip(run, await asyncio.gather(*(_episode(engine, prompts, i) for i in run)), strict=True):
            for a, b in zip(first.setdefault(i, turns), turns, strict=True):
                same_tokens = same_tokens and a.token_ids == b.token_ids
                pairs = zip(a.logprobs, b.logprobs, strict=False)
                difference = max(difference, max(abs(x - y) for x, y in pairs))
    return ProbeReport(same_tokens, difference)


async def _episode(engine: Engine, prompts: Sequence[Sequence[int]], index: int) -> list[Completion]:
    group, sample_index = divmod(index, GROUP)
    prompt = prompts[group % len(prompts)]
    context = list(prompt)
    turns: list[Completion] = []
    try:
        for turn in range(TURNS):
            key = SeedKey("probe", str(group), sample_index, turn)
            turns.append(await engine.generate(context, SAMPLING, key))
            # the injected tokens differ in length between episodes, like observations
            context += [*turns[-1].token_ids, *prompt[: 1 + index % len(prompt)]]
    finally:
        engine.release(SeedKey("probe", str(group), sample_index, 0))
    return turns
