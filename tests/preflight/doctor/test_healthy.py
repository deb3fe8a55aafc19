"""A healthy configuration has no problem, and nothing is left behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from agentgrpo.preflight.doctor import examination
from tests.e2e.conftest import SMALL_DIARIES, SMALL_WORLD
from tests.preflight.doctor.conftest import Diagnose, Toy

SMALL_WORKSHOP = ["experiment=tools", "task.test_tasks=240", "hardware.threads=1", "run.log_with=[]"]
NAMES = [check.name for check in examination.CHECKS]


def test_a_toy_model_of_ones_own_is_healthy(diagnose: Diagnose, toy: Toy) -> None:
    found = diagnose()
    assert found.problems == {}
    assert (found.code, found.json["healthy"]) == (0, True)
    assert [check["name"] for check in found.json["checks"]] == NAMES
    made = [c["name"] for c in found.json["checks"] if c["status"] != "skipped"]
    skipped = {c["name"]: c["reason"] for c in found.json["checks"] if c["status"] == "skipped"}
    assert skipped == {
        "sandbox": "no tool runs programs",
        "parser": "the policy calls nothing by name",
        "retrievers": "nothing is searched",
        "reranker and pages": "nothing is reranked and no page is fetched",
        "tools": "no tools are called",
        "evidence": "no task says which passages prove its answer (metadata.supporting), or nothing was searched",
    }
    assert len(made) == len(NAMES) - len(skipped)
    episodes, masks = found.check("episodes")["facts"], found.check("masks")["facts"]
    assert (episodes["groups"], episodes["episodes"], episodes["failed"]) == (3, 9, 0)
    assert masks["sampled tokens"] == found.check("log-probs")["facts"]["tokens"]
    assert masks["trainable ratio"] == round(masks["sampled tokens"] / masks["tokens"], 4)
    assert found.check("history")["facts"] == {"turns compared": 18, "branches": 9}
    assert found.check("log-probs")["facts"]["largest gap"] < 1e-4
    assert found.check("determinism")["facts"] == {"determinism": "exact", "largest difference": 0.0}


def test_the_same_for_people_with_an_episode_whose_tokens_are_marked(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("parts", "sandbox", "episodes", "masks")
    monkeypatch.setattr(examination, "CHECKS", tuple(c for c in examination.CHECKS if c.name in names))
    assert main(["doctor", *toy.settings, f"task.questions='{toy.questions}'"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert re.fullmatch(r"skipped  sandbox  +\d\.\d s  no tool runs programs", lines[0])
    assert lines[1].startswith("ok       parts")
    assert "an episode: [sampled] {ends a turn} given" in printed
    assert "         What is" in printed  # the question, as it was given
    assert re.search(
        r"\}\n {9}\[result 41\]\n {9}[\[{]", printed
    )  # told between a token that ended a turn and the next turn
    assert lines[-1].startswith("no problem found: 3 ok, 1 skipped, in ")


def test_a_configuration_that_cannot_be_composed_has_another_exit_code(diagnose: Diagnose) -> None:
    assert diagnose("optimizer.lrr=1").code == 2
    assert diagnose("environment=none_such").code == 2


@pytest.mark.slow
def test_it_may_be_ended_and_leaves_nothing_behind(toy: Toy, tmp_path: Path) -> None:
    """By SIGTERM while it waits for a service that never answers."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"retriever.url=http://127.0.0.1:{silent.getsockname()[1]}/retrieve"
        task = f"task.questions='{toy.questions}'"
        command = [
            sys.executable,
            "-m",
            "agentgrpo",
            "doctor",
            *toy.settings,
            task,
            "environment=search",
            "retriever=http",
            url,
        ]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as run:
            silent.settimeout(120)
            with silent.accept()[0]:
                assert len(list(tmp_path.glob("agentgrpo-doctor-*"))) == 1
                run.terminate()
                assert run.wait(timeout=60) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("settings", [SMALL_WORLD, SMALL_WORKSHOP], ids=lambda s: s[0])
def test_the_experiments_are_healthy(diagnose: Diagnose, settings: list[str]) -> None:
    """Their start weights are those of the tests in tests/e2e, made by whichever is first."""
    found = diagnose(settings=settings)
    assert found.problems == {}
    assert (found.code, found.json["healthy"]) == (0, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_policy_that_is_hardly_ever_right_has_no_signal(diagnose: Diagnose) -> None:
    """After a short warm start every memory of the diaries is invalid, so all episodes have one reward."""
    found = diagnose(settings=SMALL_DIARIES)
    assert set(found.problems) == {"signal"}
    assert "all episodes have the same credit: mean reward -0.2" in found.problems["signal"][0]
    assert (found.code, found.json["healthy"]) == (1, False)
