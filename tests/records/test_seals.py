"""Files of a run that are damaged are found by their seals, whoever changes what of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.records.seals import SEALS, Seal, prefix, problems, seal, seals_of

TEXT = b'{"id":"t0/0","reward":0.5}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "trajectories").mkdir()
    for step in range(3):
        path = tmp_path / "trajectories" / f"train-{step:06d}.jsonl"
        path.write_bytes(TEXT * (step + 1))
        seal(tmp_path, path)
    return tmp_path


def test_whole_files_have_no_problem(run: Path) -> None:
    assert list(problems(run)) == []
    assert list(seals_of(run)) == [f"trajectories/train-00000{step}.jsonl" for step in range(3)]
    assert list(problems(run / "trajectories")) == [], "a run without seals, such as an older one, has none"


def test_every_changed_byte_of_a_sealed_file_is_found(run: Path) -> None:
    path = run / "trajectories" / "train-000000.jsonl"
    for at in range(len(TEXT)):
        changed = bytearray(TEXT)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert list(problems(run)) == [f"{path} is damaged: its content does not match what was written"]
    path.write_bytes(TEXT)
    assert list(problems(run)) == []


def test_what_is_cut_grown_or_gone_is_said_of_each_file(run: Path) -> None:
    first, second, third = sorted((run / "trajectories").iterdir())
    os.truncate(first, 5)
    second.write_bytes(TEXT * 3)
    third.unlink()
    assert list(problems(run)) == [
        f"{first} is damaged: it has 5 bytes and had {len(TEXT)}",
        f"{second} is damaged: it has {3 * len(TEXT)} bytes and had {2 * len(TEXT)}",
        f"{third} is missing",
    ]


def test_every_changed_byte_of_the_seals_is_found(run: Path) -> None:
    """By the hash that a checkpoint holds; most of them without one, too."""
    whole, tied = (run / SEALS).read_bytes(), prefix(run, SEALS)
    silent = 0
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        (run / SEALS).write_bytes(changed)
        assert tied.problem(run, grows=True) is not None
        silent += not list(problems(run))
    assert silent <= 3, "those that make the last row one that is being written, or white space of another"


def test_the_last_seal_of_a_file_counts(run: Path) -> None:
    path = run / "trajectories" / "train-000000.jsonl"
    path.write_bytes(b"again\n")
    assert len(list(problems(run))) == 1
    seal(run, path)
    assert list(problems(run)) == []


def test_a_log_may_grow_behind_its_prefix(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"one\n")
    tied = prefix(tmp_path, log.name)
    assert tied == Seal.of(tmp_path, log.name)
    log.write_bytes(b"one\ntwo\n")
    assert tied.problem(tmp_path, grows=True) is None
    assert tied.problem(tmp_path) == f"{log} is damaged: it has 8 bytes and had 4"
    log.write_bytes(b"owe\ntwo\n")
    assert tied.problem(tmp_path, grows=True) == f"{log} is damaged: its content does not match what was written"
    log.unlink()
    assert tied.problem(tmp_path, grows=True) == f"{log} is missing"
    assert prefix(tmp_path, log.name).problem(tmp_path, grows=True) is None, "it had nothing"


@pytest.mark.parametrize("name", ["../precious", "/etc/passwd", "a/../../b"])
def test_seals_lead_to_no_file_outside_of_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / SEALS).write_text(json.dumps({"file": name, "bytes": 1, "sha256": "0" * 64}) + "\n")
    with pytest.raises(DataError, match=r"seals\.jsonl is damaged: row 1: .* is no file of this run"):
        seals_of(tmp_path)


@pytest.mark.parametrize("row", ["[]", "{}", '{"file":1,"bytes":1,"sha256":""}', "\udcff", '{"file":"a"', "null"])
def test_seals_that_are_none(tmp_path: Path, row: str) -> None:
    (tmp_path / SEALS).write_bytes(row.encode("utf-8", "surrogateescape") + b"\n")
    assert [p.startswith(f"{tmp_path / SEALS} is damaged: row 1: ") for p in problems(tmp_path)] == [True]
