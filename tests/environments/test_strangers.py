"""Whole runs with code of a stranger's: what misbehaves is data, all others are token for token as without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.cli.main import main
from tests.environments.program.conftest import desk

__all__ = ["desk"]

WORLD = "environment=tests.environments.strangers:World"
SHORT = [
    *("experiment=none", "model.path=model", "task.questions=n.jsonl", "reward=environment", "rollout.max_tokens=8"),
    *("rollout.tasks_per_step=3", "rollout.group_size=2", "rollout.episode_retries=0", "run.max_error_fraction=0.5"),
    *("run.max_steps=1", "run.final_eval=false", "run.eval_every=0", "run.screen=quiet", "run.log_with=[]"),
    *("hardware.threads=1", "guards=none"),
]


TASKS = """
class Tasks:
    fingerprint = ""
    def __init__(self, questions=None, corpus=None, web_corpus=None, thesaurus=None, dev_fraction=None, seed=None,
        test_fraction=None, id_key=None, question_key=None, answers_key=None, corpus_keys=None): ...
    def split(self, name):
        raise SystemExit(0)
    def corpora(self):
        return {}
    def thesaurus(self):
        return {}
"""


@pytest.fixture
def site(desk: Path) -> Iterator[Path]:
    """A folder to run in; the process is afterwards as it was."""
    rows = [{"id": f"q{n}", "prompt": f"What is {n}+1?", "n": n} for n in range(3)]
    (desk / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment, threads, handler = dict(os.environ), torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    yield desk
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, handler)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    torch.set_autocast_enabled("cpu", False)


def train(*settings: str, run: str) -> int:
    return main(["train", *SHORT, *settings, f"run.dir={run}"])


def attempts(run: Path) -> dict[tuple[str, int], tuple[Any, Any]]:
    """(task, sample) -> the failure, and what was sampled."""
    lines = (run / "trajectories" / "train-000000.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "sample_index" in row]
    assert len(rows) == 6
    return {(row["task"], row["sample_index"]): (row["error"], (row["response"], row["tokens"])) for row in rows}


@pytest.mark.slow
def test_whatever_it_raises_is_a_failed_attempt(site: Path) -> None:
    assert train(WORLD, run="good") == 0
    good = attempts(site / "good")
    cases = [("exit", "reset"), ("interrupt", "step"), ("cancel", "score"), ("group", "close"), ("generator", "step")]
    for how, at in cases:
        assert train(WORLD, f"environment.how={how}", f"environment.at={at}", run=how) == 0, how
        found = attempts(site / how)
        for (task, sample), (failure, tokens) in found.items():
            if task == "q1":
                assert failure["message"].startswith(f"tests.environments.strangers:World.{at}: "), how
            else:
                assert (failure, tokens) == (None, good[task, sample][1]), how


@pytest.mark.slow
def test_what_it_changes_changes_nothing(site: Path) -> None:
    """Nor the weights: these attempts are good ones."""
    for how in ("good", "torch", "process"):
        assert train(WORLD, f"environment.how={how}", run=how) == 0, how
        assert attempts(site / how) == attempts(site / "good"), how
        weights = [site / run / "checkpoints" / "step-000001" / "model.safetensors" for run in (how, "good")]
        assert weights[0].read_bytes() == weights[1].read_bytes(), how
    assert os.getcwd() == str(site)  # noqa: PTH109
    assert not Path("/process").exists()


@pytest.mark.slow
def test_a_term_that_ends_the_program_has_not_scored(site: Path) -> None:
    assert train(WORLD, "+reward.terms.own.name=tests.environments.strangers:exits", run="run") == 0
    [row] = [json.loads(line) for line in (site / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["failures/reward"] == 2.0


@pytest.mark.parametrize("code", ["sys.exit(0)", "sys.exit(3)", "raise KeyboardInterrupt", "raise ValueError('no')"])
def test_a_module_that_cannot_be_imported_is_one_line(
    code: str, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stranger_{abs(hash(code))}"
    (site / f"{name}.py").write_text(f"import sys\n{code}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(signal, "default_int_handler", None)  # as the command line has it: Ctrl-C ends it at once
    assert train(f"environment={name}:World", run="run") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"agentgrpo: environment.name={name}:World, as it is imported: ")
    assert line.endswith(f"({name}.py:2); correct it")


def test_a_constructor_that_ends_the_program_is_one_line(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "stranger_judge.py").write_text(
        "class Judge:\n    def __init__(self):\n        raise SystemExit(0)\n    def judge(self, **case): ...\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert train(WORLD, "judge=exact_match", "judge.name=stranger_judge:Judge", run="run") == 2
    assert "judge.name=stranger_judge:Judge, as it is made: SystemExit: 0" in capsys.readouterr().err


def test_a_data_set_that_ends_the_program_is_one_line(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "stranger_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(site))
    assert train(WORLD, "task.name=stranger_tasks:Tasks", run="run") == 2
    assert "stranger_tasks.py:7 has called for the end of the program (SystemExit: 0)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_whose_environment_never_returns_ends_when_it_is_told_to(site: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *SHORT]
    stuck = "environment=tests.environments.strangers:Stuck"
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [*command, stuck, "run.dir=run"], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            deadline = time.monotonic() + 200
            while not Path("begun").exists() and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(number)
            _, error = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 75, error
    assert f"stopped by {number.name}" in error
