"""Parts of a user's own with something wrong in them, and a healthy agent and reward to compare with."""

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
from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.base import Figures
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.environments.transcript import Transcript
from agentgrpo.judges.base import Grade
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.tokens import FastTokenizer
from agentgrpo.tools.base import ToolResult, Workspace
from tests.engines.tiny import EOS

STOPS = (EOS, *range(0, 256, 8))
"""So many that a model of random weights ends most of its turns."""
TOLD = "\n[result 41]\n"


class Steps:
    """The healthy agent: a question, a turn, something told, and a turn that is the answer."""

    def __init__(self, *, engine: Engine, renderer: Renderer) -> None:
        self.engine, self.renderer = engine, renderer

    @property
    def figures(self) -> Figures:
        return tool_figures(("probe",))

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset({"tool_turns", "tool_calls", "failed_calls", "invalid_calls", "calls/probe"})

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        transcript = Transcript(
            engine=self.engine,
            decode=self.renderer.decode,
            task=task,
            sample_index=sample_index,
            stream=stream,
            sampling=replace(sampling, stop_token_ids=STOPS),
        )
        try:
            transcript.open(self.renderer.open(task.messages))
            exit = await self._turns(transcript)
        finally:
            transcript.release()
        branch = self.told(transcript.branch)
        said = [s for s in branch.segments if s.sampled]
        return Episode(
            task=task,
            sample_index=sample_index,
            branches=(branch,),
            answer=said[-1].text if said and exit is Exit.ANSWERED else None,
            exit=exit,
            metrics=dict.fromkeys(self.metrics, 1.0),
        )

    async def _turns(self, transcript: Transcript) -> Exit:
        if await transcript.sample() is None:
            return Exit.CONTEXT_OVERFLOW
        self.between(transcript)
        if not transcript.observe(self.renderer.observe([Piece(TOLD, False)]), TOLD):
            return Exit.CONTEXT_OVERFLOW
        return Exit.CONTEXT_OVERFLOW if await transcript.sample() is None else Exit.ANSWERED

    def between(self, transcript: Transcript) -> None:
        """Before something is told."""

    def told(self, branch: Branch) -> Branch:
        """What is recorded of it."""
        return branch


class TrainsOnTools(Steps):
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


class LosesStops(Steps):
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


class Rewrites(Steps):
    """Once a turn is over, the model is shown a conversation without the beginning of it."""

    def between(self, transcript: Transcript) -> None:
        del transcript._context[2]


class Crashes(Steps):
    """A bug."""

    async def run(self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams) -> Episode:
        raise KeyError("no such thing")


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
