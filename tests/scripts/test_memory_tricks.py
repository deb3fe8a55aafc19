"""No scripted trick earns more from a memory's reward than its true content does by itself."""

from __future__ import annotations

import asyncio

import memory_tricks
import pytest
from memory_tricks import ANCHORS, PRESETS, TRICKS, Table, lines, measured

from agentgrpo.worlds.diary.dataset import Diaries

KNOWING = {name for name in TRICKS if "true note" in name or name == "the surest note, every day"}


@pytest.fixture(scope="module", params=["plain", pytest.param("hard", marks=pytest.mark.slow)])
def tables(request: pytest.FixtureRequest) -> dict[str, Table]:
    world = Diaries(world_seed=3, train_diaries=1, dev_diaries=1, hard=request.param == "hard")
    return asyncio.run(measured(world, 4 if request.param == "hard" else 2, PRESETS))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_trick_earns_more_than_its_true_content(preset: str, tables: dict[str, Table]) -> None:
    table = tables[preset]
    silence = table.rewards["silence"]
    assert silence <= 0
    for name in TRICKS:
        assert table.rewards[name] <= table.alone[name] + 1e-9, name
        if name not in KNOWING:
            assert table.rewards[name] == pytest.approx(silence), name


@pytest.mark.parametrize("preset", PRESETS)
def test_who_knows_more_earns_more(preset: str, tables: dict[str, Table]) -> None:
    earned = tables[preset].rewards
    assert earned["silence"] < earned["a true note, then silence"] < earned["perfect memory"]
    assert earned["silence"] < earned["honest rule"] < earned["perfect memory"]
    assert max(earned[name] for name in TRICKS) <= earned["perfect memory"] + 1e-9


def test_the_table_has_a_line_for_each_writer(tables: dict[str, Table]) -> None:
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines(tables)]
    assert names[2:] == [*ANCHORS, *TRICKS]


@pytest.mark.slow
def test_the_script_prints_a_table_for_each_world(capsys: pytest.CaptureFixture[str]) -> None:
    memory_tricks.main(["--worlds", "plain", "--seeds", "3", "--presets", "memory", "--diaries", "1"])
    assert "plain, world seed 3, 1 diaries" in capsys.readouterr().out
