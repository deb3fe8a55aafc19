"""Evaluations of the current weights: the dev score during training, and the full comparison at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentgrpo.config.settings import EvalSettings, RolloutSettings
from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import DataError, line_of
from agentgrpo.core.types import ScoredGroup, Task
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.judges.base import AnswerJudge, close_judge, counts_of
from agentgrpo.records.run_dir import EVAL
from agentgrpo.records.screen import Screen
from agentgrpo.records.seals import seal, seals_of, signed
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rollout.groups import run_groups
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.scoring import refuse_failures, score_groups
from agentgrpo.run.evaluate import Evaluation, Scorecard, evaluate
from agentgrpo.run.judging import refuse_fooled_judge
from agentgrpo.services.meter import Meter
from agentgrpo.tasks.suite import of_member
from agentgrpo.training.process_group import Alone, ProcessGroup, once, share

MODES = ("greedy", "sampled")


@runtime_checkable
class Closing(Protocol):
    async def close(self) -> None: ...


@runtime_checkable
class Billing(Protocol):
    """An Engine with a bill."""

    counts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """Evaluates the weights that the runner's engine holds at the time of the call."""

    runner: PolicyRunner
    engine: Engine
    """The policy's engine; closed by `close`."""
    equipment: Sequence[Closing]
    """Retrievers, tools and the like of the environment; also closed by `close`."""
    oracle: Runner | None
    """Runs the data set's scripted ideal policy in the same loop; None without such a policy."""
    judge: AnswerJudge
    reward: GroupReward
    tasks: Sequence[Task]
    dev_tasks: Sequence[Task]
    sampling: SamplingParams
    settings: EvalSettings
    rollout: RolloutSettings
    max_error_fraction: float
    run_dir: Path
    seed: int
    screen: Screen
    meter: Meter | None = None
    """Gate for all calls to external services; closed by `close`."""
    world: ProcessGroup = field(default_factory=Alone)
    record_tokens: bool = True
    """See run.record_tokens."""
    members: Mapping[str, Examiner] = field(default_factory=dict)
    """For a suite: each member evaluates its own tasks in its own environment."""
    sync: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Loads this policy's weights into the engine; None = the engine already holds them."""

    async def begin(self) -> None:
        """Prepare for evaluating weights that this process did not train."""
        if self.sync is not None:
            await self.sync()

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # closes every part, even if another fails
            if self.meter is not None:
                closing.push_async_callback(self.meter.close)
            for part in (self.engine, *self.equipment):
                closing.push_async_callback(part.close)
            closing.push_async_callback(close_judge, self.judge)

    async def _scorecard(
        self, runner: Runner, tasks: Sequence[Task], mode: str, split: str, *, is_shown: bool = False
    ) -> tuple[Scorecard, list[ScoredGroup]]:
        """is_shown: finished episodes advance the screen's progress bar."""
        greedy = mode == "greedy"
        return await evaluate(
            runner=runner,
            judge=self.judge,
            reward=self.reward,
            tasks=tasks,
            sampling=replace(self.sampling, temperature=0.0 if greedy else self.settings.temperature),
            stream=f"eval/{split}/{mode}",
            samples_per_task=self._samples(mode),
            prices=self.settings.prices,
            rollout=self.rollout,
            max_error_fraction=self.max_error_fraction,
            world=self.world,
            on_episode=self.screen.advance if is_shown else lambda: None,
        )

    async def _of_policy(
        self, tasks: Sequence[Task], mode: str, split: str, *, is_shown: bool = False
    ) -> tuple[Scorecard, list[ScoredGroup]]:
        """Return `_scorecard` for the policy, over all environments if this is a suite."""
        if not self.members:
            return await self._scorecard(self.runner, tasks, mode, split, is_shown=is_shown)
        cards, scored = {}, []
        for name, member in self.members.items():
            own = of_member(tasks, name)
            if len(own) < 2:
                raise DataError(
                    f"suite.{name} has {len(own)} of the {len(tasks)} tasks that are evaluated, and needs 2; raise "
                    "run.eval.tasks and run.eval_tasks, or give it more tasks"
                )
            cards[name], groups = await member._scorecard(member.runner, own, mode, split, is_shown=is_shown)
            scored += groups
        return Scorecard.of_suite(cards, self.runner.figures), scored

    async def _refuse_fooled(self, tasks: Sequence[Task], step: int) -> None:
        for name, member in self.members.items():
            await member._refuse_fooled(of_member(tasks, name), step)
        if not self.members:
            await refuse_fooled_judge(self.judge, tasks, seed=step, world=self.world)

    def _samples(self, mode: str) -> int:
        """Return the samples per task."""
        return 1 if mode == "greedy" else self.settings.samples_per_task

    def _own_episodes(self, modes: Iterable[str]) -> int:
        """Return how many episodes of an evaluation in these modes this process runs."""
        tasks = len(range(self.world.rank, len(self.tasks), self.world.size))
        return tasks * sum(map(self._samples, modes))

    async def dev_score(self, step: int) -> dict[str, float]:
        """Return tags dev/* of a greedy pass over the dev tasks. Raises GuardHalt if the judge can be fooled."""
        await self._refuse_fooled(self.dev_tasks, step)
        card, _ = await self._of_policy(self.dev_tasks, "greedy", "dev")
        tags = {f"dev/{name}": value for name, value in card.without(card.failed).means().items()}
        for member, own in card.members.items():
            tags |= {f"suite/{member}/dev/{name}": v for name, v in own.without(own.failed).means().items()}
        return tags

    async def scorecards(self, name: str, *, step: int = 0) -> dict[str, Scorecard]:
        """Evaluate both modes over the test tasks, recording trajectories in `eval-<name>-<mode>.jsonl`."""
        await self._refuse_fooled(self.tasks, step)
        self.screen.stage(f"evaluating {name}", self._own_episodes(MODES))
        cards = {}
        for mode in MODES:
            cards[mode], scored = await self._of_policy(self.tasks, mode, "test", is_shown=True)
            self._record(f"eval-{name}-{mode}", scored, step=step)
        return cards

    async def one(self) -> Sequence[ScoredGroup]:
        """Run a greedy episode for each test task, without a comparison; recorded as `eval-end-greedy`."""
        sampling = replace(self.sampling, temperature=0.0)

        async def scored_groups(own: Sequence[Task]) -> list[ScoredGroup]:
            groups = await run_groups(
                self.runner,
                own,
                group_size=1,
                stream="eval/test/greedy",
                sampling=sampling,
                max_concurrent_episodes=self.rollout.max_concurrent_episodes,
                episode_timeout_s=self.rollout.episode_timeout_s,
                episode_retries=self.rollout.episode_retries,
            )
            return await score_groups(self.reward, groups)

        scored = await share(self.world, self.tasks, scored_groups)
        refuse_failures(scored, max_error_fraction=self.max_error_fraction)
        self._record("eval-end-greedy", scored)
        return scored

    def _record(self, name: str, scored: Sequence[ScoredGroup], *, step: int = 0) -> None:
        path = self._trajectories(name)

        def write() -> None:
            write_trajectories(
                path,
                scored=scored,
                advantages=[[None] * len(g.rewards) for g in scored],
                dropped=[None] * len(scored),
                step=step,
                seed=self.seed,
                split="test",
                environment=self.runner.environment.name,
                record_tokens=self.record_tokens,
            )
            seal(self.run_dir, path)

        once(self.world, write)

    def _trajectories(self, name: str) -> Path:
        return self.run_dir / "trajectories" / f"{name}.jsonl"

    def kept_scorecards(self, name: str, key: str) -> dict[str, Scorecard] | None:
        """Return the scorecards that `keep_scorecards` wrote under the same `key` (a hash of the evaluation's inputs),
        else None. Raises DataError if the file is damaged."""
        path = scorecards_path(self.run_dir, name)
        if not path.is_file():
            return None
        found, cards = read_scorecards(self.run_dir, name)
        if found != key:
            return None
        if path.name not in seals_of(self.run_dir):  # written after the checkpoint that the run resumed from
            seal(self.run_dir, *(self._trajectories(f"eval-{name}-{mode}") for mode in MODES), path)
        return cards

    async def keep_scorecards(self, name: str, key: str, *, step: int = 0) -> dict[str, Scorecard]:
        """Run `scorecards` and write the result to `eval-<name>.json`."""
        cards = await self.scorecards(name, step=step)
        row = {"key": key, "cards": {mode: card.to_json() for mode, card in cards.items()}}
        path = scorecards_path(self.run_dir, name)

        def write() -> None:
            write_atomic(path, json.dumps(row).encode())
            seal(self.run_dir, path)

        once(self.world, write)
        return cards

    async def _baselines(self, trained: Scorecard, member: str) -> tuple[dict[str, Scorecard], dict[str, str]]:
        """Return scorecards and notes of the environment's baselines, which are given what `trained` spent. Their
        trajectories go to `eval-<name>-greedy.jsonl`, in a suite to `eval-<member>-<name>-greedy.jsonl`."""
        runners = self.runner.environment.baselines(partial(spent, trained))
        if not runners:
            return {}, {}
        self.screen.stage("evaluating baselines", self._own_episodes(["greedy"] * len(runners)))
        cards = {}
        for name, runner in runners.items():
            cards[name], scored = await self._scorecard(runner, self.tasks, "greedy", name, is_shown=True)
            self._record("-".join(filter(None, ("eval", member, name, "greedy"))), scored)
        return cards, {name: runner.note for name, runner in runners.items() if runner.note}

    async def compare(self, baseline: Mapping[str, Scorecard], trained: Mapping[str, Scorecard]) -> Evaluation:
        """Compare both policies' scorecards, with the oracle's and the environment's baselines if there are any, and
        write eval.json."""
        evaluation = await self._evaluation(baseline, trained)
        bills = {
            "judge": counts_of([self.judge]),
            "agent": self.runner.environment.counts(),
        }  # in this process, since it started
        bills["engine"] = self.engine.counts if isinstance(self.engine, Billing) else {}
        bills["spend"] = {} if self.meter is None else once(self.world, self.meter.summary)  # the whole run so far
        result = evaluation.to_json() | {name: dict(bill) for name, bill in bills.items() if bill}
        text = signed(result).encode()
        once(self.world, lambda: write_atomic(self.run_dir / EVAL, text))
        return evaluation

    async def _evaluation(
        self, baseline: Mapping[str, Scorecard], trained: Mapping[str, Scorecard], member: str = ""
    ) -> Evaluation:
        oracle = None
        if self.oracle is not None:
            oracle, _ = await self._scorecard(self.oracle, self.tasks, "greedy", "oracle")
        baselines, notes = await self._baselines(trained["greedy"], member)
        return Evaluation(
            figures=self.runner.figures,
            baseline=baseline,
            trained=trained,
            oracle=oracle,
            criterion=self.settings.criterion,
            margin=self.settings.margin,
            min_discrimination=self.settings.min_discrimination,
            baselines=baselines,
            notes=notes,
            members={
                name: await of._evaluation(_of_member(baseline, name), _of_member(trained, name), name)
                for name, of in self.members.items()
            },
        )


