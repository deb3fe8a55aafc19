"""Whole training runs of a random model in a second: everything real but the task, the environment and the reward."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Message, Piece, RewardResult, ScoredGroup, Task
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.checkpoints import restore
from agentgrpo.run.context import RunContext
from agentgrpo.run.guards import Guard, Guards
from agentgrpo.run.parts import Parts, Progress, of_optimizer
from agentgrpo.run.train import train
from agentgrpo.tasks.order import TaskOrder, curriculum_of
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.reference import frozen_reference
from agentgrpo.training.trainer import Trainer
from tests import builders
from tests.engines import tiny

Before = Callable[[str, Task, int], Awaitable[None]]
"""(stream, task, sample index), awaited before an episode samples."""
Grade = Callable[[Episode], float]


Look = Callable[[int, Mapping[str, float]], None]
"""(step, what was measured): as Guards.look, before the real ones."""


def look_away(step: int, tags: Mapping[str, float]) -> None: ...


async def at_once(stream: str, task: Task, sample_index: int) -> None: ...


def share_of_even_tokens(episode: Episode) -> float:
    tokens = episode.branches[0].segments[1].token_ids
    return sum(t % 2 == 0 for t in tokens) / len(tokens)


class Bytes:
    """A Renderer of no words of its own: a question is its bytes."""

    stop_token_ids = (tiny.EOS,)
    in_turns, longest_token = False, 1

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(tiny.encode("".join(m.content for m in messages)))

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return tuple(tiny.encode("".join(piece.text for piece in pieces)))

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return self.observe(pieces)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return tuple(tiny.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Nobody reads them."""
        return ""


class OneTurns(EnvironmentDefaults):
    """Environments of a question and one sampled turn."""

    name = "one turn"
    figures = SEARCH_FIGURES
    limits = TurnLimits()

    def __init__(self, before: Before) -> None:
        self._before = before

    def make(self, attempt: Attempt) -> Environment:
        return OneTurn(attempt, self._before)


class OneTurn:
    def __init__(self, attempt: Attempt, before: Before) -> None:
        self._attempt, self._before = attempt, before

    async def reset(self, task: Task) -> Observation:
        await self._before(self._attempt.stream, task, self._attempt.sample_index)
        return Observation(messages=task.messages)

    async def step(self, turn: Turn) -> Observation:
        return Observation(done=Exit.ANSWERED, answer="", metrics={"tool_turns": 0.0})

    async def score(self, episode: Episode) -> Scores:
        return {}

    async def close(self) -> None: ...


def one_turn(engine: Engine, before: Before) -> PolicyRunner:
    return PolicyRunner(environment=OneTurns(before), engine=engine, renderer=Bytes())


class WatchedGuards(Guards):
    def __init__(self, guards: Mapping[str, Guard], look: Look) -> None:
        super().__init__(guards, has_checkpoints=True)
        self._look = look

    def look(self, step: int, tags: Mapping[str, float]) -> None:
        self._look(step, tags)
        super().look(step, tags)


class Graded:
    """The reward: a pure function of each episode."""

    def __init__(self, grade: Grade) -> None:
        self._grade = grade

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        totals = [self._grade(e) for e in group.episodes]
        rewards = [RewardResult(total=t, terms={"grade": t}, dimensions={}, correctness=t) for t in totals]
        return ScoredGroup(group=group, rewards=tuple(rewards), failures=(None,) * len(rewards))

    def judge_counts(self) -> Mapping[str, float]:
        return {}


