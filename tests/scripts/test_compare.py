"""A comparison: equal work on both sides, ratios the right way round, one file that never mixes what is not alike."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import compare
import conditions
import pytest
import results
from works import Work, works

from tests.scripts.conftest import BENCH

TINY = works()["tiny/latency-0"]
HERE = {"cpu": "a", "cores": 2}
SIDES = ("ours", "peer", "peer_malloc")


def report(seconds: float, *, mb: float = 100.0, sampled: float = 1000.0, tokens: float = 5000.0) -> dict[str, Any]:
    figures = dict.fromkeys(("step_cpu_s", "step_wall_s", "rollout_cpu_s", "train_cpu_s"), seconds)
    return {
        "figures": {**figures, "rollout_wall_s": seconds, "peak_rss_mb": mb},
        "work": {"sampled": [sampled], "tokens": [tokens]},
        "versions": {"trl": "1"},
    }


def test_the_works_are_those_with_names_that_others_know() -> None:
    kinds = ("latency-0", "latency-100", "latency-300", "single-turn")
    assert list(works()) == [f"{base}/{kind}" for base in ("tiny", "small", "vocab151k") for kind in kinds]
    assert [w.latency_s for w in works().values()] == [0.0, 0.1, 0.3, 0.0] * 3
    assert [w.turns for w in works().values()] == [3, 3, 3, 1] * 3
    assert [w.rows for w in works().values()] == [32] * 8 + [8] * 4
    assert works()["vocab151k/latency-0"].vocab == 151_936


def test_a_ratio_of_times_is_against_the_better_peer_and_higher_when_we_are_faster() -> None:
    row = results.compared_row("tiny/latency-0", "step_cpu_s", [2.0, 4.0, 3.0], [9.0, 9.0, 9.0], [6.0, 8.0, 6.0])
    assert row == {
        "work": "tiny/latency-0",
        "figure": "step_cpu_s",
        "ours": [2.0, 4.0, 3.0],
        "peer": [9.0, 9.0, 9.0],
        "peer_malloc": [6.0, 8.0, 6.0],
        "ratio": 2.0,
    }
    assert results.pair_ratios(row) == [3.0, 2.0, 2.0]


def test_a_ratio_of_memory_is_lower_when_we_need_less() -> None:
    row = results.compared_row("small/latency-0", "peak_rss_mb", [200.0, 220.0], [500.0, 500.0], [900.0, 900.0])
    assert row["ratio"] == 0.42
    assert results.pair_ratios(row) == [0.4, 0.44]


def test_a_floor_has_no_peer() -> None:
    row = results.floor_row("tiny/latency-0", [0.8, 0.9, 0.7])
    assert row == {
        "work": "tiny/latency-0",
        "figure": "floor_fraction",
        "ours": [0.8, 0.9, 0.7],
        "peer": [],
        "ratio": 0.8,
    }
    assert results.pair_ratios(row) == []


def test_rows_come_from_the_reports_of_all_sides() -> None:
    reports = {"ours": [report(2.0, mb=50.0)], "peer": [report(6.0)], "peer_malloc": [report(5.0, mb=200.0)]}
    rows = compare.rows_of("tiny/latency-0", reports, [])
    assert [(row["figure"], row["ratio"]) for row in rows] == [
        ("step_cpu_s", 2.5),
        ("step_wall_s", 2.5),
        ("rollout_cpu_s", 2.5),
        ("train_cpu_s", 2.5),
        ("peak_rss_mb", 0.5),
    ]


def test_ours_alone_is_compared_with_the_peers_kept_runs() -> None:
    kept = [results.compared_row("tiny/latency-0", "step_cpu_s", [2.0], [6.0], [5.0])]
    rows = compare.rows_of("tiny/latency-0", {"ours": [report(1.0)]}, kept)
    assert rows == [results.compared_row("tiny/latency-0", "step_cpu_s", [1.0], [6.0], [5.0])]
    assert compare.rows_of("tiny/single-turn", {"ours": [report(1.0)]}, kept) == []


def test_new_rows_replace_old_ones_of_the_same_machine_and_versions() -> None:
    old = [results.floor_row("tiny/latency-0", [0.8]), results.floor_row("small/latency-0", [0.9])]
    before = {"machine": HERE, "versions": {"torch": "1", "peer trl": "1"}, "rows": old}
    new = results.floor_row("tiny/latency-0", [0.7])
    assert results.merged(before, HERE, {"torch": "1"}, [new]) == {
        "machine": HERE,
        "versions": {"torch": "1", "peer trl": "1"},
        "rows": [old[1], new],
    }
    for machine, versions in (({"cpu": "b"}, {"torch": "1"}), (HERE, {"torch": "2"})):
        assert results.merged(before, machine, versions, [new]) == {
            "machine": machine,
            "versions": versions,
            "rows": [new],
        }


def test_the_file_is_whole_after_every_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    first, second = results.floor_row("tiny/latency-0", [0.8]), results.floor_row("small/latency-0", [0.9])
    results.write([first], conditions.versions(), path)
    results.write([second], conditions.versions(), path)
    assert results.read(path)["rows"] == [second, first]
    assert set(results.read(path)) == {"machine", "versions", "rows"}
    assert capsys.readouterr().err == ""
    results.write([first], {"torch": "another"}, path)
    assert results.read(path)["rows"] == [first]
    assert (
        capsys.readouterr().err == "bench.json: its rows were of another machine or of other versions and are dropped\n"
    )


@pytest.mark.parametrize(("count", "peer"), [("sampled", 1006.0), ("tokens", 4960.0)])
def test_unequal_work_is_not_compared(count: str, peer: float, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        compare.refuse_unequal_work("w", {"ours": [report(1.0)], "peer": [report(1.0, **{count: peer})]})
    assert stopped.value.code == 1
    assert re.fullmatch(rf"bench: w: the sides did not do the same work, {count}: .*\n", capsys.readouterr().err)


def test_work_that_is_equal_to_half_a_percent_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    compare.refuse_unequal_work("w", {"ours": [report(1.0)], "peer": [report(1.0, sampled=1004.0, tokens=4980.0)]})
    assert capsys.readouterr().err == ""


def side(tmp_path: Path, script: str, **environment: str) -> compare.Side:
    path = tmp_path / "side.py"
    path.write_text(script)
    return compare.Side("peer", Path(sys.executable), str(path), environment)


def test_a_side_runs_in_its_own_process_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, no allocator settings but the side's own; what else it prints does not matter."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    script = (
        "import json, os, sys\nprint('noise')\n"
        "print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k[:6] in ('MALLOC', 'OMP_NU')}]))\n"
    )
    found: Any = compare.measure(side(tmp_path, script, MALLOC_TOP_PAD_="7"), TINY, 2)
    assert found == [
        ["--work", "tiny/latency-0", "--steps", "2"],
        {"OMP_NUM_THREADS": "1", "MALLOC_TOP_PAD_": "7"},
    ]


def test_a_side_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        compare.measure(side(tmp_path, "import sys\nsys.exit('no torch here')"), TINY, 1)
    assert stopped.value.code == 1
    assert capsys.readouterr().err == f"bench: tiny/latency-0: {tmp_path}/side.py ended with 1: no torch here\n"


def test_a_work_is_measured_in_turns_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure(side: compare.Side, work: Work, steps: int) -> dict[str, Any]:
        order.append(side.name)
        return report(1.0 if side.name == "ours" else 3.0)

    monkeypatch.setattr(compare, "measure", measure)
    compare.compare(TINY, (compare.OURS, *compare.PEERS), runs=2, steps=1, path=tmp_path / "bench.json")
    assert order == [*SIDES, *SIDES]
    written = json.loads((tmp_path / "bench.json").read_text())
    assert {(row["figure"], row["ratio"]) for row in written["rows"] if row["figure"] != "peak_rss_mb"} == {
        (figure, 3.0) for figure in ("step_cpu_s", "step_wall_s", "rollout_cpu_s", "train_cpu_s")
    }
    assert written["versions"]["peer trl"] == "1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--works", "huge"], "work 'huge' was given; known are tiny/latency-0, .*"),
        (["--runs", "0"], "--runs 0 was given; 1 or more is allowed"),
        ([], r"there is no peer in .*; `make bench-peer` installs it, --only-ours does without"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    monkeypatch.setattr(compare, "PEER", Path("/nowhere/peer/bin/python"))
    with pytest.raises(SystemExit) as stopped:
        compare.main()
    assert stopped.value.code == 2
    assert re.fullmatch(f"bench: {message}\n", capsys.readouterr().err)


def test_both_sides_have_the_same_torch_and_transformers() -> None:
    def pins(path: Path) -> dict[str, str]:
        lines = [line for line in path.read_text().splitlines() if "==" in line]
        return dict(line.split("==") for line in lines)

    ours, peer = pins(BENCH.parents[1] / "constraints.txt"), pins(BENCH / "peer.txt")
    shared = {"torch", "transformers", "accelerate"}
    assert {name: peer[name] for name in shared} == {name: ours[name] for name in shared}
    assert "trl" in peer
