"""The Engine interface: token ids in, sampled token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agentgrpo.core.types import FinishReason

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one turn is sampled. temperature 0 = greedy (log-probs are those of the untempered distribution)."""

    max_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    """Sampling ends with the token that completes one of these strings; the token is kept and trained on."""
    stop_token_ids: tuple[int, ...] = ()
    opening: int = 0
    """Number of leading tokens, such as instructions, that other contexts share, in this episode or in others. An
    engine may compute these once for all contexts; this does not change the sampled tokens."""
    grammar: str = ""
    """Grammar that the turn is held to (engines.grammar); "" = none. Raises EngineError, kind grammar, if it cannot."""

    def __post_init__(self) -> None:
        if (
            self.max_tokens < 1
            or self.temperature < 0
            or not 0 < self.top_p <= 1
            or self.top_k < 0
            or not 0 <= self.min_p < 1
            or self.opening < 0
        ):
            raise ValueError(
                f"sampling {self}: max_tokens >= 1, temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p < 1 and "
                "opening >= 0 are allowed"
            )


class SeedKey(NamedTuple):
    """Names one sampled turn. Together with the run seed and a token index it determines every random number of the
    turn: u = hash(run_seed, stream, task_id, sample_index, turn, token_index)."""

    stream: str
    """The purpose of the sampling: "train/12" (with the step), "eval/test"."""
    task_id: str
    sample_index: int
    turn: int

    @property
    def episode(self) -> tuple[str, str, int]:
        return (self.stream, self.task_id, self.sample_index)

    @property
    def group(self) -> tuple[str, str]:
        return (self.stream, self.task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn. token_ids and logprobs have the same length and include the stop token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    time_queue: float = 0.0
    """Seconds between the request and its first forward pass."""
    time_generate: float = 0.0
    """Seconds from the first forward pass to the last token."""


class WeightFiles(Protocol):
    """The trained weights, for engines that sample in other processes."""

    is_adapter: bool
    device: torch.device
    """Device of the weights."""

    def write(self, folder: Path) -> str:
        """Write a whole model that transformers loads, with separate output embeddings, or only the adapter as peft
        loads it; durable on return. All processes call it, and the first one writes. Returns a name of the content, the
        same on all processes."""
        ...


class Engine(Protocol):
    trainable: bool
    """False if log-probs or token ids are not exact (text-only endpoints): for evaluation only."""
    max_context: int
    """Maximum number of tokens of prompt and completion together."""

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        """Sample one turn after `token_ids` (the whole context). Calls of one episode extend each other, so an engine
        keeps its computed state until `release`. Raises EngineError; a cancelled call stops sampling at once."""
        ...

    def release(self, key: SeedKey) -> None:
        """End the episode of `key`: its stored state may be freed. Harmless if nothing is stored."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return log p(token_ids[i] | token_ids[:i]) for i >= 1, untempered: the weight-sync canary compares these."""
        ...

    async def load_weights(self, policy_version: int) -> None:
        """Sample from the policy's new weights from now on, and discard everything computed with older weights."""
        ...

    async def close(self) -> None: ...
