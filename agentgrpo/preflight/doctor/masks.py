"""Masks: an update must train on exactly the sampled tokens, and on no other token.

The masks that the update would use are compared with the recorded output of the engine, not with the segments that the
agent built from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentgrpo.core.types import Branch, Episode, FinishReason, TrainingSample
from agentgrpo.grpo.aggregation import token_mean
from agentgrpo.grpo.packing import pack
from agentgrpo.grpo.samples import to_samples
from agentgrpo.preflight.doctor.case import STREAM, Case
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped, Span
from agentgrpo.preflight.doctor.recording import Said

SHOWN_TOKENS = 600
TRAINED, GIVEN, STOP, WRONG = "bold green", "dim", "bold cyan", "bold white on red"
_WHERE = "environment.name"


@dataclass(frozen=True, slots=True)
class Held:
    """A branch and the engine calls found in it."""

    branch: Branch
    said: Sequence[Said]

    @property
    def sampled(self) -> set[int]:
        """Positions of tokens that the engine returned."""
        return {len(s.context) + i for s in self.said for i in range(len(s.completion.token_ids))}

    @property
    def stops(self) -> set[int]:
        """Positions of the stop tokens that ended a turn."""
        ended = (s for s in self.said if s.completion.finish_reason is FinishReason.STOP)
        return {len(s.context) + len(s.completion.token_ids) - 1 for s in ended}


@dataclass(slots=True)
class Match:
    """Episodes matched with the recorded engine calls. A call whose tokens no branch contains at that position is
    `lost`."""

    held: list[Held] = field(default_factory=list)
    lost: list[tuple[Episode, int]] = field(default_factory=list)
    """(episode, turn): the first lost turn of each such episode."""


def match(case: Case) -> Match:
    """Match every episode of the sample."""
    result = Match()
    for episode in case.episodes:
        said = list(case.sample.recording.said_in(episode, STREAM))
        turn = 0
        for branch in episode.branches:
            ids, own = branch.token_ids, list[Said]()
            while turn < len(said) and _stands_in(said[turn], ids):
                own.append(said[turn])
                turn += 1
            result.held.append(Held(branch, own))
        if turn < len(said):
            result.lost.append((episode, turn))
    return result


def _stands_in(said: Said, ids: Sequence[int]) -> bool:
    start, end = len(said.context), len(said.context) + len(said.completion.token_ids)
    return tuple(ids[:start]) == said.context and tuple(ids[start:end]) == said.completion.token_ids


def training_samples(case: Case) -> list[TrainingSample]:
    """The sample's episodes as an update takes them, each with credit 1."""
    scored = case.sample.scored
    credits = [[None if e.failure else 1.0 for e in group.group.episodes] for group in scored]
    return to_samples(scored, credits)


async def look_at_history(case: Case, found: CheckNotes) -> None:
    """Every turn must have been sampled after exactly the tokens that precede it in the record."""
    matched = match(case)
    if matched.lost:
        episode, turn = matched.lost[0]
        found.problem(
            f"in {len(matched.lost)} of {len(case.episodes)} episodes the engine was shown, or said, other tokens than "
            f"the record has; the first: task {episode.task.id}, sample {episode.sample_index}, turn {turn}",
            why="the trainer would score turns after a context in which they were never sampled: a conversation must "
            "only grow, and none of it be rendered again",
            key="model.renderer",
        )
    calls = sum(len(held.said) for held in matched.held)
    found.facts |= {"turns compared": calls, "branches": len(matched.held)}


async def look_at_masks(case: Case, found: CheckNotes) -> None:
    """Every sampled token must have a gradient, including the stop token, and no other token may have one."""
    held = [h for h in match(case).held if h.said]
    if not held:
        raise Skipped("needs: history, but no recorded turn matches the sampled tokens")
    counts: Counter[str] = Counter()
    for h in held:
        mask = h.branch.loss_mask
        trained = {i for i, m in enumerate(mask) if m}
        counts["foreign"] += len(trained - h.sampled)
        counts["stops"] += len(h.stops)
        counts["stops without"] += len(h.stops - trained)
        counts["sampled without"] += len(h.sampled - h.stops - trained)
        counts["sampled"] += len(h.sampled)
        counts["tokens"] += len(mask)
    _findings(counts, found)
    _tensors(case, found)
    ratio = sum(sum(h.branch.loss_mask) for h in held) / counts["tokens"]
    found.facts |= {
        "trainable ratio": round(ratio, 4),
        "sampled tokens": counts["sampled"],
        "tokens": counts["tokens"],
        "stop tokens": counts["stops"],
    }
    longest = max(held[: case.rollout.group_size], key=lambda h: len(h.said))
    found.picture = list(_picture(case, longest))


def _findings(counts: Counter[str], found: CheckNotes) -> None:
    if counts["foreign"]:
        found.problem(
            f"{counts['foreign']} of {counts['tokens']} tokens are trained on that the policy did not sample",
            why="the policy would learn to write what tools and users say, and invent it",
            key=_WHERE,
        )
    if counts["stops without"]:
        found.problem(
            f"{counts['stops without']} of {counts['stops']} tokens that ended a turn have no gradient",
            why="the policy cannot learn when to stop: turns grow until a limit cuts them",
            key=_WHERE,
        )
    if counts["sampled without"]:
        found.problem(
            f"{counts['sampled without']} of {counts['sampled']} sampled tokens have no gradient",
            why="what the policy did is not all credited",
            key=_WHERE,
        )


def _tensors(case: Case, found: CheckNotes) -> None:
    """The targets that an update packs must be the masked tokens, in order."""
    samples = training_samples(case)
    if not any(any(s.loss_mask[1:]) for s in samples):
        found.problem("no token is trained on", why="there is nothing to learn from", key=_WHERE)
        return
    wrong = 0
    for batch in pack(samples, tokens_per_batch=4096, token_weights=token_mean):
        ends = [sum(batch.num_tokens[: i + 1]) for i in range(len(batch.samples))]
        targets = batch.targets.tolist()
        for sample, end, count in zip(batch.samples, ends, batch.num_tokens, strict=True):
            own = [t for t, m in zip(sample.token_ids, sample.loss_mask, strict=True) if m]
            wrong += targets[end - count : end] != own[-count:]
    if wrong:
        found.problem(
            f"{wrong} of {len(samples)} samples are packed with other targets than their masks say",
            why="the gradient would be that of other tokens",
            key="hardware.tokens_per_micro_batch",
        )


def _picture(case: Case, held: Held) -> Iterator[Span]:
    """The tokens of one branch with the style of their fate; adjacent tokens of one style form one span."""
    ids, mask = held.branch.token_ids, held.branch.loss_mask
    sampled, stops = held.sampled, held.stops
    styles = [_style(i, bool(m), sampled, stops) for i, m in enumerate(mask)][:SHOWN_TOKENS]
    begin = 0
    for i in range(1, len(styles) + 1):
        if i == len(styles) or styles[i] != styles[begin]:
            yield case.built.renderer.decode(ids[begin:i]), styles[begin]
            begin = i
    if len(ids) > SHOWN_TOKENS:
        yield f" ... {len(ids) - SHOWN_TOKENS} more tokens", ""


def _style(i: int, is_trained: bool, sampled: set[int], stops: set[int]) -> str:
    if is_trained != (i in sampled):
        return WRONG
    return STOP if i in stops else TRAINED if is_trained else GIVEN
