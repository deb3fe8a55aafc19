"""Which server gets an episode."""

from __future__ import annotations

import asyncio

import pytest

from agentgrpo.core.concurrency import time_limit
from agentgrpo.core.errors import EngineError, NoServer
from agentgrpo.engines.remote import server as pool_module
from agentgrpo.engines.remote.server import Access, Pool, SamplingServer


def servers(count: int) -> list[SamplingServer]:
    return [SamplingServer(f"http://127.0.0.1:{i + 1}", Access()) for i in range(count)]


class Doors:
    """Lets in who is not in `shut`."""

    def __init__(self) -> None:
        self.shut: set[str] = set()
        self.tried: list[tuple[str, bool]] = []

    async def join(self, server: SamplingServer, is_new: bool) -> None:
        self.tried.append((server.url, is_new))
        if server.url in self.shut:
            raise EngineError("shut", kind="transport")


async def test_an_episode_stays_and_a_new_one_goes_where_the_fewest_are() -> None:
    pool = Pool(servers(3), join=Doors().join, wait_s=0)
    await pool.renew()
    homes = {episode: await pool.server_for(episode) for episode in range(7)}
    assert [pool.servers.index(homes[i]) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [await pool.server_for(i) for i in range(7)] == list(homes.values())
    for episode in (1, 4):
        pool.release(episode)
    assert await pool.server_for(7) is pool.servers[1]
    with pool.servers[1].at_work(), pool.servers[1].at_work():
        assert await pool.server_for(8) is pool.servers[1]
    await pool.close()


async def test_episodes_of_a_server_that_is_left_out_go_elsewhere_and_it_comes_back() -> None:
    doors = Doors()
    pool = Pool(servers(2), join=doors.join, wait_s=0)
    await pool.renew()
    assert doors.tried == [(s.url, True) for s in pool.servers]
    first = await pool.server_for("a")
    doors.shut = {first.url}
    pool.leave_out(first, EngineError("gone"))
    pool.leave_out(first, EngineError("gone"))
    assert await pool.server_for("a") is not first
    await asyncio.sleep(0.01)
    assert doors.tried[2:] == [(first.url, False)]  # once, and with the weights that it may still have
    doors.shut = set()
    await pool.renew()
    assert pool.serving == list(pool.servers)
    await pool.close()


async def test_who_was_stale_takes_the_weights_anew() -> None:
    doors = Doors()
    pool = Pool(servers(1), join=doors.join, wait_s=1)
    await pool.renew()
    pool.leave_out(pool.servers[0], EngineError("old", kind="stale"))
    await pool.server_for("a")
    assert doors.tried[1:] == [(pool.servers[0].url, True)]
    await pool.close()


async def test_when_all_have_been_out_for_so_long_calls_fail_at_once() -> None:
    doors = Doors()
    pool = Pool(servers(2), join=doors.join, wait_s=0.05)
    doors.shut = {s.url for s in pool.servers}
    with pytest.raises(NoServer, match=r"no server for 0\.05 s"):
        await pool.renew()
    began = asyncio.get_running_loop().time()
    with pytest.raises(NoServer):
        await pool.server_for("a")
    with pytest.raises(NoServer):  # they have been tried again, and have been out for long enough
        await pool.renew()
    assert asyncio.get_running_loop().time() - began < 0.05
    await pool.close()


async def test_servers_that_were_in_have_the_whole_wait_from_when_they_are_lost() -> None:
    doors = Doors()
    pool = Pool(servers(1), join=doors.join, wait_s=0.1)
    await pool.renew()
    await asyncio.sleep(0.15)  # an update, which is no wait
    doors.shut = {pool.servers[0].url}
    began = asyncio.get_running_loop().time()
    with pytest.raises(NoServer):
        await pool.renew()
    assert asyncio.get_running_loop().time() - began >= 0.1
    await pool.close()


async def test_an_episodes_time_limit_leaves_out_the_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.2)
    doors = Doors()
    pool = Pool(servers(1), join=doors.join, wait_s=10)
    await pool.renew()
    doors.shut = {pool.servers[0].url}
    pool.leave_out(pool.servers[0], EngineError("gone"))
    await asyncio.sleep(0.01)
    doors.shut = set()
    async with time_limit(0.05):
        assert await pool.server_for("a") is pool.servers[0]
    with pytest.raises(TimeoutError):
        async with time_limit(0.05):
            await asyncio.sleep(1)
    await pool.close()


async def test_a_bug_in_joining_leaves_the_server_out_with_its_text() -> None:
    async def breaks(server: SamplingServer, is_new: bool) -> None:
        raise ZeroDivisionError("oops")

    pool = Pool(servers(1), join=breaks, wait_s=0.01)
    with pytest.raises(NoServer, match="ZeroDivisionError: oops"):
        await pool.renew()
    await pool.close()
