"""Small whole runs with tools, and records of them that somebody has edited."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.types import Branch, Segment
from agentgrpo.records.trajectories import TrajectoryRecord, pack, read_trajectories, unpack
from tests.e2e.test_tools import SETTINGS, question

TOOL = "tools.double.name=tests.e2e.doubler:Doubler"
"""What a replay needs to be told again: it is code of the user's."""
KEEP = ["run.checkpoint_every=1", "run.keep_last=9", "run.eval.tasks=4"]


def write_questions(path: Path) -> None:
    lines = [
        {"id": f"{split}{i}", "question": opening + question(i), "answers": str(2 * i), "split": split}
        for split, count, opening in (("train", 10, ""), ("dev", 4, "Dev: "), ("test", 10, "Test: "))
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def train(start: Path, folder: Path, *overrides: str) -> Path:
    """The run directory of two steps of 24 episodes each, its questions beside it."""
    write_questions(folder / "q.jsonl")
    given = [f"task.questions='{folder / 'q.jsonl'}'", f"model.path='{start}'", f"run.dir='{folder / 'run'}'"]
    assert main(["train", *SETTINGS, *given, *KEEP, *overrides]) == 0
    return folder / "run"


def replay(run_dir: Path, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """What `agentgrpo replay --json` says of all episodes, or of the one that is named."""
    which = [] if "--episode" in arguments else ["--all"]
    capsys.readouterr()
    found = main(["replay", str(run_dir), "--json", *which, *arguments, TOOL])
    said = capsys.readouterr()
    assert found == code, said.err
    result: dict[str, Any] = json.loads(said.out)
    return result


def records(run_dir: Path, file: str) -> list[TrajectoryRecord]:
    return list(read_trajectories(run_dir / "trajectories" / f"{file}.jsonl"))


def sampled(record: TrajectoryRecord) -> list[Segment]:
    return [s for branch in record.branches for s in branch.segments if s.sampled]


def with_turns(run_dir: Path, file: str, count: int) -> TrajectoryRecord:
    """An episode of at least so many sampled turns."""
    return next(r for r in records(run_dir, file) if len(sampled(r)) >= count)


def edit(run_dir: Path, file: str, id: str, change: Callable[[list[Segment]], list[Segment]]) -> None:
    """The record of one episode, its only branch changed."""
    path = run_dir / "trajectories" / f"{file}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[1:]:
        if row["id"] == id:
            [branch] = unpack(row["agent"]["messages"], row["tokens"])
            segments = change(list(branch.segments))
            row["tokens"] = pack([Branch(segments=tuple(segments))])
            for message, segment in zip(row["agent"]["messages"], segments, strict=True):
                message["content"] = segment.text
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def other_token(turn: int, token: int, id: int) -> Callable[[list[Segment]], list[Segment]]:
    def change(s: Segment) -> Segment:
        return replace(s, token_ids=(*s.token_ids[:token], id, *s.token_ids[token + 1 :]))

    return _of_turn(turn, change)


def next_logprob(turn: int, token: int) -> Callable[[list[Segment]], list[Segment]]:
    """The last bit is another one."""

    def change(s: Segment) -> Segment:
        assert s.logprobs is not None
        other = math.nextafter(s.logprobs[token], -math.inf)
        return replace(s, logprobs=(*s.logprobs[:token], other, *s.logprobs[token + 1 :]))

    return _of_turn(turn, change)


def _of_turn(turn: int, change: Callable[[Segment], Segment]) -> Callable[[list[Segment]], list[Segment]]:
    def changed(segments: list[Segment]) -> list[Segment]:
        at = [i for i, s in enumerate(segments) if s.sampled][turn]
        return [change(s) if i == at else s for i, s in enumerate(segments)]

    return changed
