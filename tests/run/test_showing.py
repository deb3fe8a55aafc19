"""How far long work is: episodes of an evaluation, units of a warm start, with and without a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from agentgrpo.config.settings import EvalSettings
from agentgrpo.core.types import RewardResult, ScoredGroup
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.records.screen import Screen
from agentgrpo.run.report import show_episode, show_stages
from tests.builders import episode, group, task
from tests.run.test_measured import NAMES, TASKS, Diaries, compared


def slow_screen() -> tuple[Screen, io.StringIO]:
    """Plain, and by its clock every unit takes long enough for a line."""
    out, ticks = io.StringIO(), count()
    return Screen("plain", Console(file=out, width=80), now=lambda: 60.0 * next(ticks)), out


async def test_an_evaluation_counts_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.records.screen.PLAIN_SHARE", 0.0)  # every one has a line
    screen, out = slow_screen()
    await compared(tmp_path, Diaries(ClozeReader()), screen)
    of_policy, of_baselines = len(TASKS) * (1 + EvalSettings().samples_per_task), len(TASKS) * len(NAMES)
    for title, total in (("evaluating end", of_policy), ("evaluating baselines", of_baselines)):
        assert f"{title}: {total} to do\n" in out.getvalue()
        counted = re.findall(rf"^{title}: (\d+)/{total}, ", out.getvalue(), re.MULTILINE)
        assert [*map(int, counted)] == [*range(1, total + 1)]


@pytest.mark.parametrize(("references", "known"), [(("Castin", "it"), "reference: Castin  "), ((), "")])
def test_an_episode_is_shown_with_its_reference_where_there_is_one(
    references: tuple[str, ...], known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Screen, "trajectory", lambda _, text: shown.append(text))
    one = episode(replace(task(), references=references))
    reward = RewardResult(total=0.5, terms={}, dimensions={}, correctness=0.0)
    show_episode(Screen("quiet"), [ScoredGroup(group=group(one), rewards=(reward,), failures=(None,))])
    assert shown == [f"\n{known}reward: +0.500"]


def test_a_warm_start_is_not_silent_without_a_terminal() -> None:
    out, time = io.StringIO(), [0.0]
    show = show_stages(Screen("plain", Console(file=out, width=80), now=lambda: time[0]))
    show("tokenizer", 0, 1)
    for done in range(0, 400, 10):
        time[0] += 2.0
        show("warm start", done, 400)
    said, *lines = out.getvalue().splitlines()
    assert said == "note: the start weights are made before the first step: minutes, once; a cache keeps them"
    assert lines == [
        "tokenizer: 1 to do",
        "warm start: 400 to do",
        "warm start: 50/400, 12 %, 1:10 left",
        "warm start: 100/400, 25 %, 1:00 left",
        "warm start: 150/400, 37 %, 0:50 left",
        "warm start: 200/400, 50 %, 0:40 left",
        "warm start: 250/400, 62 %, 0:30 left",
        "warm start: 300/400, 75 %, 0:20 left",
        "warm start: 350/400, 87 %, 0:10 left",
    ]
