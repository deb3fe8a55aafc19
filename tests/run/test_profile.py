"""What is observed of the parts of a profiled run, and the table of where its time went."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from agentgrpo.core.stages import Stage, StageClock, calling, calls_on
from agentgrpo.records.screen import Screen
from agentgrpo.run.profile import report_profile
from tests.environments.scripted import ANSWER, HOP_1, play


class Steps:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10**9
        return self.now


async def test_a_turn_of_an_episode_is_counted_as_generation_and_its_calls_as_tools() -> None:
    """On the clock that the episodes run on, and nowhere else: two run side by side, of which one is profiled."""
    clock = StageClock(now_ns=Steps())

    async def episode() -> None:
        with calling(Stage.GENERATION):
            await asyncio.sleep(0)
        with calling(Stage.TOOLS):
            await asyncio.sleep(0)

    with clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION, Stage.TOOLS)):
        with calls_on(clock):
            watched = asyncio.create_task(episode())
        await asyncio.gather(watched, asyncio.create_task(episode()))
    assert {k: v for k, v in clock.lap().items() if v} == {
        "total": 7.0,
        "generation": 1.0,
        "tools": 1.0,
        "queue": 3.0,
        "other": 2.0,
    }


async def test_the_calls_of_a_real_episode_are_counted() -> None:
    clock = StageClock(now_ns=Steps())
    with clock.stage(Stage.QUEUE, calls_first=(Stage.GENERATION, Stage.TOOLS)), calls_on(clock):
        played = await play(HOP_1, ANSWER)
    assert played.web is not None
    found = clock.lap()
    assert (found["generation"], found["tools"]) == (len(played.engine.keys), len(played.web.calls))


def row(total: float, **seconds: float) -> dict[str, float]:
    return {"total": total} | {stage.value: seconds.get(stage.value, 0.0) for stage in Stage}


def test_the_table_has_the_largest_first_and_the_95th_percentile() -> None:
    rows = [row(1.0, generation=0.25, backward=0.5, other=0.25) for _ in range(18)]
    rows += [row(3.0, generation=3.0), row(9.0, generation=9.0)]
    out = io.StringIO()
    report_profile(Screen("quiet", Console(file=out, width=120)), rows)
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]
    assert cells[:3] == [
        ["generation", "0.8250", "55.0%"],
        ["backward", "0.4500", "30.0%"],
        ["other", "0.2250", "15.0%"],
    ]
    assert cells[-1] == ["total", "1.5000", "100.0%"]
    assert len(cells) == len(Stage) + 1
    assert "time of a step, mean of 20" in out.getvalue()
    assert "step time: mean 1.500 s, p95 3.000 s, longest 9.000 s" in out.getvalue()


def test_no_rows_no_table() -> None:
    out = io.StringIO()
    report_profile(Screen("quiet", Console(file=out)), [])
    assert out.getvalue() == ""
