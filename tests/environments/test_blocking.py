"""Plain functions of others block: each attempt has a thread of its own, and a call that never returns costs only
its own attempt."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Episode, Exit, Message, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Observation, Turn
from agentgrpo.rewards.own import EnvironmentTerm
from agentgrpo.rollout.groups import run_groups
from tests.environments.program.played import END, Client, SpellingEngine, environments, play
from tests.environments.test_own import ADD, DONE, episode_of, runner

MANY = 64
PATIENCE_S = 120.0
"""Of a wait that would not end otherwise; no test takes as long."""
LIMIT_S = 4.0
"""So long that only a method that never returns is late, on a busy machine too."""
TASK = Task(id="t", messages=(Message(role="user", content="Go"),), references=())


async def episodes_of(kind: type, turns: Sequence[str], *, count: int, **given: Any) -> Sequence[Episode]:
    [group] = await run_groups(
        runner(kind, *turns, **given),
        [TASK],
        group_size=count,
        stream="test",
        sampling=SamplingParams(max_tokens=64),
    )
    return group.episodes


class Meeting:
    """Every call waits until all other attempts have made theirs."""

    everybody = threading.Barrier(MANY)

    def __init__(self) -> None:
        self.everybody.wait(PATIENCE_S)

    def reset(self, **columns: Any) -> None:
        self.everybody.wait(PATIENCE_S)

    def add(self, item: str, count: int = 1) -> str:
        """Adds."""
        return item

    def get_reward(self) -> float:
        self.everybody.wait(PATIENCE_S)
        return 1.0

    def close(self) -> None:
        self.everybody.wait(PATIENCE_S)


async def test_blocking_attempts_are_under_way_at_once_however_many_there_are() -> None:
    episodes = await episodes_of(Meeting, [DONE] * MANY, count=MANY)
    assert [episode.outcome for episode in episodes] == [{"reward": 1.0}] * MANY


async def test_blocking_programs_are_under_way_at_once_however_many_there_are() -> None:
    everybody = threading.Barrier(MANY)

    def agent(base_url: str) -> float:
        everybody.wait(PATIENCE_S)
        asyncio.run(Client(base_url).post({"messages": [{"role": "user", "content": "hello"}]}))
        return 1.0

    made = environments(agent)
    engine = SpellingEngine(lambda context: f"yes{END}")
    episodes = await asyncio.gather(*(play(made, engine, sample_index=i) for i in range(MANY)))
    assert [episode.metrics["reward"] for episode in episodes] == [1.0] * MANY


class Leased:
    """Two of what each attempt needs from its reset to its close."""

    free = threading.BoundedSemaphore(2)

    def reset(self, **columns: Any) -> None:
        assert self.free.acquire(timeout=PATIENCE_S)

    def add(self, item: str, count: int = 1) -> str:
        """Adds."""
        return item

    def get_reward(self) -> float:
        return 1.0

    def close(self) -> None:
        self.free.release()


async def test_what_two_attempts_can_have_at_a_time_all_others_get_later() -> None:
    episodes = await episodes_of(Leased, [ADD] * 4 + [DONE] * MANY, count=8)
    assert [episode.failure for episode in episodes] == [None] * 8


class Table:
    """A connection belongs to the thread that has opened it."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def reset(self, **columns: Any) -> None:
        self.connection.execute("create table bought (item text, count int)")

    def add(self, item: str, count: int = 1) -> str:
        """Adds."""
        self.connection.execute("insert into bought values (?, ?)", (item, count))
        return "done"

    def get_reward(self) -> float:
        return float(self.connection.execute("select sum(count) from bought").fetchone()[0])

    def close(self) -> None:
        self.connection.close()


async def test_an_object_is_called_in_one_thread_its_constructor_included() -> None:
    episode = await episode_of(Table, ADD, ADD, DONE)
    assert (episode.failure, episode.outcome) == (None, {"reward": 4.0})


class Hanging:
    """The first object never returns from `where`."""

    made: ClassVar[list[Hanging]] = []
    one_by_one = threading.Lock()
    never = threading.Event()

    def __init__(self, where: str) -> None:
        self.is_closed = False
        with self.one_by_one:
            self.where = "" if self.made else where
            self.made.append(self)
        self._at("constructor")

    def _at(self, where: str) -> None:
        if where == self.where:
            self.never.wait()

    def reset(self, **columns: Any) -> None:
        self._at("reset")

    def add(self, item: str, count: int = 1) -> str:
        """Adds."""
        return item

    def get_reward(self) -> float:
        self._at("get_reward")
        return 1.0

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("where", "named", "is_closed"),
    [
        ("constructor", "Hanging.__init__", False),
        ("reset", "Hanging.reset", True),
        ("get_reward", "Hanging.get_reward", True),
    ],
)
async def test_a_method_that_never_returns_costs_its_attempt_and_is_named(
    where: str, named: str, is_closed: bool
) -> None:
    Hanging.made, Hanging.never = [], threading.Event()
    episodes = await episodes_of(Hanging, [DONE] * 8, count=4, where=where, timeout_s=LIMIT_S)
    [late] = [episode for episode in episodes if episode.failure is not None]  # whose thread was the first
    assert late.failure is not None
    assert (late.failure.kind, late.exit) == ("timeout", Exit.ERROR)
    assert "not done within 4 s, at test_blocking.py:" in late.failure.message
    assert f" in {named}; environment.timeout_s is the limit" in late.failure.message
    assert [episode.outcome for episode in episodes if episode is not late] == [{"reward": 1.0}] * 3
    assert [made.is_closed for made in Hanging.made] == [is_closed, True, True, True]
    Hanging.never.set()


async def test_a_step_of_ones_own_that_never_returns_is_named_too() -> None:
    class Sleeping:
        async def reset(self, task: Task) -> str:
            return "Go."

        async def step(self, turn: Turn) -> Observation:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    [episode] = await episodes_of(Sleeping, ["a"], count=1, timeout_s=LIMIT_S)
    assert episode.failure is not None
    assert "Sleeping.step: not done within 4 s; environment.timeout_s is the limit" in episode.failure.message


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_limit_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"environment.timeout_s=.*; more than 0, or null"):
        runner(Leased, timeout_s=seconds)


class Paying:
    """Sets `reward` when it is called, and never else."""

    def add(self, item: str, count: int = 1) -> str:
        """Adds."""
        self.reward = 1.0
        return item


async def test_a_reward_that_is_set_where_all_is_right_is_0_elsewhere() -> None:
    assert (await episode_of(Paying, ADD, DONE)).outcome == {"reward": 1.0}
    unpaid = await episode_of(Paying, DONE)
    assert unpaid.outcome == {"reward": 0.0}
    assert EnvironmentTerm("reward", weight=1.0)(unpaid, 0.0) == 0.0
