"""Whole runs with tools on a user's own tasks and tool, by configuration alone; faults included."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.commands import shell_line
from agentgrpo.core.errors import Preempted
from agentgrpo.core.types import Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.renderers.react import STOP, ReactRenderer
from agentgrpo.renderers.train_tokenizer import EOS, train_tokenizer
from agentgrpo.tools.workspace import PREFIX, Workspaces
from agentgrpo.training.policy import init_policy
from agentgrpo.training.supervised import WeightedSample, train_supervised
from tests.e2e.conftest import rows
from tests.e2e.doubler import Doubler, unit
from tests.runners import tool_runner

CALL, ANSWER = 'Action: double\nAction Input: {"number": ', "Final Answer: "
SETTINGS = [
    "experiment=none",
    "task=jsonl",
    "model=path",
    "model.describe_tools=false",
    "environment=tools",
    "environment.min_context_left=20",
    "environment.max_turns=4",
    "tools=calculator",
    "tools.double.name=tests.e2e.doubler:Doubler",
    "reward=artist",
    "rollout.tasks_per_step=6",
    "rollout.group_size=4",
    "rollout.max_tokens=20",
    "optimizer=tiny",
    "run.max_steps=2",
    "run.checkpoint_every=2",
    "run.eval_every=0",
    "run.screen=quiet",
    "run.log_with=[]",
    "hardware.threads=1",
    "guards=none",
]
Run = Callable[..., Path]


def question(number: int) -> str:
    return f"Twice {number}?"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy that has seen ten episodes 120 times: it calls and answers, rightly or wrongly."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = train_tokenizer((), vocab_size=300, control_strings=(CALL, STOP, ANSWER), words=())
    renderer = ReactRenderer(tokenizer=tokenizer)

    def script(key: SeedKey, context: str) -> str:
        number = key.task_id
        return f"{CALL}{number}}}{STOP}" if key.turn == 0 else f"{ANSWER}{2 * int(number)}{EOS}"

    workspaces = Workspaces(folder)
    runner = tool_runner(
        engine=ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=script),
        renderer=renderer,
        tools={"double": Doubler()},
        workspaces=workspaces,
    )

    async def demonstrate() -> list[WeightedSample]:
        samples = []
        for i in range(10):
            task = Task(id=str(i), messages=(Message(role="user", content=question(i)),), references=("",))
            episode = await runner.run(task, sample_index=0, stream="demo", sampling=SamplingParams(max_tokens=99))
            [branch] = episode.branches
            weights = tuple(float(m) for m in branch.loss_mask)
            samples.append(WeightedSample(token_ids=branch.token_ids, weights=weights))
        await workspaces.close()
        return samples

    policy = init_policy(tokenizer=tokenizer, hidden_size=64, num_layers=2, intermediate_size=64, max_positions=128)
    train_supervised(policy, asyncio.run(demonstrate()) * 120, seed=0, tokens_per_batch=256)
    policy.save(folder / "model")
    return folder / "model"


@pytest.fixture
def train(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """train(*overrides, name=...) -> the run directory. Workspaces lie in tmp_path/workspaces."""
    (tmp_path / "workspaces").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "workspaces"))
    lines = [
        {
            "id": f"{split}{i}",
            "question": opening + question(i),
            "answers": str(2 * i),
            "split": split,
            "files": {"a.txt": "x"},
        }
        for split, count, opening in (("train", 10, ""), ("dev", 4, "Dev: "), ("test", 10, "Test: "))
        for i in range(count)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*overrides: str, name: str, code: int = 0) -> Path:
        given = [f"task.questions='{tmp_path / 'q.jsonl'}'", f"model.path='{start}'", f"run.dir='{tmp_path / name}'"]
        assert main(["train", *SETTINGS, *given, *overrides]) == code
        assert list((tmp_path / "workspaces").glob(f"{PREFIX}*")) == [], "every workspace is gone"
        return tmp_path / name

    return run


def episodes(run_dir: Path, step: int) -> list[TrajectoryRecord]:
    return list(read_trajectories(run_dir / "trajectories" / f"train-{step:06d}.jsonl"))


def test_a_run_of_a_users_own_tool(train: Run) -> None:
    run_dir = train("run.eval.tasks=10", "run.eval.prices={double: 0.5}", name="run")
    metrics = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1]
    for step, row in enumerate(metrics):
        found = episodes(run_dir, step)
        calls = [call for record in found for call in record.agent["tools"]]
        failed = [call for call in calls if call["outcome"] != "success"]
        assert len(calls) > 12, "it does call"
        assert row["tools/call_frequency"] == pytest.approx(len(calls) / 24, abs=1e-12)
        assert row["tools/failure_frequency"] == pytest.approx(len(failed) / len(calls), abs=1e-12)
        assert row["agent/calls/double"] == pytest.approx(sum(c["name"] == "double" for c in calls) / 24, abs=1e-12)
        assert row["cost/step"] == pytest.approx(sum(c["cost"] for c in calls), abs=1e-9)
        assert row["tool_turns/max"] == max(record.agent["tool_turns"] for record in found)
    assert {"success", "tool_calls", "failed_calls", "tool_turns", "cost"} <= set(
        json.loads((run_dir / "eval.json").read_text())["sampled"]["trained"]
    )


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("judge=route", "task train0 is from 'q', and judge.routes has almanac; add a judge for it: +judge.routes.q."),
        ("environment.max_context=20", "task train0 opens with "),
        ("reward=shaped", "a reward term reads the metric '"),
    ],
)
def test_what_no_episode_could_come_through_is_refused_at_the_start(
    train: Run, capsys: pytest.CaptureFixture[str], override: str, error: str
) -> None:
    run_dir = train(override, name="run", code=2)
    said = capsys.readouterr().err
    assert (said.startswith(f"agentgrpo: {error}"), said.count("\n")) == (True, 1), said
    assert not run_dir.exists()


def test_a_dev_split_of_one_task_is_noted_and_not_evaluated(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (tmp_path / "q.jsonl").read_text().splitlines()
    fewer = [line for line in lines if json.loads(line)["id"] not in ("dev1", "dev2", "dev3")]
    (tmp_path / "q.jsonl").write_text("\n".join(fewer) + "\n")
    settings = ["run.eval_every=1", "run.final_eval=false", "run.screen=plain"]
    run_dir = train(*settings, name="run")
    assert "note: the dev split has 1 task, and an evaluation needs 2: no dev evaluations are made" in "".join(
        capsys.readouterr()
    )
    assert [any(tag.startswith("dev/") for tag in row) for row in rows(run_dir / "metrics.jsonl")] == [False, False]


@pytest.mark.slow
def test_dev_evaluations_change_nothing_of_the_training(train: Run) -> None:
    """So a run may be resumed with more or fewer of them."""
    without = train("run.final_eval=false", name="without")
    beside = train("run.final_eval=false", "run.eval_every=1", "run.eval_tasks=3", name="with")
    found = rows(beside / "metrics.jsonl")
    assert [any(tag.startswith("dev/") for tag in row) for row in found] == [False, True]
    kept = [{tag: value for tag, value in row.items() if not tag.startswith("dev/")} for row in found]
    assert kept == rows(without / "metrics.jsonl")
    weights = "checkpoints/step-000002/model.safetensors"
    assert (beside / weights).read_bytes() == (without / weights).read_bytes()


def test_a_stopped_run_says_what_its_resume_needs(
    train: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(world: object, how_to_go_on: str, **_: object) -> None:
        raise Preempted(how_to_go_on)

    monkeypatch.setattr("agentgrpo.run.session.RunContext", stopped)
    run_dir = train("run.final_eval=false", name="run", code=75)
    said = capsys.readouterr().err
    needed = "tools.double.name=tests.e2e.doubler:Doubler"
    assert said.endswith(f"agentgrpo: go on with: {shell_line('resume', str(run_dir))} {needed}\n"), said


@pytest.mark.slow
def test_faults_that_pass_leave_no_trace(train: Run) -> None:
    """A fifth of all attempts fails: weights, metrics and records are those of the run without a fault."""
    whole = train("run.final_eval=false", name="whole")
    faulty = train("run.final_eval=false", "tools.double.faults=0.2", "environment.tool_retries=9", name="faulty")
    names = ["metrics.jsonl", "trajectories/train-000000.jsonl", "trajectories/train-000001.jsonl"]
    for name in (*names, "checkpoints/step-000002/model.safetensors"):
        assert (whole / name).read_bytes() == (faulty / name).read_bytes(), name
    hit = [
        unit(f"train/{step}|{r.task}|{r.sample_index}", c["arguments"]["number"], 1) < 0.2
        for step in (0, 1)
        for r in episodes(whole, step)
        for c in r.agent["tools"]
        if c["outcome"] == "success" and c["name"] == "double"
    ]
    assert sum(hit) >= 5, "of so many calls the first attempt failed"


@pytest.mark.slow
def test_faults_that_stay_take_the_group_along(train: Run) -> None:
    """Some episodes never reach the tool: their groups are dropped, and those that are left are trained on with the
    advantages of the run without a fault, (r - mean) / (std + .05)."""
    whole = {r.id: r for r in episodes(train("run.final_eval=false", "run.max_steps=1", name="whole"), 0)}
    lossy = ["run.final_eval=false", "run.max_steps=1", "tools.double.lost=0.1", "run.max_error_fraction=1"]
    found = episodes(train(*lossy, name="lossy"), 0)
    lost = {r.id for r in found if unit(f"train/0|{r.task}|{r.sample_index}") < 0.1 and called(whole[r.id])}
    assert lost == {r.id for r in found if r.error is not None}
    assert {r.error["kind"] for r in found if r.error} == {"transport"}
    gone = {r.group for r in found if r.id in lost}
    assert 0 < len(gone) < 6
    assert {r.group for r in found if r.dropped == "infrastructure"} == gone
    kept = [r for r in found if r.group not in gone]
    for record in kept:
        rewards = [r.reward for r in kept if r.group == record.group if r.reward is not None]
        mean = sum(rewards) / 4
        std = (sum((r - mean) ** 2 for r in rewards) / 4) ** 0.5
        assert record.reward is not None
        assert record.advantage == pytest.approx((record.reward - mean) / (std + 0.05), abs=1e-9)
        assert (record.reward, record.advantage) == (whole[record.id].reward, whole[record.id].advantage)
    assert any(record.advantage for record in kept)


def called(record: TrajectoryRecord) -> bool:
    """Whether the episode reached the tool at all."""
    return any(c["name"] == "double" and c["outcome"] == "success" for c in record.agent["tools"])
