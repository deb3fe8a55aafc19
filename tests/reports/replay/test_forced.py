"""Replay of what was recorded: the engine after each recorded context, to the bit, within a tolerance, or by scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.types import Branch, Episode, Exit, Message, Task
from agentgrpo.engines.base import Engine
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import Divergence
from agentgrpo.reports.replay.forced import Forced
from agentgrpo.rollout.loop import PolicyRunner
from tests.engines import tiny
from tests.reports.replay.parts import SAMPLING, TASK, given, recorded
from tests.run.tiny_run import Bytes

SHORT = replace(SAMPLING, max_tokens=12)
REPLY = " And then?"


class Spelled(Bytes):
    def decode(self, token_ids: Sequence[int]) -> str:
        return str(tiny.tokenizer().decode(list(token_ids)))


class TwoTurns(EnvironmentDefaults):
    """A question, a turn, a reply, a turn, for which five tokens are left; the same in a context of its own."""

    name = "two turns"
    figures = SEARCH_FIGURES
    limits = TurnLimits(max_context=len(TASK.question) + 12 + len(REPLY) + 5)

    def make(self, attempt: Attempt) -> Environment:
        return Asking()


class Asking:
    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.messages)

    async def step(self, turn: Turn) -> Observation:
        if turn.index == 3:
            return Observation(done=Exit.ANSWERED, answer="")
        if turn.index == 1:
            return Observation(messages=[Message(role="user", content="Once more.")], fresh_context=True)
        return Observation(messages=[Message(role="user", content=REPLY)])

    async def score(self, episode: Episode) -> Scores:
        return {}

    async def close(self) -> None: ...


def two_turns(engine: Engine) -> PolicyRunner:
    return PolicyRunner(environment=TwoTurns(), engine=engine, renderer=Spelled())


@cache
def spelling() -> PreTrainedTokenizerFast:
    """A token for each row of the output layer: servers score a prompt among all rows."""
    backend = Tokenizer.from_str(tiny.tokenizer().backend_tokenizer.to_str())
    full = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|eos|>", pad_token="<|pad|>")
    full.add_tokens([f"<{i}>" for i in range(len(full), tiny.VOCAB)])
    return full


def engine(seed: int = 0) -> HFEngine:
    return HFEngine(model=tiny.model("qwen2"), tokenizer=spelling(), run_seed=seed)


async def forced(record: TrajectoryRecord, own: HFEngine, *, tolerance: float | None = 0.0) -> Divergence | None:
    decode = tiny.tokenizer().decode
    how = given() | {"sampling": SHORT}
    [found] = await Forced(own, two_turns(own), tolerance=tolerance, decode=decode, **how).replay([record])
    assert own._schedule.num_contexts == 0, "the engine has forgotten the episode"
    return found


def spot(found: Divergence | None) -> tuple[Any, ...] | None:
    return None if found is None else (found.kind, found.branch, found.turn, found.token)


@pytest.mark.parametrize("tolerance", [0.0, 1e-2, None], ids=["bits", "tolerance", "scores"])
async def test_every_branch_and_turn_is_sampled_again(tmp_path: Path, tolerance: float | None) -> None:
    record = await recorded(two_turns(engine()), tmp_path / "t.jsonl", SHORT)
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
    record = await recorded(two_turns(engine()), tmp_path / "t.jsonl", SHORT)
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
    record = await recorded(two_turns(engine()), tmp_path / "t.jsonl", SHORT)
    found = await forced(record, engine(seed=1))
    assert found is not None
    assert found.kind == "token"
    assert await forced(record, engine(seed=1), tolerance=None) is None, "no bits are promised: other tokens are fine"


async def test_one_element_of_one_matrix_is_located_where_it_first_counts(tmp_path: Path) -> None:
    """The embedding of a token that first stands in the second turn's context: what comes after it differs."""
    record = await recorded(two_turns(engine()), tmp_path / "t.jsonl", SHORT)
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
    record = await recorded(two_turns(engine()), tmp_path / "t.jsonl", SHORT)
    [one, two] = record.branches
    said = one.segments[1]
    assert said.logprobs is not None
    longer = replace(said, token_ids=(*said.token_ids, 5), logprobs=(*said.logprobs, -1.0))
    other = Branch(segments=(one.segments[0], longer, *one.segments[2:]))
    found = await forced(replace(record, branches=(other, two)), engine())
    n = len(said.token_ids)
    assert found is not None
    assert (spot(found), found.expected, found.found) == (("length", 0, 0, n), n + 1, n)
