"""What people said of a run's episodes, as a preference set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, ScoredGroup, Segment
from agentgrpo.records.trajectories import write_trajectories
from tests.builders import episode, given, sampled, task


def said(*texts: str, answer: str | None, index: int = 0) -> Episode:
    """An episode of the opening and these texts, of which every second one is a tool's."""
    turns: list[Segment] = [replace(given(1), text="user: Who?\n")]
    for i, text in enumerate(texts):
        turns.append(replace(given(2, role="tool") if i % 2 else sampled(3), text=text))
    return replace(episode(task(id="t0"), *turns, answer=answer), sample_index=index)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    forked = said("x", answer="Forked", index=4)
    episodes = (
        said("look\n", "found: Castin\n", "Castin<|im_end|>", answer="Castin"),
        said("Orlin<|im_end|>\n", answer="Orlin", index=1),
        said("I think Orlin", answer="Orlin", index=2),
        said("Cas", answer="Cas", index=3),
        replace(forked, branches=(*forked.branches, Branch(segments=(given(1), sampled(2))))),
    )
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    group = ScoredGroup(group=EpisodeGroup(task=task(id="t0"), episodes=episodes), rewards=(None,) * len(episodes))
    write_trajectories(
        folder / "trajectories" / "train-000000.jsonl",
        scored=[group],
        advantages=[[0.0] * len(episodes)],
        dropped=[None],
        step=0,
        seed=0,
    )
    return folder


def exported(run: Path, rows: Sequence[Any], *more: str) -> tuple[int, list[dict[str, str]]]:
    file, out = run.parent / "feedback.jsonl", run.parent / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = main(["export", "--preferences", str(out), "--run", str(run), "--feedback", str(file), *more])
    return code, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_a_preference_is_a_prompt_and_two_completions(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = exported(run, [{"task": "t0", "chosen": "castin", "rejected": {"answer": "Orlin", "id": "t0/1"}}])
    assert (code, rows) == (
        0,
        [{"prompt": "user: Who?\n", "chosen": "look\nfound: Castin\nCastin", "rejected": "Orlin"}],
    )
    assert f"1 preferences are in {run.parent / 'pairs.jsonl'}\n" in capsys.readouterr().err


def test_a_response_means_that_episode(run: Path) -> None:
    meant = {"answer": "Orlin", "response": "I think Orlin"}
    _, rows = exported(run, [{"task": "t0", "chosen": "Castin", "rejected": meant}])
    assert [row["rejected"] for row in rows] == ["I think Orlin"]


def test_grades_that_differ_are_preferences(run: Path) -> None:
    grades = {"Castin": [1.0], "Cas": [0.5, -0.5], "Orlin": [-1.0], "Unknown": [0.0]}
    rows = [{"task": "t0", "answer": answer, "grade": grade} for answer, of in grades.items() for grade in of]
    _, found = exported(run, rows)
    assert [(row["chosen"][-6:], row["rejected"]) for row in found] == [
        ("Castin", "Cas"),
        ("Castin", "Orlin"),
        ("Cas", "Orlin"),
    ]


def test_what_has_no_text_of_its_own_is_left_out_and_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"task": "t0", "chosen": "Castin", "rejected": other} for other in ("Orlin", "Nobody", "Forked")]
    assert len(exported(run, rows)[1]) == 1
    assert "; 2 more were left out, as the run has no such episode of one context" in capsys.readouterr().err
    (run.parent / "pairs.jsonl").unlink()
    assert exported(run, rows[1:]) == (2, [])
    assert "holds no preference between two episodes of" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--run", "r"], ["--run", "r", "--feedback", "f", "--ckpt", "c"]])
def test_it_needs_a_run_and_a_file(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--preferences", "out", *arguments]) == 2
    assert capsys.readouterr().err == (
        "agentgrpo: export --preferences OUT needs --run RUN and --feedback FILE, and nothing else\n"
    )
