"""Code in processes of its own: what it does there, nobody here notices."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from agentgrpo.core.errors import ConfigError, EnvironmentFailure
from agentgrpo.environments.published.aside import Aside, Refused, refusal, refuse_missing

Make = Callable[..., Aside]


@pytest.fixture
def aside() -> Iterator[Make]:
    made: list[Aside] = []

    def make(name: str, **options: float) -> Aside:
        made.append(Aside(f"tests.environments.published.strange:{name}", what="the game", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


async def test_what_it_draws_is_its_own(aside: Make) -> None:
    """Of the key alone: not of what was drawn there before, and nothing of ours is used up."""
    random.seed(5)
    before, call = random.getstate(), aside("draws").call
    first = await call({"times": 2}, key="a")
    assert first != await call({"times": 2}, key="b")
    assert first == await call({"times": 2}, key="a")
    assert random.getstate() == before


async def test_a_key_has_its_process(aside: Make) -> None:
    several = aside("process", processes=3)
    first = {key: await several.call({}, key=key) for key in map(str, range(20))}
    assert len({*first.values()}) == 3
    assert first == {key: await several.call({}, key=key) for key in first}


async def test_nothing_is_left_of_it(aside: Make) -> None:
    forgotten = Aside("tests.environments.published.strange:process", what="the game")
    pids = [await forgotten.call({}), await aside("process").call({})]
    del forgotten
    assert [psutil.pid_exists(pid) for pid in pids] == [False, True]


async def test_its_errors_are_one_line(aside: Make) -> None:
    with pytest.raises(Refused) as caught:
        await aside("fails").call({})
    assert str(refusal("environment.x=1", caught.value)) == "environment.x=1: no such thing; allowed is another"


async def test_the_end_of_its_process_is_a_failure(aside: Make) -> None:
    with pytest.raises(EnvironmentFailure, match=r"the game: .*exit code 3") as caught:
        await aside("ends").call({})
    assert caught.value.kind == "crash"


async def test_a_child_that_it_forks_answers_nobody(aside: Make) -> None:
    """Neither its own call nor those that follow, which would get the reward of another attempt."""
    call = aside("forks").call
    found = [await call({"n": n}) for n in range(4)]
    assert [n for n, _ in found] == [0, 1, 2, 3]
    assert len({pid for _, pid in found}) == 1


async def test_what_hangs_is_ended_and_holds_up_nobody(aside: Make) -> None:
    hanging = asyncio.create_task(aside("hangs", timeout_s=1.0).call({}))
    assert len(await aside("draws").call({"times": 1})) == 1
    with pytest.raises(
        EnvironmentFailure, match=r"longer than 1 s and was ended; raise environment\.timeout_s"
    ) as late:
        await hanging
    assert late.value.kind == "timeout"


async def test_calls_do_not_wait_for_what_computes_on_the_loop(aside: Make) -> None:
    """One after the other in one process, while every turn of the loop takes 50 ms, as an engine's steps do."""
    turns, call = 0, aside("draws").call
    await call({"times": 1})  # the process is up
    calls = asyncio.gather(*(call({"times": 1}, key=str(i)) for i in range(100)))
    while not calls.done():
        time.sleep(0.05)  # noqa: ASYNC251 - that is what is tested
        turns += 1
        await asyncio.sleep(0)
    assert len({tuple(drawn) for drawn in await calls}) == 100
    assert turns < 50  # each of them would take one or two


def test_a_package_that_is_missing() -> None:
    with pytest.raises(
        ConfigError,
        match=r"environment=no_such_package needs .* \(no_such_package\): pip install 'agentgrpo\[no-such-package\]'",
    ):
        refuse_missing("no_such_package")
