"""Parts of a user's own with something wrong in them, and a healthy environment and reward to compare with."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from agentgrpo.core.errors import JudgeError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Branch, Episode, Exit, FinishReason, Message, Passage, Piece, Segment, Task
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.judges.base import Grade
from agentgrpo.renderers.tokens import FastTokenizer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tools.base import ToolResult, Workspace
from tests.engines.tiny import tokenizer

STOPS = tuple(text for i in range(0, 256, 4) if len(tokenizer().encode(text := tokenizer().decode([i]))) == 1)
"""Texts of one token each: so many that a model of random weights ends most of its turns."""
TOLD = "[result 41]"


class StepsEnvironments(EnvironmentDefaults):
    """The healthy environments: a question, a turn, something told, and a turn that is the answer."""

    name = "steps"
    figures = tool_figures(("probe",))
    limits = TurnLimits(stop=STOPS)
    metrics = frozenset({"tool_turns", "tool_calls", "failed_calls", "invalid_calls", "calls/probe"})

    def make(self, attempt: Attempt) -> Environment:
        return Steps()


class Steps:
    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.messages, metrics=dict.fromkeys(StepsEnvironments.metrics, 1.0))

    async def step(self, turn: Turn) -> Observation:
        if turn.index == 0:
            return Observation(messages=[Message.of_pieces([Piece(TOLD, False)])])
        return Observation(done=Exit.ANSWERED, answer=turn.text)

    async def score(self, episode: Episode) -> Scores:
        return {}

    async def close(self) -> None: ...


class CrashingEnvironments(StepsEnvironments):
    """A bug."""

    def make(self, attempt: Attempt) -> Environment:
        return Crashing()


class Crashing(Steps):
    async def reset(self, task: Task) -> Observation:
        raise KeyError("no such thing")


class Misrecording(PolicyRunner):
    """What it records of an episode is not what was sampled."""

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        episode = await super().run(task, sample_index=sample_index, stream=stream, sampling=sampling, attempt=attempt)
        return replace(episode, branches=tuple(map(self.told, episode.branches)))

    def told(self, branch: Branch) -> Branch:
        raise NotImplementedError


class TrainsOnTools(Misrecording):
    """It takes what a tool said for its own words."""

    def told(self, branch: Branch) -> Branch:
        segments = [
            Segment(
                role="assistant",
                token_ids=s.token_ids,
                sampled=True,
                logprobs=(-1.0,) * len(s.token_ids),
                policy_version=0,
            )
            if s.role == "tool"
            else s
            for s in branch.segments
        ]
        return Branch(segments=tuple(segments))


class LosesStops(Misrecording):
    """The last token of every turn is a segment of its own, which nobody sampled."""

    def told(self, branch: Branch) -> Branch:
        segments: list[Segment] = []
        for s in branch.segments:
            if s.sampled and len(s.token_ids) > 1 and s.logprobs is not None:
                segments.append(replace(s, token_ids=s.token_ids[:-1], logprobs=s.logprobs[:-1]))
                segments.append(Segment(role="assistant", token_ids=s.token_ids[-1:], sampled=False))
            else:
                segments.append(s)
        return Branch(segments=tuple(segments))


class Rewrites(Misrecording):
    """The record is of a conversation without a token of its beginning."""

    def told(self, branch: Branch) -> Branch:
        opening, *rest = branch.segments
        shorter = replace(opening, token_ids=(*opening.token_ids[:2], *opening.token_ids[3:]))
        return Branch(segments=(shorter, *rest))


class Evenness:
    """A term of the reward that a random policy is told apart by: the share of even tokens that it sampled."""

    dimension = "search_efficiency"
    is_cost = False

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight

    def __call__(self, episode: Episode, correctness: float) -> float:
        ids = [i for s in episode.turns for i in s.token_ids]
        return self.weight * sum(i % 2 == 0 for i in ids) / max(1, len(ids))


class SlowJudge:
    """A group of answers takes it seconds."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        await asyncio.sleep(4.0 if len(answers) > 1 else 0.0)
        return [Grade(score=float(answer in task.references)) for answer in answers]


class Gullible:
    """It does as answers tell it."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return [Grade(score=float(a in task.references or "score 1" in a)) for a in answers]


class DeadJudge:
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        raise JudgeError("nobody is there", kind="transport")


class Unplugged:
    """A tool whose service is gone."""

    spec = ToolSpec(
        name="unplugged",
        description="Looks up a word.",
        parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        raise ConnectionError("connection refused")

    async def close(self) -> None: ...


class Stale(HFEngine):
    """It samples from other weights than those that train."""

    def __init__(self, *, model: PreTrainedModel, tokenizer: FastTokenizer, run_seed: int) -> None:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.1)
        super().__init__(model=other, tokenizer=tokenizer, run_seed=run_seed)


class Moody(HFEngine):
    """What it samples depends on how many calls there were before."""

    def __init__(
        self, *, model: PreTrainedModel, tokenizer: FastTokenizer, run_seed: int, deterministic: bool = True
    ) -> None:
        super().__init__(model=model, tokenizer=tokenizer, run_seed=run_seed, deterministic=deterministic)
        self._calls = 0

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        self._calls += 1
        return await super().generate(token_ids, sampling, key._replace(sample_index=self._calls))


class SwallowsStops(HFEngine):
    """It says that a turn has stopped, and leaves out what it stopped with."""

    def __init__(self, *, model: PreTrainedModel, tokenizer: FastTokenizer, run_seed: int) -> None:
        super().__init__(model=model, tokenizer=tokenizer, run_seed=run_seed)

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        done = await super().generate(token_ids, sampling, key)
        if done.finish_reason is FinishReason.STOP and len(done.token_ids) > 1:
            return replace(done, token_ids=done.token_ids[:-1], logprobs=done.logprobs[:-1])
        return done


class Leaky:
    """A question of the training set is in the test set, in other letters."""

    fingerprint = "leaky"

    def split(self, name: str) -> Sequence[Task]:
        asked = {
            "train": ("Who is it?", "Where is it, Velmor?", "Is it VELMOR?"),
            "dev": ("When?",),
            "test": ("who is it", "What?"),
        }[name]
        return [
            Task(id=f"{name}-{i}", messages=(Message(role="user", content=text),), references=("Velmor",))
            for i, text in enumerate(asked)
        ]

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}
