"""The memory environment: the policy reads chunk after chunk and takes notes; then a reader reads the memory.

    chunk t := prompt of the memory so far -> one turn -> apply its calls, in order
    after the last: the reader answers the questions while the judge grades the written entries

A memory whose entries were all judged invalid counts as empty: its answers are "", whatever the reader said. A chunk is
a branch with one sampled turn. The memory executes the calls, which get no reply.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.errors import JudgeError, boundary
from agentgrpo.core.messages import AnyCall, MalformedCall
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Episode, Exit, Outcome, Task, ToolRecord
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, Runner, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.base import Applied, Change, ChunkGrade
from agentgrpo.environments.memory.baselines import memory_baselines
from agentgrpo.environments.memory.metrics import MEMORY_FIGURES, NAMES, by_turn, episode_metrics
from agentgrpo.environments.memory.options import MemoryOptions
from agentgrpo.environments.memory.schema import DELETE
from agentgrpo.retrieval.base import Probed
from agentgrpo.tasks import dialogue

_KINDS = {"insert": "inserts", "update": "updates", "core": "updates", "delete": "deletes"}


class MemoryEnvironments(MemoryOptions):
    """Implements environments.factory.EnvironmentFactory.

    Calls that are malformed, unknown, too many or have wrong arguments are the policy's mistakes; a failing reader or
    judge of entries raises its EpisodeError.
    """

    name = "memory"

    @property
    def metrics(self) -> frozenset[str]:
        return NAMES

    @property
    def figures(self) -> Figures:
        return MEMORY_FIGURES

    @property
    def limits(self) -> TurnLimits:
        """One turn per chunk; the prompts leave room for it."""
        return TurnLimits(max_context=self.max_context)

    def make(self, attempt: Attempt) -> MemoryEnvironment:
        """Raises DataError for a task without chunks or questions."""
        return MemoryEnvironment(self, attempt)

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        """Baselines that may keep as much as the policy does."""
        kind = next(iter(self.known_schema.kinds))
        share = spent("memory_share")
        return memory_baselines(share, reader=self.reader, count_tokens=self.count_tokens, kind=kind)

    def counts(self) -> Mapping[str, float]:
        """The counts of the reader and, if it keeps any, of the judge of entries."""
        accounts = {"reader": self.reader.counts, "validity": getattr(self.validity, "counts", dict)}
        return {f"{part}/{name}": n for part, counts in accounts.items() for name, n in counts().items()}

    async def probe(self) -> None:
        """Raise ConfigError if the model of the reader, or of the judge of entries, does not reply."""
        for part in (self.reader, self.validity):
            if isinstance(part, Probed):
                await part.probe()

    async def close(self) -> None:
        """Close the reader and the judge at the end of the run."""
        try:
            await self.reader.close()
        finally:
            await self.validity.close()


class MemoryEnvironment:
    """Implements environments.base.Environment."""

    def __init__(self, options: MemoryOptions, attempt: Attempt) -> None:
        self.options, self.attempt, self.task = options, attempt, attempt.task
        self.chunks, self.questions = dialogue.chunks_of(self.task), dialogue.questions_of(self.task)
        self.memory = options.new_memory()
        self.counts: list[Counter[str]] = []
        """The counts of each chunk."""
        self.changes: list[int] = []
        """Number of changes after each chunk."""
        self.was_cut = False
        """Whether the current chunk was cut."""

    async def reset(self, task: Task) -> Observation:
        return Observation(**await self._chunk(0))

    async def step(self, turn: Turn) -> Observation:
        calls, notes = self._write(turn)
        if turn.index + 1 < len(self.chunks):
            return Observation(calls=calls, notes=notes, **await self._chunk(turn.index + 1))
        grades, answers = await self._judge_and_answer()
        is_empty = not self._may_be_right(grades)
        for count, grade in zip(self.counts, grades, strict=True):
            count.update(judged=grade.judged, valid=grade.valid, wanted=grade.wanted or 0)
            count["knows_wanted"] = int(grade.wanted is not None)
        answer = dialogue.join([""] * len(answers) if is_empty else answers)
        metrics = await off_loop(partial(self._metrics, is_empty=is_empty), size=sum(map(len, self.chunks)))
        return Observation(done=Exit.ANSWERED, answer=answer, calls=calls, notes=notes, metrics=metrics)

    async def score(self, episode: Episode) -> Scores:
        """Empty: a judge grades the answers."""
        return {}

    async def close(self) -> None:
        """Nothing to close: its parts belong to the run."""

    async def _chunk(self, index: int) -> dict[str, Any]:
        """The fields of the Observation that shows the policy one chunk."""
        chunk = self.chunks[index]
        opening = partial(self.options.opening, self.memory, chunk, max_context=self.attempt.max_context)
        messages, self.was_cut = await off_loop(opening, size=len(chunk))
        return {
            "messages": messages,
            "tools": self.options.known_schema.specs,
            "fresh_context": True,
            "is_last": index + 1 == len(self.chunks),
            "shared_opening": self.options.shared_opening,
        }

    def _may_be_right(self, grades: Sequence[ChunkGrade]) -> bool:
        """Whether the memory holds an entry that was not judged invalid when it was written."""
        verdicts = chain.from_iterable(grade.verdicts for grade in grades)
        written = zip(self.memory.history, verdicts, strict=True)
        kept = {change.after for change, verdict in written if verdict is not False}
        return not kept.isdisjoint({*self.memory.entries, self.memory.core} - {None})

    def _metrics(self, *, is_empty: bool) -> Scores:
        memory = self.memory
        found = episode_metrics(
            self.counts,
            questions=len(self.questions),
            is_empty=is_empty,
            entries=len(memory.passages()),
            memory_tokens=memory.num_tokens,
            chunk_tokens=sum(map(self.options.count_tokens, self.chunks)),
        )
        return found | by_turn(self.counts)

    def _write(self, turn: Turn) -> tuple[list[ToolRecord], list[Mapping[str, object]]]:
        """Apply the calls of one turn. Returns their records, and a note on their results."""
        limit, before = self.options.max_calls, len(self.memory.history)
        too_many = f"the limit of {limit} calls for one chunk is reached"
        made = [(call, self.memory.apply(call, chunk=turn.index)) for call in turn.calls[:limit]]
        made += [(call, Applied(outcome=Outcome.INVALID_ARGS, detail=too_many)) for call in turn.calls[limit:]]
        changes = self.memory.history[before:]
        count = Counter(_KINDS[DELETE if change.after is None else change.op] for change in changes)
        succeeded = sum(applied.outcome is Outcome.SUCCESS for _, applied in made)
        count.update(
            calls=len(made),
            executed=len(changes),
            failed_calls=len(made) - succeeded,
            skips=succeeded - len(changes),
            malformed=sum(isinstance(call, MalformedCall) for call in turn.calls),
            over_limit=len(turn.calls[limit:]),
            stray=bool(turn.content or turn.answer),
            truncated_chunks=self.was_cut,
        )
        self.counts.append(count)
        self.changes.append(len(self.memory.history))
        failed = [(call, applied.detail) for call, applied in made if applied.outcome is not Outcome.SUCCESS]
        note: Mapping[str, object] = {
            "chunk": turn.index,
            "changes": [_change(change) for change in changes],
            "failed": [{"call": _text(call), "detail": detail} for call, detail in failed],
            "tokens": self.memory.num_tokens,
            "entries": len(self.memory.passages()),
        }
        return [_record(call, applied, turn.index) for call, applied in made], [note]

    async def _judge_and_answer(self) -> tuple[list[ChunkGrade], list[str]]:
        """Return a grade of each chunk and an answer to each question. Raises the first failure once everything else
        has stopped."""
        try:
            async with asyncio.TaskGroup() as running:
                grades = [running.create_task(self._judge(t)) for t in range(len(self.chunks))]
                answers = running.create_task(self._answer())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [grade.result() for grade in grades], answers.result()

    async def _judge(self, chunk: int) -> ChunkGrade:
        changes: Sequence[Change] = self.memory.history[: self.changes[chunk]]
        with boundary(JudgeError, "validity"), calling(Stage.TOOLS):
            grade = await self.options.validity.judge(self.task, chunk, changes)
            own = sum(change.chunk == chunk for change in changes)
            if len(grade.verdicts) != own:
                raise ValueError(f"{own} changes of chunk {chunk} got {len(grade.verdicts)} verdicts")
        return grade

    async def _answer(self) -> list[str]:
        with boundary(JudgeError, "reader"), calling(Stage.TOOLS):
            answers = await self.options.reader.answer(self.questions, self.memory.passages())
            if len(answers) != len(self.questions):
                raise ValueError(f"{len(self.questions)} questions got {len(answers)} answers")
        return answers


def _record(call: AnyCall, applied: Applied, chunk: int) -> ToolRecord:
    return ToolRecord(
        name=call.name,
        arguments={} if isinstance(call, MalformedCall) else call.arguments,
        outcome=applied.outcome,
        turn=chunk,
        detail=applied.detail,
    )


def _change(change: Change) -> dict[str, Any]:
    before, after = (None if entry is None else asdict(entry) for entry in (change.before, change.after))
    return {"op": change.op, "before": before, "after": after}


def _text(call: AnyCall) -> str:
    """A call for people to read; a malformed call is shown as sampled."""
    if isinstance(call, MalformedCall):
        return call.text
    try:
        return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"
    except RecursionError:  # brackets nested too deeply
        return f"{call.name} too deep"
