"""A policy in the environments of a suite: each attempt runs in the environment of the task's suite member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Environment
from agentgrpo.environments.conversation import Driven
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, EnvironmentFactory, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tasks.suite import member_of


@dataclass(frozen=True, kw_only=True, eq=False)
class SuiteEnvironments(EnvironmentDefaults):
    """The environments of all members behind one interface; implements environments.factory.EnvironmentFactory."""

    name = "suite"
    limits = TurnLimits()
    """No limits at this level: each member has its own."""
    members: Mapping[str, EnvironmentFactory]
    figures: Figures

    def make(self, attempt: Attempt) -> Environment | Driven:
        return self.members[member_of(attempt.task)].make(attempt)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        self.members[member_of(task)].rehearse(task, max_context=max_context)

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        return self.members[member_of(task)].opening_tokens(task, most=most)

    def counts(self) -> Mapping[str, float]:
        total: Counter[str] = Counter()
        for environment in self.members.values():
            total.update(environment.counts())
        return dict(total)

    async def probe(self) -> None:
        for environment in self.members.values():
            await environment.probe()

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # close every member, even if one fails
            for environment in self.members.values():
                closing.push_async_callback(environment.close)


@dataclass(frozen=True, kw_only=True, eq=False)
class SuiteRunner(PolicyRunner):
    """One policy, run in the environment and format of the member that the task belongs to; `renderer` is the first
    member's renderer."""

    members: Mapping[str, PolicyRunner]

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """See environments.factory.Runner."""
        return await self.of(member_of(task)).run(
            task, sample_index=sample_index, stream=stream, sampling=sampling, attempt=attempt
        )

    def of(self, member: str) -> PolicyRunner:
        """Return the member's runner with the current engine of this runner."""
        return replace(self.members[member], engine=self.engine)