def _of_member(cards: Mapping[str, Scorecard], name: str) -> dict[str, Scorecard]:
    return {mode: card.members[name] for mode, card in cards.items()}


def scorecards_path(run_dir: Path, name: str) -> Path:
    return run_dir / f"eval-{name}.json"


def read_scorecards(run_dir: Path, name: str) -> tuple[str, dict[str, Scorecard]]:
    """Return the key and, by mode, the scorecards that `keep_scorecards` wrote. Raises DataError if they are damaged or
    missing."""
    path = scorecards_path(run_dir, name)
    known = seals_of(run_dir).get(path.name)
    if known is not None and (problem := known.problem(run_dir)) is not None:
        raise DataError(problem)
    try:
        row = json.loads(path.read_bytes())
        return str(row["key"]), {mode: Scorecard.from_json(card) for mode, card in row["cards"].items()}
    except FileNotFoundError as e:
        raise DataError(f"{path}, the scores by task, is missing; evaluate again, in a new run") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DataError(f"{path} is damaged: {line_of(e)}") from e


def spent(card: Scorecard, column: str) -> dict[str, float]:
    """Return kind of task -> mean of `column` over the tasks that did not fail; "" = all kinds (environments.base)."""
    kept = card.without(card.failed)
    return {kind: kept.means_of(kind)[column] for kind in sorted(set(kept.kinds))} | {"": kept.means()[column]}


def first(tasks: Sequence[Task], count: int, *, split: str) -> Sequence[Task]:
    """Return the first `count` tasks of a split. Raises DataError if the split is empty."""
    if not tasks:
        off = {"test": "run.final_eval=false", "dev": "run.eval_every=0"}.get(split, "")
        raise DataError(f"the split '{split}' is empty; give the data set one, or switch its evaluation off: {off}")
    return tasks[:count]