@dataclass
class TinyRun:
    """What a run is made of; `parts` are its own at every start, as in a process of its own."""

    run_dir: Path
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, Guard] = field(default_factory=dict)
    grade: Grade = share_of_even_tokens
    before: Before = at_once
    look: Look = look_away
    num_tasks: int = 12
    tokens: int = 6
    grace_s: float = 60.0

    def tasks(self) -> list[Task]:
        return [builders.task(f"What is {i} and {i * i}?", id=f"t{i}", kind="ab"[i % 2]) for i in range(self.num_tasks)]

    def reference(self) -> Policy:
        """The start weights."""
        return frozen_reference(Policy(model=tiny.model("qwen2"), tokenizer=tiny.saved_tokenizer()))

    def parts(self, checkpoint: LoadedCheckpoint | None = None) -> Parts:
        run = RunSettings(
            dir=str(self.run_dir),
            **{"max_steps": 4, "checkpoint_every": 1, "keep_last": 99, "keep_best": False, "eval_every": 0, **self.run},
        )
        rollout = RolloutSettings(**{"tasks_per_step": 3, "group_size": 3, "max_tokens": self.tokens, **self.rollout})
        algorithm = Algorithm(**self.algorithm)
        policy = (
            Policy(model=tiny.model("qwen2"), tokenizer=tiny.saved_tokenizer())
            if checkpoint is None
            else load_policy(checkpoint.path)
        )
        engine = HFEngine(
            model=policy.model, tokenizer=policy.tokenizer, run_seed=7, own_weights=algorithm.max_staleness > 0
        )
        optimizer = AdamW(model=policy.model, lr=3e-3, warmup_steps=0)
        trainer = Trainer(
            policy=policy,
            reference=self.reference() if algorithm.needs_reference else None,
            optimizer=optimizer,
            algorithm=algorithm,
            total_steps=10,
            sampler_differs=algorithm.has_old_samples,
        )
        guards = WatchedGuards(self.guards, self.look)
        if checkpoint is not None:
            optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
            guards.load_state(checkpoint.state["guards"])

        async def no_dev_score(_: int) -> dict[str, float]:
            return {}

        return Parts(
            order=TaskOrder(
                self.tasks(),
                tasks_per_step=rollout.tasks_per_step,
                seed=5,
                stratify_by=rollout.stratify_by,
                curriculum=curriculum_of(rollout),
            ),
            runner=one_turn(engine, self.before),
            engine=engine,
            reward=Graded(self.grade),  # type: ignore[arg-type]
            trainer=trainer,
            run=run,
            rollout=rollout,
            sampling=SamplingParams(max_tokens=rollout.max_tokens, stop_token_ids=(tiny.EOS,)),
            store=CheckpointStore(run_dir=self.run_dir, keep_last=run.keep_last, keep_best=run.keep_best),
            metrics=MetricsLog(self.run_dir),
            trackers=Trackers(log_with=(), run_dir=self.run_dir, config={}, start_step=0),
            screen=Screen("quiet"),
            guards=guards,
            canary_ids=tuple(tiny.encode("What is it?")),
            restore=lambda saved: restore(trainer, None, load_policy(saved.path), saved),
            reference=None,
            dev_score=no_dev_score,
            show=lambda scored: None,
            card=lambda step, tags: "",
            fixed_state={},
        )

    async def go(self) -> Progress:
        """Train to the end, from the newest checkpoint where there is one."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        store = CheckpointStore(run_dir=self.run_dir, keep_last=99, keep_best=False)
        checkpoint = store.latest() if store.candidates() else None
        progress = Progress()
        if checkpoint is not None:
            store.rewind(checkpoint)
            progress = Progress.restored(checkpoint)
        await self.train(self.parts(checkpoint), progress)
        return progress

    async def train(self, parts: Parts, progress: Progress) -> None:
        with RunContext(parts.world, "start again", grace_s=self.grace_s, at_once=lambda: None) as ctx:
            await parts.engine.load_weights(progress.step)
            await train(parts, progress, ctx)

    def back_to(self, step: int, run_dir: Path) -> TinyRun:
        """A copy of the run as it was killed after `step` steps."""
        shutil.copytree(self.run_dir, run_dir)
        for path in (run_dir / "checkpoints").iterdir():
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
        return replace(self, run_dir=run_dir)


def recorded(run_dir: Path) -> dict[str, bytes]:
    """What must be equal between a run and the same one interrupted."""
    files = [p for p in run_dir.rglob("*") if p.suffix in (".jsonl", ".safetensors") and "orphans" not in p.parts]
    return {
        str(p.relative_to(run_dir)): p.read_bytes()
        for p in files
        if "timings" not in p.name and not p.name.startswith("profile")
    }


def rows(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def versions(run_dir: Path, step: int) -> set[int | None]:
    """Of the weights that sampled the step's episodes."""
    path = run_dir / "trajectories" / f"train-{step:06d}.jsonl"
    return {record.policy_version for record in read_trajectories(path)}


def rolled_out(run_dir: Path, step: int) -> list[str]:
    """Ids of the tasks."""
    path = run_dir / "trajectories" / f"train-{step:06d}.jsonl"
    return sorted({record.task for record in read_trajectories(path)})


def saved_steps(run_dir: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in (run_dir / "checkpoints").iterdir())
