"""Runs in servers of OpenEnv's own package."""

from __future__ import annotations

import importlib
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.untrusted import visible
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from tests.environments.openenv.training import SERVED, command, trained
from tests.training.several import free_port

pytest.importorskip("openenv")
pytestmark = pytest.mark.slow
SEEDS = ["task.train_tasks=4", "task.test_tasks=2", "task.dev_tasks=1"]


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def episodes_of(run: Path) -> list[TrajectoryRecord]:
    files = sorted(run.glob("trajectories/train-??????.jsonl"))
    return [record for file in files for record in read_trajectories(file)]


def test_the_packages_own_echo_environment_takes_one_session_at_a_time(
    desk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = [sys.executable, "-m", "openenv.cli", "init", "echo_env", "--output-dir", "."]
    subprocess.run(init, check=True, capture_output=True)
    serve = "environment.command='python -m echo_env.server.app --port {port}'"
    with caplog.at_level(logging.WARNING, logger="agentgrpo.environments.openenv.server"):
        run = trained(serve, *SEEDS, "environment.max_turns=2", "environment.show=[echoed_message]")
    [line] = {record.getMessage().partition("allows")[2] for record in caplog.records}
    assert line.startswith(" 1 session at once, so episodes wait for each other; raise max_concurrent_envs")
    episodes = episodes_of(run)
    assert len(episodes) == 8
    assert all(episode.error is None for episode in episodes)
    monkeypatch.syspath_prepend(desk)
    action, echo = importlib.import_module("echo_env.models"), importlib.import_module("echo_env.server")
    for episode in episodes:
        [branch] = episode.branches
        texts = [segment.text.removesuffix("<|im_end|>").strip() for segment in branch.segments]
        assert "ready!" in texts[0]
        assert len(texts) == 5
        said = echo.EchoEnvironment()
        paid = [said.step(action.EchoAction(message=text)).reward for text in texts[1::2]]
        assert episode.reward == pytest.approx(sum(paid))
        assert visible(texts[1]) in texts[2]


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", ["guessing", "shop"])
def test_a_run_in_a_server_that_it_starts_is_evaluated_and_resumed(
    desk: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = command(kind)
    evaluated = ["run.final_eval=true", "run.eval.tasks=2"]
    run = trained(serve, *SEEDS, "environment.max_turns=3", *evaluated)
    steps = steps_of(run)
    assert len(steps) == 2
    assert all(step["policy/logprob_gap_max"] <= 1e-4 and step["agent/turns"] >= 1 for step in steps)
    assert {"turns", "env_steps"} <= {*json.loads((run / "eval.json").read_text())["figures"]["columns"]}
    capsys.readouterr()
    assert main(["resume", "run", "run.max_steps=3"]) == 2
    assert "lets a run directory start programs; to allow it" in capsys.readouterr().err
    assert main(["resume", "run", "run.max_steps=3", serve]) == 0
    assert len(steps_of(run)) == 3
    assert main(["eval", "--ckpt", "run/checkpoints/step-000003", "run.dir=again", serve]) == 0


def test_a_server_that_runs_already_is_looked_at_before_it_is_trained_in(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    here = [f"environment.url=http://127.0.0.1:{port}", "environment=openenv", *SEEDS]
    here += ["experiment=none", "model.path=model", "rollout.max_tokens=24", "hardware.threads=1"]
    here += ["rollout.tasks_per_step=2", "run.eval_every=0", "run.log_with=[]"]
    assert main(["train", *here, "run.dir=none"]) == 8
    assert f"OpenEnv server http://127.0.0.1:{port} does not say what its actions are" in capsys.readouterr().err
    server = subprocess.Popen([sys.executable, str(SERVED), "guessing", str(port)])
    try:
        while not answers(port):
            assert server.poll() is None
        run = trained(here[0], *SEEDS, "rollout.group_size=4")
        assert all(step["policy/logprob_gap_max"] <= 1e-4 for step in steps_of(run))
        assert main(["plan", *here]) in (0, 1)
        capsys.readouterr()
        assert main(["doctor", *here, "rollout.tasks_per_step=2", "rollout.group_size=2"]) in (0, 1)
        assert "episodes failed" not in capsys.readouterr().out
    finally:
        server.terminate()
        server.wait()
