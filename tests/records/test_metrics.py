"""metrics.jsonl repeats byte for byte; clocks lie elsewhere."""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from agentgrpo.core.durable import Operation, injected
from agentgrpo.core.errors import DataError
from agentgrpo.records.metrics import METRICS, PROFILE, TIMINGS, MetricsLog, clock_offset, read_metrics
from agentgrpo.records.seals import SEALS


def test_a_row_is_compact_sorted_and_exact(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.step(0, {"reward/std": 0.1 + 0.2, "groups/total": 16, "advantages/std": np.float32(0.1)})
    log.step(2, {"policy/kl": math.nan, "gradients/norm": math.inf, "x": -0.0, "y": 1e-300})
    assert (tmp_path / METRICS).read_bytes() == (
        b'{"step":0,"advantages/std":0.10000000149011612,"groups/total":16,"reward/std":0.30000000000000004}\n'
        b'{"step":2,"gradients/norm":null,"policy/kl":null,"x":-0.0,"y":1e-300}\n'
    )
    assert read_metrics(tmp_path / METRICS)[0]["reward/std"] == 0.1 + 0.2


def test_the_order_of_the_tags_does_not_matter(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "a").step(0, {"x": 1.0, "y": 2.0})
    MetricsLog(tmp_path / "b").step(0, {"y": 2.0, "x": 1.0})
    assert (tmp_path / "a" / METRICS).read_bytes() == (tmp_path / "b" / METRICS).read_bytes()


@pytest.mark.parametrize("tag", ["time/train", "throughput/tokens_per_s"])
def test_a_clock_cannot_enter_the_metrics(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ValueError, match=f"{tag} depends on a clock"):
        MetricsLog(tmp_path).step(0, {"reward/mean": 1.0, tag: 2.0})
    assert not (tmp_path / METRICS).exists()


def test_a_step_is_recorded_once_even_by_a_resumed_run(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.step(3, {"x": 1.0})
    with pytest.raises(ValueError, match="step 3 cannot follow step 3"):
        log.step(3, {"x": 1.0})
    resumed = MetricsLog(tmp_path)
    with pytest.raises(ValueError, match="step 2 cannot follow step 3"):
        resumed.step(2, {"x": 1.0})
    resumed.step(4, {"x": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path / METRICS)] == [3, 4]


def test_the_name_step_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a tag is called 'step'"):
        MetricsLog(tmp_path).step(1, {"step": 7.0})


def test_a_checkpoint_is_tied_to_the_metrics_and_the_seals_and_to_no_clock(tmp_path: Path) -> None:
    log, nothing = MetricsLog(tmp_path), sha256().hexdigest()
    empty = [{"file": name, "bytes": 0, "sha256": nothing} for name in (METRICS, SEALS)]
    assert log.logs() == empty
    log.clock(0, {"time/train": 1.5, "throughput/tokens_per_s": 10.0})
    log.step(0, {"x": 1.0})
    row = b'{"step":0,"x":1.0}\n'
    assert log.logs() == [{"file": METRICS, "bytes": len(row), "sha256": sha256(row).hexdigest()}, empty[1]]
    assert (tmp_path / TIMINGS).read_text() == '{"step":0,"throughput/tokens_per_s":10.0,"time/train":1.5}\n'


def test_rows_are_synced_and_clocks_only_for_a_checkpoint(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    synced: list[str] = []

    def watch(op: Operation) -> None:
        if op.kind == "fsync":
            synced.append(op.path.name)

    with injected(watch):
        log.clock(0, {"time/train": 1.5})
        log.profile(0, {"total": 2.0})
        assert synced == []
        log.step(0, {"x": 1.0})
        assert synced == [METRICS, tmp_path.name]
        log.logs()
    assert synced[2:] == [TIMINGS, tmp_path.name, PROFILE, tmp_path.name, METRICS, tmp_path.name]


def test_clock_rows_are_cut_at_the_first_of_the_step_or_unreadable(tmp_path: Path) -> None:
    path = tmp_path / TIMINGS
    assert clock_offset(path, 0) == 0
    rows = ['{"step":0,"time/a":1.0}\n', '{"step":0,"time/b":1.0}\n', '{"step":1,"time/a":1.0}\n', '{"step":2,"ti']
    path.write_text("".join(rows))
    assert [clock_offset(path, step) for step in (0, 1, 2, 9)] == [0, 48, 72, 72]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step":1', "the row is torn"),
        ("[1]\n", "not an object with an integer 'step'"),
        ('{"x":1}\n', "not an object"),
        ("{\n", "Expecting property name"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / METRICS).write_text('{"step":0}\n' + line)
    with pytest.raises(DataError, match=rf"metrics.jsonl:2: {reason}.*agentgrpo resume"):
        read_metrics(tmp_path / METRICS)


def test_a_step_that_is_there_twice_is_no_row_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step":0}\n{"step":1}\n{"step":1}\n')
    with pytest.raises(
        DataError, match=r"metrics\.jsonl:3: step 1 follows step 1; `agentgrpo resume` cuts the log back"
    ):
        read_metrics(path)
    (tmp_path / TIMINGS).write_text('{"step":0}\n{"step":0}\n')
    assert [row["step"] for row in read_metrics(tmp_path / TIMINGS)] == [0, 0]
