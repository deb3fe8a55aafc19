"""Our side of a comparison: run a work through the stages of the training loop, records and canary included.

OMP_NUM_THREADS=1 python scripts/bench/ours.py --work tiny/latency-0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from measure import Stopwatch, only_the_report_on_stdout, report
from torch import Tensor
from workload import Script, model, prompt_text, reply_text
from works import Work, works

from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Message, Piece, RewardResult, ScoredGroup, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.schedule import EngineTurn
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.guards import Guards
from agentgrpo.run.parts import Parts, StepState
from agentgrpo.run.rollouts import Rollout
from agentgrpo.run.train import roll_out, samples_of
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.canary import refuse_stale_weights
from agentgrpo.training.checkpoint import CheckpointStore
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.trainer import Trainer


class ScriptedHFEngine(HFEngine):
    """The engine, with the script applied to the logits before sampling."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(**options)
        self._script = script
        self.row_of: Callable[[SeedKey], int]
        """Maps an episode's key to its row in the step's script."""

    def _draw(self, logits: Tensor, turns: Sequence[EngineTurn]) -> tuple[list[int], list[float]]:
        return super()._draw(self._forced(logits, turns), turns)

    def _forced(self, logits: Tensor, turns: Sequence[EngineTurn]) -> Tensor:
        """logits [n, V] of n turns -> logits [n, V] that force each turn's next token of the script."""
        wanted = [self._script.forced(step_of(t.key), self.row_of(t.key), t.key.turn)[len(t.logprobs)] for t in turns]
        return self._script.apply(logits.clone(), wanted)


def step_of(key: SeedKey) -> int:
    return int(key.stream.split("/")[1])


def rows_of(order: TaskOrder, group_size: int) -> Callable[[SeedKey], int]:
    """Rows are numbered task by task, in the order of the step's tasks."""

    @cache
    def first_rows(step: int) -> dict[str, int]:
        return {task.id: i * group_size for i, task in enumerate(order.take(step))}

    return lambda key: first_rows(step_of(key))[key.task_id] + key.sample_index


class TextRenderer:
    """A Renderer that encodes texts unchanged: the work's own texts are complete."""

    in_turns = True
    longest_token = 1000
    """No text of the works is longer than the context."""

    def __init__(self, script: Script) -> None:
        self._tokenizer = script.tokenizer
        self.stop_token_ids = (script.end,)

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.encode_action("".join(m.content for m in messages))

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return self.encode_action("".join(piece.text for piece in pieces))

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return self.observe(pieces)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))


class WorkEnvironments(EnvironmentDefaults):
    """Episodes with the work's number of turns and a tool call between any two."""

    name = "bench"
    figures = SEARCH_FIGURES
    limits = TurnLimits()

    def __init__(self, script: Script, row_of: Callable[[SeedKey], int]) -> None:
        self.script, self.row_of = script, row_of

    def make(self, attempt: Attempt) -> Environment:
        return WorkEnvironment(self, attempt)


class WorkEnvironment:
    def __init__(self, of: WorkEnvironments, attempt: Attempt) -> None:
        self._script, self._row_of = of.script, of.row_of
        self._key = SeedKey(attempt.stream, attempt.task.id, attempt.sample_index, 0)

    async def reset(self, task: Task) -> Observation:
        prompt = prompt_text(task.question, with_tools=self._script.work.turns > 1)
        return Observation(messages=[Message(role="user", content=prompt)])

    async def step(self, turn: Turn) -> Observation:
        last = self._script.work.turns - 1
        if turn.index == last:
            return Observation(done=Exit.ANSWERED, answer=turn.text, metrics={"tool_turns": last})
        call = turn.text.partition("<tool_call>")[2].partition("</tool_call>")[0]
        found = await self._search(self._key._replace(turn=turn.index), **json.loads(call)["arguments"])
        return Observation(messages=[Message(role="user", content=reply_text(found))])

    async def score(self, episode: Episode) -> Scores:
        return {}

    async def close(self) -> None:
        """There is nothing to close."""

    async def _search(self, key: SeedKey, *, query: str) -> str:
        if self._script.work.latency_s:
            await asyncio.sleep(self._script.work.latency_s)
        return self._script.reply(step_of(key), self._row_of(key), key.turn)


class Dice:
    """A random reward, so that every group has a gradient."""

    def __init__(self) -> None:
        self._dice = random.Random(7)

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        totals = [self._dice.random() for _ in group.episodes]
        rewards = tuple(RewardResult(total=t, terms={}, dimensions={}, correctness=t) for t in totals)
        return ScoredGroup(group=group, rewards=rewards, failures=(None,) * len(rewards))

    def judge_counts(self) -> Mapping[str, float]:
        return {}


