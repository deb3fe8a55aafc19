"""What a resumed run may change, and what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import CheckpointError
from agentgrpo.run.drift import files_of, refuse_drift


def state(**config: Any) -> dict[str, Any]:
    run = {"seed": 0, "dir": "a", "max_steps": 3} | config
    return {"config": {"run": run}, "fingerprints": {"data": "d"}, "versions": {"torch": "2"}}


def test_equal_states_go_on_without_a_word() -> None:
    assert refuse_drift(state(), state()) == []


def test_soft_keys_are_told() -> None:
    assert refuse_drift(state(), state(dir="b", max_steps=5)) == [
        "run.dir was 'a', is now 'b'",
        "run.max_steps was 3, is now 5",
    ]


def test_dev_evaluations_may_change() -> None:
    """What they sample is seeded apart from the training, and only guards and keep_best, soft too, look at it."""
    before, after = state(eval_every=50, eval_tasks=100), state(eval_every=0, eval_tasks=20)
    assert refuse_drift(before, after) == ["run.eval_every was 50, is now 0", "run.eval_tasks was 100, is now 20"]


def test_guards_may_be_told_otherwise() -> None:
    def guarded(**guards: Any) -> dict[str, Any]:
        return {**state(), "config": {**state()["config"], "guards": guards}}

    kl = {"metric": "policy/kl", "limit": 1.0}
    assert refuse_drift(guarded(kl=kl), guarded(kl=kl | {"limit": 2.0})) == ["guards.kl.limit was 1.0, is now 2.0"]
    assert len(refuse_drift(guarded(kl=kl), guarded())) == 3  # the two keys, and the group that is empty now


def test_a_hard_key_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"run\.seed was 0, is now 1"):
        refuse_drift(state(), state(seed=1))


def test_a_key_that_vanished_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"run\.extra was 1, is now None"):
        refuse_drift(state(extra=1), state())


def test_changed_data_are_refused() -> None:
    with pytest.raises(CheckpointError, match="the data changed"):
        refuse_drift(state(), state() | {"fingerprints": {"data": "other"}})


def test_data_that_changed_are_named_by_their_file(tmp_path: Path) -> None:
    for name in ("q.jsonl", "c.jsonl"):
        (tmp_path / name).write_text("{}\n")
    task = {"name": "jsonl", "questions": str(tmp_path / "q.jsonl"), "corpus": str(tmp_path / "c.jsonl"), "seed": 0}
    config = {"task": task, "suite": {"own": {"task": {"sources": {"a": {"path": str(tmp_path / "q.jsonl")}}}}}}
    before = files_of(config)
    assert [*before] == [
        f"task.questions={tmp_path / 'q.jsonl'}",
        f"task.corpus={tmp_path / 'c.jsonl'}",
        f"suite.own.task.sources.a.path={tmp_path / 'q.jsonl'}",
    ]
    (tmp_path / "c.jsonl").write_text("{} \n")
    other = {"fingerprints": {"data": "other"}, "files": files_of(config)}
    with pytest.raises(CheckpointError, match=rf"the data changed \(task\.corpus={tmp_path / 'c.jsonl'}\)\. Resume"):
        refuse_drift(state() | {"files": before}, state() | other)
    with pytest.raises(CheckpointError, match=r"the data changed\. Resume"):  # of a run that kept no hashes
        refuse_drift(state(), state() | other)


def test_another_version_is_told() -> None:
    notes = refuse_drift(state(), state() | {"versions": {"torch": "3"}})
    assert notes == ["torch was 2, is now 3: the last bits may differ"]
