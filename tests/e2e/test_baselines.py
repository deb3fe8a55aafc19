"""Baselines beside a run, from the command line: trained for as long, stopped, gone on with, shown."""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from agentgrpo.cli.main import main
from agentgrpo.core.commands import shell_line
from agentgrpo.core.durable import Operation, injected
from agentgrpo.records.run_dir import RunDir
from agentgrpo.run import baselines
from tests.e2e.conftest import SMALL_WORLD, Run, rows

SHORT = [
    "run.eval.baselines=true",
    "run.max_steps=2",
    "run.eval_every=0",
    "run.eval.tasks=4",
    "rollout.tasks_per_step=4",
    "rollout.group_size=2",
    "run.checkpoint_every=1",
]
NAMES = ["sft", "rejection_sampling"]


def evaluation(run: Path) -> dict[str, Any]:
    """As far as another process would find it the same."""
    return {key: value for key, value in (RunDir(run).evaluation or {}).items() if key != "sha256"}


def cpu_s(run: Path) -> float:
    return sum(row.get("time/cpu", 0.0) for row in rows(run / "timings.jsonl"))


def check(run: Path) -> None:
    """That the run has both of its baselines, each the end of a run of its own."""
    result = evaluation(run)
    assert [*result["baselines"]] == NAMES
    for name, row in result["baselines"].items():
        own = run / "baselines" / name
        of_steps = [r["time/cpu"] for r in rows(own / "timings.jsonl") if "time/cpu" in r]
        assert row["cpu_s"] == pytest.approx(sum(of_steps))
        assert sum(of_steps[:-1]) < cpu_s(run) <= row["cpu_s"]
        assert [r["step"] for r in rows(own / "metrics.jsonl")] == [*range(row["steps"])]
        for mode in ("greedy", "sampled"):
            assert row[mode] == evaluation(own)[mode]["trained"]
            assert row[mode].keys() == result[mode]["trained"].keys()
            assert evaluation(own)[mode]["baseline"] == result[mode]["baseline"]


@pytest.mark.slow
def test_a_run_has_its_baselines_beside_it_and_is_then_finished(
    train: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    build = baselines.run_of

    def counted(*given: Any, **named: Any) -> Any:
        held.append(sum(isinstance(thing, PreTrainedModel) for thing in gc.get_objects()))
        return build(*given, **named)

    gc.collect()
    before = sum(isinstance(thing, PreTrainedModel) for thing in gc.get_objects())
    monkeypatch.setattr(baselines, "run_of", counted)
    gc.disable()  # or it might come by at the right moment
    try:
        run = train(*SHORT, "run.screen=plain")
    finally:
        gc.enable()
    check(run)
    assert held == [before, before]  # the run's model, and the first baseline's, are gone
    result, said = evaluation(run), capsys.readouterr().out
    assert "spend" not in result or result["spend"]
    assert said.count("oracle ┃ sft_oracle ┃ rejection_sampling ┃") == 2
    assert f"note: sft_oracle: {result['baselines']['sft']['steps']} steps in " in said
    made = {path: path.stat().st_mtime_ns for path in run.rglob("*.json*")}
    assert main(["resume", str(run)]) == 0
    assert f"{run} is finished" in (again := capsys.readouterr().out)
    assert "sft_oracle" in again
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.json*")} == made
    assert main(["show", str(run)]) == 0
    assert "rejection_sampling" in capsys.readouterr().out
    assert main(["report", str(run.parent)]) == 0
    assert main(["view", str(run), "--out", str(run.parent / "view.html")]) == 0


class Killed(BaseException):
    """In the place of SIGKILL: from here on nothing is written any more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_killed_in_a_baseline_goes_on_with_it(
    name: str, train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind its first step, before that is in a checkpoint: it is done again."""
    home, dead = tmp_path / "run" / "baselines" / name, []

    def kill(operation: Operation) -> None:
        is_checkpoint = operation.path.is_relative_to(home / "checkpoints")
        if dead or (is_checkpoint and (home / "metrics.jsonl").exists()):
            dead.append(operation)
            raise Killed

    with injected(kill), pytest.raises(Killed):
        train(*SHORT)
    run = tmp_path / "run"
    capsys.readouterr()
    first = evaluation(run)
    assert [*first.get("baselines", {})] == NAMES[: NAMES.index(name)]
    assert main(["resume", str(run)]) == 0
    check(run)
    result = evaluation(run)
    assert {key: result[key] for key in first if key != "baselines"} == {
        key: value for key, value in first.items() if key != "baselines"
    }


@pytest.mark.slow
def test_a_run_that_is_stopped_in_a_baseline_says_how_to_go_on(
    train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place, sent = tmp_path / "run", tmp_path / "run" / "baselines" / "sft" / "metrics.jsonl", []

    def stop(operation: Operation) -> None:
        if operation.path == place and not sent:
            sent.append(operation)
            os.kill(os.getpid(), signal.SIGTERM)

    with injected(stop):
        train(*SHORT, code=75)
    assert f"go on with: {shell_line('resume', str(run))}\n" in capsys.readouterr().err
    assert main(["show", str(run)]) == 0
    assert "stopped" in capsys.readouterr().out
    assert main(["resume", str(run), "run.screen=plain"]) == 0
    check(run)
    assert not (run / "stopped.json").exists()


@pytest.mark.slow
def test_a_finished_run_is_given_baselines_and_more_steps(train: Run, tmp_path: Path) -> None:
    run = train(*SHORT, "run.eval.baselines=false", "run.max_steps=1")
    alone = evaluation(run)
    assert main(["resume", str(run), "run.eval.baselines=true"]) == 0
    check(run)
    assert {key: value for key, value in evaluation(run).items() if key != "baselines"} == alone
    steps = {name: row["steps"] for name, row in evaluation(run)["baselines"].items()}
    assert main(["resume", str(run), "run.max_steps=3"]) == 0
    check(run)
    assert all(evaluation(run)["baselines"][name]["steps"] > steps[name] for name in NAMES)


@pytest.mark.slow
def test_what_demonstrates_nothing_has_rejection_sampling_alone(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"id": f"q{i}", "question": f"Who founded {i}?", "answers": ["Anna"]} for i in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "Anna."}\n')
    own = ["task=jsonl", f"task.questions='{tmp_path}/questions.jsonl'", f"task.corpus='{tmp_path}/corpus.jsonl'"]
    model = ["model=path", f"model.path='{start}'", f"run.dir='{tmp_path / 'run'}'"]
    small = [s for s in SMALL_WORLD if not s.startswith(("experiment", "task", "optimizer", "run.screen"))]
    rest = ["run.screen=plain", "rollout.max_tokens=8", "environment.max_turns=1", "rollout.stratify_by=null"]
    assert main(["train", "experiment=none", *own, *model, *small, *SHORT, *rest]) == 0
    assert capsys.readouterr().out.count("note: task=jsonl demonstrates nothing: there is no baseline sft") == 1
    assert [*evaluation(tmp_path / "run")["baselines"]] == ["rejection_sampling"]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("run.final_eval=false", "run.eval.baselines=true needs the run's own evaluation"),
        ("run.checkpoint_every=0", "run.eval.baselines=true with run.checkpoint_every=0"),
    ],
)
def test_what_could_have_no_baselines_is_refused_before_it_begins(
    override: str, why: str, train: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SHORT, override, code=2)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
