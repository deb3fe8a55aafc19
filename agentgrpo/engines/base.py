"""What an engine is: token ids in, sampled token ids out."""

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
    """How one turn is sampled. temperature 0 = greedy (its logprobs are those of the untempered distribution)."""

    max_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    """Sampling ends with the token that completes one of these strings; it is kept and trained on."""
    stop_token_ids: tuple[int, ...] = ()
    opening: int = 0
    """Tokens that the context opens with and other contexts too, of this episode or of others: instructions. An engine
    may compute these once for all. What is sampled does not depend on whether it does."""
    grammar: str = ""
    """Holds the turn (engines.grammar); "" = the policy is free. An engine that cannot do so raises EngineError of kind
    grammar."""

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
    """Names one sampled turn. With the run seed and a token index it determines every random number of the turn:
    u = hash(run_seed, stream, task_id, sample_index, turn, token_index)."""

    stream: str
    """What is sampled for: "train/12" (the step), "eval/test"."""
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
    """One sampled turn. token_ids and logprobs are equally long and include the stop token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    time_queue: float = 0.0
    """Seconds between the request and its first forward pass."""
    time_generate: float = 0.0
    """Seconds from there to the last token."""


class WeightFiles(Protocol):
    """What is trained, for engines that sample elsewhere."""

    is_adapter: bool
    device: torch.device
    """That the weights are on."""

    def write(self, folder: Path) -> str:
        """A whole model as transformers loads it, with output embeddings of its own, or the adapter alone as peft does;
        durable when this returns. All processes call it, the first one writes. Returns what names the content, on all
        processes the same."""
        ...


class Engine(Protocol):
    trainable: bool
    """False where logprobs or token ids are not exact (text-only endpoints): evaluation only."""
    max_context: int
    """Tokens that fit, prompt and completion together."""

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        """Sample one turn after `token_ids` (the whole context). Calls of one episode extend each other, so an engine
        keeps what it computed until `release`. Raises EngineError; a cancelled call stops sampling at once."""
        ...

    def release(self, key: SeedKey) -> None:
        """The episode of `key` is over: whatever is kept for it may go. Harmless when nothing is."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """log p(token_ids[i] | token_ids[:i]) for i >= 1, untempered: what the weight-sync canary compares."""
        ...

    async def load_weights(self, policy_version: int) -> None:
        """The policy has new weights: from here on sample from them, and forget everything computed with older ones."""
        ...

    async def close(self) -> None: ...