def parts_of(
    work: Work,
    run: RunSettings,
    *,
    engine_type: type[ScriptedHFEngine] = ScriptedHFEngine,
    algorithm: Algorithm | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **engine_options: Any,
) -> Parts:
    """A run over the work of run.max_steps steps. Everything is real except the environment, the reward and the model's
    weights. It has no guards: forced tokens are not samples of the policy, so engine and trainer rightly disagree about
    them. The engine has a slot for every episode. engine_options: further arguments of the engine."""
    algorithm = algorithm or Algorithm()
    script, steps, run_dir = Script(work), run.max_steps, Path(run.dir)
    script.prepare(steps)
    policy = Policy(model=model(work, dtype=dtype, device=device), tokenizer=script.tokenizer)
    engine = engine_type(
        script,
        model=policy.model,
        tokenizer=script.tokenizer,
        run_seed=0,
        max_context=work.max_context,
        slots=work.rows,
        own_weights=algorithm.max_staleness > 0,
        **engine_options,
    )
    tasks = [
        Task(id=str(i), messages=(Message(role="user", content=script.question(i)),), references=("",))
        for i in range(work.tasks * steps)
    ]
    order = TaskOrder(tasks, tasks_per_step=work.tasks, seed=0, stratify_by=None)
    engine.row_of = rows_of(order, work.group_size)

    async def no_dev_score(_: int) -> dict[str, float]:
        return {}

    return Parts(
        order=order,
        runner=PolicyRunner(
            environment=WorkEnvironments(script, engine.row_of), engine=engine, renderer=TextRenderer(script)
        ),
        engine=engine,
        reward=Dice(),
        trainer=Trainer(
            policy=policy,
            reference=None,
            optimizer=AdamW(model=policy.model, lr=1e-6),
            algorithm=algorithm,
            total_steps=steps,
            sampler_differs=algorithm.has_old_samples,
        ),
        run=run,
        rollout=RolloutSettings(
            tasks_per_step=work.tasks,
            group_size=work.group_size,
            max_tokens=work.most_tokens,
            max_concurrent_episodes=work.rows,
        ),
        sampling=SamplingParams(max_tokens=work.most_tokens, stop_token_ids=(script.end,)),
        store=CheckpointStore(run_dir=run_dir, keep_last=1, keep_best=False),
        metrics=MetricsLog(run_dir),
        trackers=Trackers(log_with=(), run_dir=run_dir, config={}, start_step=0),
        screen=Screen("quiet"),
        guards=Guards({}, has_checkpoints=False),
        restore=lambda checkpoint: None,
        reference=None,
        canary_ids=tuple(script.tokenizer(prompt_text(tasks[0].question, with_tools=True))["input_ids"]),
        dev_score=no_dev_score,
        show=lambda scored: None,
        card=lambda step, tags: "",
        fixed_state={},
    )


def learn(parts: Parts, step: int, rolled: Rollout) -> dict[str, float]:
    """Record a rollout and update the weights; return the step's tags."""
    chosen = samples_of(parts, step, rolled, StepState())
    return {**chosen.tags, **parts.trainer.update(chosen.samples, step=step).tags()}


async def one_step(parts: Parts, step: int, watch: Stopwatch) -> tuple[Rollout, dict[str, float]]:
    """Return the episodes and the tags of a step; its times go into `watch`."""
    with watch.stage("step"):
        with watch.stage("rollout"):
            rolled = await roll_out(parts, step)
        tags = learn(parts, step, rolled)
        await parts.engine.load_weights(step + 1)
        tags |= await refuse_stale_weights(parts.engine, parts.trainer.policy, parts.canary_ids, step)
        parts.metrics.step(step, tags)
    return rolled, tags


async def run(parts: Parts, watch: Stopwatch) -> dict[str, list[float]]:
    """Run all steps; return the work counts of each step but the first."""
    counts: dict[str, list[float]] = {"sampled": [], "tokens": []}
    for step in range(parts.run.max_steps):
        _, tags = await one_step(parts, step, watch)
        counts["sampled"].append(tags["tokens/sampled"])
        counts["tokens"].append(tags["tokens/total"])
    return {name: values[1:] for name, values in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, choices=works())
    parser.add_argument("--steps", type=int, default=3, help="measured steps; one more runs first")
    args = parser.parse_args()
    with only_the_report_on_stdout() as out, tempfile.TemporaryDirectory() as folder:
        watch = Stopwatch()
        parts = parts_of(works()[args.work], RunSettings(dir=folder, max_steps=args.steps + 1))
        work = asyncio.run(run(parts, watch))
        report(out, watch.figures(), work, ("agentgrpo", "transformers", "torch"))


if __name__ == "__main__":
    main()
