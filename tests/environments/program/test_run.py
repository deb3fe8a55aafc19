"""A whole run: trained, evaluated, resumed and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from tests.environments.program.played import Client, user
from tests.environments.program.training import trained

HERE = "environment.function=tests.environments.program.test_run:agent"


async def agent(task: Any, base_url: str) -> dict[str, float]:
    """Two turns, and a second opinion by a request of its own beside the second."""
    client, messages = Client(base_url), [user(task["question"])]
    messages += [await client.say(messages), user("Sure?")]
    said = await client.say(messages)
    other = await client.say([user(said["content"])])
    return {"reward": len(set(said["content"])) / 100, "length": float(len(other["content"]))}


@pytest.mark.slow
def test_a_run_is_evaluated_resumed_and_replayed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(HERE, "reward=environment", "run.final_eval=true", "run.eval.tasks=2", run="run")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["program/branches"] for step in steps] == [2.0] * 3
    assert [step["program/continued_share"] for step in steps] == [0.5] * 3
    assert all(step["policy/logprob_gap_max"] <= 1e-4 and step["agent/length"] > 0 for step in steps)
    figures = json.loads((run / "eval.json").read_text())["figures"]
    assert set(figures["columns"]) >= {"requests", "continued_share"}
    assert figures["quality"] == "reward"
    assert main(["resume", "run", "run.max_steps=4"]) == 2
    assert capsys.readouterr().err.endswith(f"name it on this command line: {HERE}\n")
    assert main(["resume", "run", "run.max_steps=4", HERE]) == 0
    capsys.readouterr()
    assert main(["replay", "run", "--all", HERE]) == 2
    assert "start it again: --tools live" in capsys.readouterr().err
    assert main(["replay", "run", "--all", "--tools", "live", "--file", "eval-end-greedy", HERE]) == 0
    assert "no divergence" in capsys.readouterr().out


@pytest.mark.slow
def test_answers_that_a_judge_grades_are_compared_by_its_grade(desk: Path) -> None:
    run = trained(HERE, "reward=correctness", "run.max_steps=1", "run.final_eval=true", "run.eval.tasks=2", run="run")
    result = json.loads((run / "eval.json").read_text())
    assert (result["figures"]["quality"], result["figures"]["is_graded"]) == ("correctness", True)
    assert {"correctness", "requests", "reward"} <= set(result["greedy"]["trained"])
