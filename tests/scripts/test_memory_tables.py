"""The tables of memory runs: what is made and what is not made again, and every figure from the run's own files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import memory_ablation
import memory_table
import pytest
from memory_ablation import Cell, shape

from agentgrpo.cli.main import main
from agentgrpo.core.types import Exit, Failure
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.records.trajectories import read_trajectories
from tests.run.test_measured import Diaries, examiner
from tests.run.test_show import GROWN, REWARD, recorded

SHORT = ("--beta", "0.3", "0", "--gamma", "0.5", "0", "--steps", "7")


def result(correctness: float, tokens: float, validity: float) -> dict[str, Any]:
    """As much of eval.json as the ablation reads."""
    start = {"correctness": 0.5, "memory_tokens": 60.0, "compression": 0.5, "validity": 0.4, "calls_per_chunk": 1.5}
    end = {"correctness": correctness, "memory_tokens": tokens, "compression": 0.75, "validity": validity}
    return {"greedy": {"baseline": start, "trained": end | {"calls_per_chunk": 1.25}}}


class Tiny:
    """In the place of a training run: it leaves an eval.json that follows from beta and gamma."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, arguments: Sequence[str]) -> None:
        self.made.append(" ".join(arguments))
        keys = dict(argument.partition("=")[::2] for argument in arguments[1:])
        run = Path(keys["run.dir"]) if arguments[0] == "train" else Path(arguments[1])
        beta = float(keys.get(memory_ablation.BETA, 0.3))
        gamma = float(keys.get(memory_ablation.GAMMA, 0.5))
        run.mkdir(parents=True, exist_ok=True)
        found = result(0.5 + 0.25 * gamma + 0.25 * beta, 50 - 20 * beta, 0.5 + gamma / 2)
        (run / "eval.json").write_text(json.dumps(found), encoding="utf-8")


def keys(run: Path, beta: str, gamma: str) -> str:
    weights = f"reward.terms.compression.weight={beta} reward.terms.validity.weight={gamma}"
    rest = "run.log_with=[] run.screen=quiet"
    return (
        f"train experiment=memory {weights} {memory_ablation.UNGATED} run.seed=0 run.max_steps=7 run.eval_every=0 "
        f"run.dir={run}/beta{beta}-gamma{gamma}-steps7-seed0 {rest}"
    )


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Tiny()
    memory_ablation.main(["--runs", str(tmp_path), *SHORT, "--dry-run"], tiny)
    expected = [keys(tmp_path, beta, gamma) for beta in ("0", "0.3") for gamma in ("0", "0.5")]
    printed = capsys.readouterr().out.replace("'run.log_with=[]'", "run.log_with=[]").splitlines()
    assert printed == [f"agentgrpo {line}" for line in expected]
    assert (tiny.made, list(tmp_path.iterdir())) == ([], [])


def test_what_is_there_is_not_made_again_and_what_was_stopped_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = tmp_path / "beta0-gamma0.5-steps7-seed0"
    stopped.mkdir()
    (stopped / "config.yaml").write_text("run: {}\n", encoding="utf-8")
    Tiny()(keys(tmp_path, "0", "0").split())
    tiny = Tiny()
    memory_ablation.main(["--runs", str(tmp_path), *SHORT], tiny)
    assert tiny.made == [f"resume {stopped}", keys(tmp_path, "0.3", "0"), keys(tmp_path, "0.3", "0.5")]
    again = Tiny()
    capsys.readouterr()
    memory_ablation.main(["--runs", str(tmp_path), *SHORT], again)
    assert (again.made, capsys.readouterr().err) == ([], "")


def test_the_table_of_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory_ablation.main(["--runs", str(tmp_path), *SHORT, "--seeds", "0", "1"], Tiny())
    assert (
        capsys.readouterr().out
        == """\
| beta | gamma | runs | correctness | memory tokens | compression | validity | calls per chunk |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 0 | 0 | 2 | 0.500 → 0.500 (±0.000) | 60.000 → 50.000 (±0.000) | 0.500 → 0.750 (±0.000) | 0.400 → 0.500 (±0.000) | 1.500 → 1.250 (±0.000) |
| 0 | 0.5 | 2 | 0.500 → 0.625 (±0.000) | 60.000 → 50.000 (±0.000) | 0.500 → 0.750 (±0.000) | 0.400 → 0.750 (±0.000) | 1.500 → 1.250 (±0.000) |
| 0.3 | 0 | 2 | 0.500 → 0.575 (±0.000) | 60.000 → 44.000 (±0.000) | 0.500 → 0.750 (±0.000) | 0.400 → 0.500 (±0.000) | 1.500 → 1.250 (±0.000) |
| 0.3 | 0.5 | 2 | 0.500 → 0.700 (±0.000) | 60.000 → 44.000 (±0.000) | 0.500 → 0.750 (±0.000) | 0.400 → 0.750 (±0.000) | 1.500 → 1.250 (±0.000) |

8 runs of 7 steps; few seeds and short runs are noise as much as effect
as expected: the greater beta, the smaller the memory: (0, 0) 50.000, (0.3, 0) 44.000
NOT as expected: the greatest beta costs answers: (0, 0) 0.500, (0.3, 0) 0.575
as expected: the greater beta, the smaller the memory: (0, 0.5) 50.000, (0.3, 0.5) 44.000
NOT as expected: the greatest beta costs answers: (0, 0.5) 0.625, (0.3, 0.5) 0.700
as expected: the least gamma costs right entries: (0.3, 0) 0.500, (0.3, 0.5) 0.750
as expected: the least gamma costs answers: (0.3, 0) 0.575, (0.3, 0.5) 0.700
"""
    )


