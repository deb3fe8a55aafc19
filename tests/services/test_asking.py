"""Who asks: each attempt at an episode has its own account, and a step's calls know their step."""

from __future__ import annotations

import asyncio

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.rollout.groups import run_groups
from agentgrpo.services.asking import Account, asking_step, current_account, current_step
from tests.builders import episode, task


class Asking:
    """A Runner whose first attempt at each episode fails; it asks from tasks of its own."""

    def __init__(self) -> None:
        self.seen: list[tuple[int | None, int, Account]] = []

    note = ""
    figures = SEARCH_FIGURES

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        async def ask() -> None:
            account = current_account()
            assert account is not None
            account.calls["web"] += 1
            await asyncio.sleep(0)
            self.seen.append((current_step(), sample_index, account))

        await asyncio.gather(ask(), ask())
        if sum(index == sample_index for _, index, _ in self.seen) <= 2:
            raise RetrieverError("down", kind="timeout")
        return episode(task, sample_index=sample_index)


async def test_accounts_and_steps() -> None:
    runner = Asking()
    with asking_step(7):
        groups = await run_groups(
            runner, [task()], group_size=2, stream="train/7", sampling=SamplingParams(), episode_retries=1
        )
    assert [e.failure for e in groups[0].episodes] == [None, None]
    accounts = {id(account): account for _, _, account in runner.seen}
    assert ({step for step, _, _ in runner.seen}, len(runner.seen)) == ({7}, 8)
    assert [account.calls["web"] for account in accounts.values()] == [2, 2, 2, 2]
    assert (current_step(), current_account()) == (None, None)
