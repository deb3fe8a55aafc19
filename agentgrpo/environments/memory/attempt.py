"""One memory episode: chunk after chunk is read and written down, then the memory is read.

    chunk t := prompt of the memory so far -> sample one turn -> parse -> apply its calls, in order
    after the last: the reader answers the questions, and what was written is judged, side by side

A chunk is a branch with one sampled turn. What calls come to is the memory's business; nothing is replied to them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agentgrpo.core.errors import ConfigError, JudgeError, boundary
from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn
from agentgrpo.core.types import Branch, Episode, Exit, Outcome, Task, ToolRecord
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.memory.base import Applied, Change, ChunkGrade
from agentgrpo.environments.memory.metrics import by_turn, episode_metrics
from agentgrpo.environments.memory.options import MemoryOptions
from agentgrpo.environments.transcript import Transcript
from agentgrpo.tasks import dialogue

_KINDS = {"insert": "inserts", "update": "updates", "core": "updates", "delete": "deletes"}


class Attempt:
    """Made for one episode, used once: `await run()`."""

    def __init__(
        self, options: MemoryOptions, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams
    ) -> None:
        """Raises DataError for a task without chunks or questions."""
        self.options, self.task, self.sample_index, self.stream = options, task, sample_index, stream
        self.chunks, self.questions = dialogue.chunks_of(task), dialogue.questions_of(task)
        renderer = options.renderer
        self.sampling = replace(
            sampling,
            stop=tuple(renderer.stop_strings),
            stop_token_ids=tuple(renderer.stop_token_ids),
            opening=options.shared_opening,
        )
        self.memory = options.new_memory()
        self.branches: list[Branch] = []
        self.counts: list[Counter[str]] = []
        self.records: list[ToolRecord] = []
        self.written: list[Mapping[str, Any]] = []
        self.changes: list[int] = []
        """How many there were after each chunk."""
        self.timings = {"time_generate": 0.0, "time_tools": 0.0, "time_queue": 0.0}

    async def run(self) -> Episode:
        await self._read_all()
        verdicts, answers = await self._timed_judging()
        for count, verdict in zip(self.counts, verdicts, strict=True):
            count.update(judged=verdict.judged, valid=verdict.valid, wanted=verdict.wanted or 0)
            count["knows_wanted"] = int(verdict.wanted is not None)
        memory = self.memory
        return Episode(
            task=self.task,
            sample_index=self.sample_index,
            branches=tuple(self.branches),
            answer=dialogue.join(answers),
            exit=Exit.ANSWERED,
            metrics=episode_metrics(
                self.counts,
                questions=len(self.questions),
                is_empty=not memory.passages(),
                entries=len(memory.passages()),
                memory_tokens=memory.num_tokens,
                chunk_tokens=sum(map(self.options.count_tokens, self.chunks)),
            ),
            metrics_by_turn=by_turn(self.counts),
            tool_records=tuple(self.records),
            memory=tuple(self.written),
            timings=self.timings,
        )

    async def _read_all(self) -> None:
        """Every chunk, in order. However it ends, the engine may forget the episode."""
        transcript: Transcript | None = None
        try:
            for t, chunk in enumerate(self.chunks):
                token_ids, was_cut = self.options.opening(self.memory, chunk)
                transcript = self._transcript(t)
                transcript.open(token_ids)
                turn = await transcript.sample()
                if turn is None:  # its prompt was made to leave room
                    raise ConfigError(f"task {self.task.id}: chunk {t} leaves no room for a turn; raise max_context")
                self.branches.append(transcript.branch)
                self.timings = {name: self.timings[name] + spent for name, spent in transcript.timings.items()}
                self._write(self.options.renderer.parse(turn.token_ids), t, was_cut=was_cut)
        finally:
            if transcript is not None:
                transcript.release()

    def _transcript(self, chunk: int) -> Transcript:
        return Transcript(
            engine=self.options.engine,
            decode=self.options.renderer.decode,
            task=self.task,
            sample_index=self.sample_index,
            stream=self.stream,
            sampling=self.sampling,
            max_context=self.options.max_context,
            first_turn=chunk,
        )

    def _write(self, turn: ParsedTurn, chunk: int, *, was_cut: bool) -> None:
        """Apply the calls of one turn, and note what came of them."""
        limit, before = self.options.max_calls, len(self.memory.history)
        too_many = f"the limit of {limit} calls for one chunk is reached"
        made = [(call, self.memory.apply(call, chunk=chunk)) for call in turn.calls[:limit]]
        made += [(call, Applied(outcome=Outcome.INVALID_ARGS, detail=too_many)) for call in turn.calls[limit:]]
        changes = self.memory.history[before:]
        count: Counter[str] = Counter(_KINDS[change.op] for change in changes)
        succeeded = sum(applied.outcome is Outcome.SUCCESS for _, applied in made)
        count.update(
            calls=len(made),
            executed=len(changes),
            failed_calls=len(made) - succeeded,
            skips=succeeded - len(changes),
            malformed=sum(isinstance(call, MalformedCall) for call in turn.calls),
            over_limit=len(turn.calls[limit:]),
            stray=bool(turn.content or turn.answer),
            truncated_chunks=was_cut,
        )
        self.counts.append(count)
        self.changes.append(len(self.memory.history))
        self.records += [_record(call, applied, chunk) for call, applied in made]
        failed = [(call, applied.detail) for call, applied in made if applied.outcome is not Outcome.SUCCESS]
        self.written.append(
            {
                "chunk": chunk,
                "changes": [_change(change) for change in changes],
                "failed": [{"call": _text(call), "detail": detail} for call, detail in failed],
                "tokens": self.memory.num_tokens,
                "entries": len(self.memory.passages()),
            }
        )

    async def _timed_judging(self) -> tuple[list[ChunkGrade], list[str]]:
        began = time.perf_counter()
        found = await self._judge_and_answer()
        self.timings["time_tools"] += time.perf_counter() - began
        return found

    async def _judge_and_answer(self) -> tuple[list[ChunkGrade], list[str]]:
        """A verdict on each chunk and an answer to each question. Raises the first failure when all others have
        stopped."""
        try:
            async with asyncio.TaskGroup() as running:
                verdicts = [running.create_task(self._judge(t)) for t in range(len(self.chunks))]
                answers = running.create_task(self._answer())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [verdict.result() for verdict in verdicts], answers.result()

    async def _judge(self, chunk: int) -> ChunkGrade:
        changes: Sequence[Change] = self.memory.history[: self.changes[chunk]]
        with boundary(JudgeError, "validity"):
            return await self.options.validity.judge(self.task, chunk, changes)

    async def _answer(self) -> list[str]:
        with boundary(JudgeError, "reader"):
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
    """As people read it; a malformed one as it was sampled."""
    if isinstance(call, MalformedCall):
        return call.text
    try:
        return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"
    except RecursionError:  # a bottomless nest of brackets
        return f"{call.name} too deep"
