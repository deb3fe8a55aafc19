"""Numbers and names from others' code, in one attempt of three: a failure of that attempt, and of nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgrpo.cli.main import main
from agentgrpo.core.errors import BadValue
from agentgrpo.core.numbers import number
from agentgrpo.core.types import Episode, EpisodeGroup, RewardResult, ScoredGroup
from agentgrpo.engines.base import SamplingParams
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.rewards.own import FunctionTerm
from agentgrpo.rewards.reward import Reward
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.metrics import rollout_metrics
from tests.environments.bad_numbers import BAD, GOOD, NAMES, VALUES, Tools, World
from tests.environments.program.conftest import desk
from tests.environments.test_own import DONE, TASK, runner

__all__ = ["desk"]

HERE = "tests.environments.bad_numbers"
PAID = ["reward=environment"]
PROGRAM = ["environment=program", "environment.reward_range=[0,1]"]
UNSAID = "a reward term reads environment.reward, and the environment "
"""Where None says that there is no reward, and a text that it is the answer."""
NONE: Mapping[str, str] = {
    "score": "",
    "term": f"reward term {HERE}:term returned None instead of a score",
    **dict.fromkeys(["get_reward", "attribute", "program"], UNSAID),
}
"""Where None is no number that is wrong, but no verdict -> what is said of it."""
PLACES: Mapping[str, tuple[list[str], str]] = {
    "reward": ([f"environment={HERE}:World", *PAID], "World.step: reward "),
    "metrics": ([f"environment={HERE}:World", "environment.where=metrics", *PAID], "World.step: m "),
    "score": ([f"environment={HERE}:World", "environment.where=score", *PAID], "World.score: m "),
    "get_reward": ([f"environment={HERE}:Tools", "environment.max_turns=1", *PAID], "Tools.get_reward is "),
    "attribute": ([f"environment={HERE}:Attribute", "environment.max_turns=1", *PAID], "Attribute.get_reward is "),
    "term": ([f"environment={HERE}:Paid", *PAID, f"+reward.terms.mine.name={HERE}:term"], f"{HERE}:term is "),
    "judge": (
        [f"environment={HERE}:Paid", f"judge.name={HERE}:judged", "reward=correctness"],
        "judger judged",
    ),
    "program": ([*PROGRAM, f"environment.function={HERE}:agent", *PAID], "the program said last: reward is "),
}
"""Where a value may come in -> settings, and what a failure says of it."""


def run(values: Sequence[str], *settings: str, name: str) -> dict[str, TrajectoryRecord]:
    """The first step of a run with three tasks for each of `values`, which the second names."""
    rows = [
        {"id": f"q{i}", "split": "train", "question": f"What is {i}+1?", "answers": ["1"], "value": value}
        for i, value in enumerate(v for named in values for v in ("", named, ""))
    ]
    held_out = [{**rows[0], "id": f"t{i}", "split": "test", "question": f"What is {i}+2?"} for i in range(2)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, *held_out)))
    given = ["experiment=none", "task.questions=q.jsonl", "model.path=model", "algorithm.advantage=none"]
    given += ["rollout.max_tokens=8", f"rollout.tasks_per_step={len(rows)}", "rollout.group_size=2", "guards=none"]
    given += ["hardware.threads=1", "run.max_steps=1", "run.eval_every=0", "run.final_eval=false"]
    given += ["run.screen=quiet", "run.log_with=[]", f"run.dir={name}"]
    assert main(["train", *given, *settings]) == 0
    return {r.id: r for r in read_trajectories(Path(name) / "trajectories" / "train-000000.jsonl")}


def said(record: TrajectoryRecord) -> str:
    """Why it failed; "" where it has not."""
    return "" if record.error is None else str(record.error["message"])


async def attempt(kind: type, value: str, **options: Any) -> Episode:
    task = replace(TASK, metadata={"value": value})
    sampling = SamplingParams(max_tokens=64)
    return await run_episode(runner(kind, DONE, **options), task, sample_index=0, stream="test", sampling=sampling)


@pytest.mark.parametrize("value", GOOD)
def test_a_number_of_whatever_make_is_a_float(value: str) -> None:
    made = number(GOOD[value](), "x")
    assert (type(made), made) == (float, 1.0 if value in ("int64", "numpy bool", "bool") else 0.5)


@pytest.mark.parametrize("value", BAD)
def test_anything_else_is_refused_in_a_short_line(value: str) -> None:
    with pytest.raises(BadValue) as raised:
        number(BAD[value](), "Shop.score: height")
    told = str(raised.value)
    assert told.startswith("Shop.score: height is ")
    assert told.isprintable()
    assert len(told) < 150


@pytest.mark.parametrize("value", [f"bad {name}" for name in BAD])
@pytest.mark.parametrize("where", ["reward", "metrics", "score"])
async def test_a_bad_number_is_a_failure_that_names_class_method_and_key(where: str, value: str) -> None:
    failure = (await attempt(World, value, where=where)).failure
    if (where, value) == ("score", "bad none"):  # no verdict: the reward leaves the attempt out
        assert failure is None
        return
    assert failure is not None
    assert (failure.kind, failure.stage) == ("shape", "BadValue")
    method, key = ("score", "m") if where == "score" else ("step", "m" if where == "metrics" else "reward")
    assert failure.message.startswith(f"{HERE}:World.{method}: {key} is ")


@pytest.mark.parametrize("value", NAMES)
async def test_a_name_that_no_metric_has_is_a_failure_too(value: str) -> None:
    for kind, options, method in (
        (World, {"where": "names"}, "step"),
        (World, {"where": "score names"}, "score"),
        (Tools, {}, "get_reward"),
    ):
        failure = (await attempt(kind, value, **options)).failure
        assert failure is not None, kind
        assert (failure.kind, failure.stage) == ("shape", "BadValue")
        assert failure.message.startswith(f"{HERE}:{kind.__name__}.{method} ")
        assert failure.message.isprintable()
        assert len(failure.message) < 900


@pytest.mark.parametrize("name", ["tool_calls", "failed_calls", "calls/add", "looping"])
async def test_what_is_counted_around_a_class_is_not_the_classs_to_score(name: str) -> None:
    class Shadow(Tools):
        def get_reward(self) -> Any:
            return {"reward": 1.0, name: 0.0}

    failure = (await attempt(Shadow, "")).failure
    assert failure is not None
    assert f"Shadow.get_reward gave a metric {name}, which the environment measures itself" in failure.message


async def test_one_number_for_each_turn_may_come_in_any_make() -> None:
    class Rows(World):
        async def score(self, episode: Episode) -> Any:
            return {"list": [Decimal(1)], "array": np.ones(1), "tensor": torch.ones(1), "tuple": (True,), "none": []}

    episode = await attempt(Rows, "")
    rows = dict.fromkeys(("list", "array", "tensor", "tuple"), (1.0,)) | {"none": ()}
    assert {name: episode.outcome[name] for name in rows} == rows
    assert {type(x) for row in rows for x in episode.metrics_by_turn[row]} == {float}


@pytest.mark.parametrize(
    ("row", "told"),
    [([1, 2], "a is a row of more than 1;"), (itertools.count(), "a is of type count"), ([None], "a[0] is None")],
)
async def test_a_row_that_is_none_is_refused(row: Any, told: str) -> None:
    class Rows(World):
        async def score(self, episode: Episode) -> Any:
            return {"a": row}

    failure = (await attempt(Rows, "")).failure
    assert failure is not None
    assert told in failure.message


@pytest.mark.parametrize("name", ["tool_calls", "continued_share"])
async def test_a_class_may_measure_by_a_name_that_others_have_with_more(name: str) -> None:
    class Counting(World):
        async def score(self, episode: Episode) -> Any:
            return {name: 2.0}

    episode = await attempt(Counting, "")
    group = EpisodeGroup(task=episode.task, episodes=(episode,))
    scored = ScoredGroup(group=group, rewards=(RewardResult(total=0.0, terms={}, dimensions={}, correctness=0.0),))
    assert rollout_metrics([scored], [None], lambda e: 0.0)[f"agent/{name}"] == 2.0


async def test_a_term_that_is_no_number_for_an_episode_leaves_that_one_unscored() -> None:
    episodes = tuple([replace(await attempt(World, value), sample_index=i) for i, value in enumerate([""] * 3)])
    terms = {"mine": FunctionTerm(lambda e: None if e.sample_index == 1 else np.float32(0.5))}  # type: ignore[arg-type, return-value]
    scored = await Reward(judge=ExactMatch(), terms=terms).score(EpisodeGroup(task=TASK, episodes=episodes))
    assert [r and r.total for r in scored.rewards] == [0.5, None, 0.5]
    assert scored.failures[1] is not None
    assert (scored.failures[1].kind, scored.failures[1].stage) == ("reward", "reward")
    assert "task t, sample 1: reward term tests.environments.test_numbers:" in scored.failures[1].message


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_number_costs_the_attempt_that_said_it_and_no_other(desk: Path, place: str) -> None:
    settings, message = PLACES[place]
    with_values = run(list(VALUES), *settings, name="values")
    without = run([""] * len(VALUES), *settings, name="without")
    for i, value in enumerate(v for named in VALUES for v in ("", named, "")):
        for record in (with_values[f"q{i}/0"], with_values[f"q{i}/1"]):
            if value.startswith("bad"):
                is_answer = place == "program" and "text" in value
                told = NONE.get(place, message) if value == "bad none" else UNSAID if is_answer else message
                assert told in said(record), (value, said(record))
                assert bool(told) == bool(said(record))
                assert len(said(record)) < 900
            else:
                assert said(record) == "", value
            if value == "":
                assert record.response == without[record.id].response
                assert (record.reward, record.answer) == (without[record.id].reward, without[record.id].answer)