def cell(correctness: float, tokens: float, validity: float = 0.5) -> dict[str, list[tuple[float, float]]]:
    return {
        "correctness": [(0.0, correctness)],
        "memory_tokens": [(0.0, tokens)],
        "validity": [(0.0, validity)],
    }


def test_the_shape_is_judged_by_what_there_is() -> None:
    assert shape({Cell(0.3, 0.5): cell(0.7, 40.0)}) == []
    found = {Cell(0.0, 0.5): cell(0.6, 40.0), Cell(0.3, 0.5): cell(0.7, 50.0), Cell(1.2, 0.5): cell(0.6, 30.0)}
    grew, fell = shape(found)
    sizes, grades = "(0, 0.5) 40.000, (0.3, 0.5) 50.000, (1.2, 0.5) 30.000", "(0, 0.5) 0.600, (0.3, 0.5) 0.700"
    assert grew == f"NOT as expected: the greater beta, the smaller the memory: {sizes}"
    assert fell == f"as expected: the greatest beta costs answers: {grades}, (1.2, 0.5) 0.600"


@pytest.mark.parametrize(
    "last, holds",
    [
        (cell(0.67, 37.0), [True, True]),
        (cell(0.69, 37.0), [True, False]),
        (cell(0.67, 39.0), [False, True]),
    ],
)
def test_a_difference_within_the_noise_is_none(last: dict[str, list[tuple[float, float]]], holds: list[bool]) -> None:
    found = {Cell(0.0, 0.5): cell(0.6, 40.0), Cell(0.3, 0.5): cell(0.7, 41.0), Cell(1.2, 0.5): last}
    assert [line.startswith("as expected") for line in shape(found)] == holds


@pytest.mark.parametrize("correctness, validity, holds", [(0.67, 0.47, [True, True]), (0.69, 0.49, [False, False])])
def test_what_gamma_brings_is_beyond_the_noise_too(correctness: float, validity: float, holds: list[bool]) -> None:
    found = {Cell(0.3, 0.0): cell(correctness, 40.0, validity), Cell(0.3, 0.5): cell(0.7, 40.0, 0.5)}
    assert [line.startswith("as expected") for line in shape(found)] == holds


def test_no_run_is_done(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no run that is done; leave out --only-print"):
        memory_ablation.main(["--runs", str(tmp_path), "--only-print"], Tiny())


def test_the_keys_are_those_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = memory_ablation.command(Path("r"), Cell(0.0, 1.5), 3, 9, ["run.eval.tasks=20"])
    assert main([*arguments, "--cfg", "job", "-p", "reward.terms"]) == 0
    shown = capsys.readouterr().out
    assert "compression:\n  weight: 0\n" in shown
    assert "validity:\n  weight: 1.5\n" in shown


async def run_of(tmp_path: Path, name: str) -> Path:
    """A run before and after, the one like the other."""
    of = examiner(tmp_path / name, Diaries(ClozeReader()))
    cards = await of.keep_scorecards("start", "key")
    await of.scorecards("end")
    await of.compare(cards, cards)
    return tmp_path / name


async def test_the_tables_of_runs(tmp_path: Path) -> None:
    first, second = await run_of(tmp_path, "a"), await run_of(tmp_path, "b")
    parts = [part.splitlines() for part in memory_table.tables([first, second]).split("\n\n")]
    assert [len(part) for part in parts] == [2 + 2, 2 + 2 * 9, 2 + 2 * 2, 2 + 2 * 10]
    assert parts[0][2] == (
        "| a | 0.500 → 0.500 | +0.0 [+0.0, +0.0] | 0.306 → 0.306 | 4.0 → 4.0 [+0.0, +0.0] | 1.000 → 1.000 | "
        "0.50 → 0.50 | INCONCLUSIVE |"
    )
    assert parts[1][2:5] == [
        "| a | after | 0.500 | 0.306 |  |  |",
        "| a | nothing | 0.000 | 0.000 | +50.0 [+0.0, +100.0] |  |",
        "| a | everything | 1.000 | 1.000 | -50.0 [-100.0, +0.0] |  |",
    ]
    assert parts[2][2:4] == [
        "| a | long | 0.000 → 0.000 | 0.111 → 0.111 | everything 1.000 (1.000) |",
        "| a | short | 1.000 → 1.000 | 0.500 → 0.500 | everything 1.000 (1.000) |",
    ]
    # 1 + 2 questions of short diaries, 2 + 2 of long ones
    assert parts[3][:6] == [
        "| run |  | questions |",
        "| --- | --- | --- |",
        "| a | before | 0.429 (7) |",
        "| a | after | 0.429 (7) |",
        "| a | nothing | 0.000 (7) |",
        "| a | everything | 1.000 (7) |",
    ]
    assert parts[3][6] == "| a | last_k | 0.429 (7) |"


def test_answers_are_counted_by_kind_of_question(tmp_path: Path) -> None:
    """The kinds that are known come first; what failed is no answer."""
    failed = replace(GROWN, exit=Exit.ERROR, failure=Failure(kind="timeout", stage="episode", message=""))
    records = read_trajectories(recorded(tmp_path, GROWN, failed, rewards=[REWARD, None]))
    found = memory_table.right_by_kind(records)
    assert list(found.items()) == [("current", [True]), ("history", [False]), ("", [False])]


def test_what_is_no_memory_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no eval\.json"):
        memory_table.tables([tmp_path])
    (tmp_path / "eval.json").write_text('{"figures": {"headline": ["correctness"]}}', encoding="utf-8")
    with pytest.raises(SystemExit, match="is no run of environment=memory"):
        memory_table.tables([tmp_path])
