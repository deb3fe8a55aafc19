"""Replay of what was recorded: the engine after each recorded context, to the bit, within a tolerance, or by scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.core.types import Branch, Episode, Exit, Segment, Task
from agentgrpo.engines.base import Engine, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import Divergence
from agentgrpo.reports.replay.forced import Forced
from tests import builders
from tests.engines import tiny
from tests.reports.replay.parts import given, recorded


class TwoTurns:
    """A question, a turn, a reply, a turn; then the second half in a context of its own."""

    figures = SEARCH_FIGURES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        sampling = replace(sampling, max_tokens=12, stop_token_ids=(tiny.EOS,))
        branches, number = [], 0
        try:
            for text in (task.question, "Once more."):
                segments: list[Segment] = []
                for added in (text, " And then?"):
                    segments.append(builders.given(*tiny.encode(added)))
                    context = [t for s in segments for t in s.token_ids]
                    key = SeedKey(stream, task.id, sample_index, number)
                    room = 5 if number == 1 else sampling.max_tokens  # of a context of its own
                    done = await self._engine.generate(context, replace(sampling, max_tokens=room), key)
                    segments.append(
                        replace(
                            builders.sampled(*done.token_ids, logprobs=done.logprobs),
                            cut_short=done.finish_reason == "length",
                            text=tiny.tokenizer().decode(done.token_ids),
                        )
                    )
                    number += 1
                branches.append(Branch(segments=tuple(segments)))
        finally:
            self._engine.release(SeedKey(stream, task.id, sample_index, 0))
        return Episode(
            task=task,
            sample_index=sample_index,
            branches=tuple(branches),
            answer="",
            exit=Exit.ANSWERED,
            metrics={},
        )


def engine(seed: int = 0) -> HFEngine:
    return HFEngine(model=tiny.model("qwen2"), tokenizer=tiny.tokenizer(), run_seed=seed)


async def forced(record: TrajectoryRecord, own: HFEngine, *, tolerance: float | None = 0.0) -> Divergence | None:
    decode = tiny.tokenizer().decode
    [found] = await Forced(own, TwoTurns, tolerance=tolerance, decode=decode, **given()).replay([record])
    assert own._schedule.num_contexts == 0, "the engine has forgotten the episode"
    return found


def spot(found: Divergence | None) -> tuple[Any, ...] | None:
    return None if found is None else (found.kind, found.branch, found.turn, found.token)


@pytest.mark.parametrize("tolerance", [0.0, 1e-2, None], ids=["bits", "tolerance", "scores"])
async def test_every_branch_and_turn_is_sampled_again(tmp_path: Path, tolerance: float | None) -> None:
    record = await recorded(TwoTurns(engine()), tmp_path / "t.jsonl")
    assert [len([s for s in b.segments if s.sampled]) for b in record.branches] == [2, 2]
    assert await forced(record, engine(), tolerance=tolerance) is None
    [one, two] = record.branches
    assert [(len(s.token_ids), s.cut_short) for s in one.segments if s.sampled] == [(12, True), (5, True)]
    said = two.segments[3]
    assert said.logprobs is not None
    for difference, seen in ((1e-9, tolerance == 0.0), (-0.02, True)):
        logprobs = (*said.logprobs[:2], said.logprobs[2] + difference, *said.logprobs[3:])
        other = Branch(segments=(*two.segments[:3], replace(said, logprobs=logprobs)))
        found = await forced(replace(record, branches=(one, other)), engine(), tolerance=tolerance)
        assert spot(found) == (("logprob", 1, 3, 2) if seen else None)


@pytest.mark.parametrize("tolerance", [0.0, None], ids=["bits", "scores"])
async def test_a_text_that_its_tokens_do_not_spell_is_found(tmp_path: Path, tolerance: float | None) -> None:
    record = await recorded(TwoTurns(engine()), tmp_path / "t.jsonl")
    [one, two] = record.branches
    said = one.segments[3]
    worded = replace(said, text=f"{said.text[:2]}?{said.text[2:]}")
    found = await forced(
        replace(record, branches=(Branch(segments=(*one.segments[:3], worded)), two)), engine(), tolerance=tolerance
    )
    assert found is not None
    assert (spot(found), found.character) == (("token", 0, 1, None), 2)
    assert (found.expected_text, found.found_text) == (worded.text, said.text)


async def test_a_seed_changes_tokens_and_not_what_they_score(tmp_path: Path) -> None:
    record = await recorded(TwoTurns(engine()), tmp_path / "t.jsonl")
    found = await forced(record, engine(seed=1))
    assert found is not None
    assert found.kind == "token"
    assert await forced(record, engine(seed=1), tolerance=None) is None, "no bits are promised: other tokens are fine"


async def test_one_element_of_one_matrix_is_located_where_it_first_counts(tmp_path: Path) -> None:
    """The embedding of a token that first stands in the second turn's context: what comes after it differs."""
    record = await recorded(TwoTurns(engine()), tmp_path / "t.jsonl")
    ids = record.branches[0].token_ids
    said = [s for s in record.branches[0].segments if s.sampled]
    before = len(record.branches[0].segments[0].token_ids)
    later = [t for t in said[0].token_ids[1:] if t not in ids[: before + 1]]
    token = later[0]
    changed = engine()
    model = changed._model
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight, "untied"
    with torch.no_grad():
        model.get_input_embeddings().weight[token, 5] += 0.1
    found = await forced(record, changed)
    at = said[0].token_ids.index(token) + 1  # the next token is the first that it was seen for
    assert found is not None
    assert (found.branch, found.turn, found.token) == (0, 0, at)
    assert found.kind in ("token", "logprob")


async def test_a_turn_of_another_length_is_located(tmp_path: Path) -> None:
    record = await recorded(TwoTurns(engine()), tmp_path / "t.jsonl")
    [one, two] = record.branches
    said = one.segments[1]
    assert said.logprobs is not None
    longer = replace(said, token_ids=(*said.token_ids, 5), logprobs=(*said.logprobs, -1.0))
    other = Branch(segments=(one.segments[0], longer, *one.segments[2:]))
    found = await forced(replace(record, branches=(other, two)), engine())
    n = len(said.token_ids)
    assert found is not None
    assert (spot(found), found.expected, found.found) == (("length", 0, 0, n), n + 1, n)
