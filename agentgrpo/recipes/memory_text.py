"""A recorded memory episode as text: how its memory grows, chunk by chunk, and what it is good for in the end.

    chunk 2
        Velmor now lives in Roka.
      > update {"content": "Velmor lives in Roka before Castin"}
      ! delete {"key": "Dorin works"}: there is no entry that begins with 'Dorin works'
      ~ fact: Velmor lives in Castin -> Velmor lives in Roka before Castin
      memory: 6 tokens, 1 entry; reward +0.850

> a call, ! one that failed, and of the memory + what came, ~ what changed, - what went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgrpo import dialogue
from agentgrpo.judges.normalise import normalise
from agentgrpo.recipes.lines import (
    ADDED,
    CHANGED,
    FAILED,
    HEADING,
    QUIET,
    REMOVED,
    Line,
    called,
    counted,
    one_line,
    signed,
)
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.types import Outcome, Task


def chunk_lines(record: TrajectoryRecord) -> Iterator[Line]:
    """None of an episode that kept no memory, such as a baseline's. Raises DataError for a task without chunks."""
    chunks = dialogue.chunks_of(task_of(record))
    for written in record.memory:
        place = written["chunk"]
        yield Line("")
        yield Line(f"chunk {place}", HEADING)
        yield Line(chunks[place], indent=4)
        yield from _call_lines(written, [call for call in record.agent["tools"] if call["turn"] == place])
        for change in written["changes"]:
            yield _change_line(change["before"], change["after"])
        size = f"{counted(written['tokens'], 'token')}, {counted(written['entries'], 'entry', 'entries')}"
        reward = f"; reward {signed(record.reward_branches[place])}" if record.reward_branches else ""
        yield Line(f"memory: {size}{reward}", QUIET, indent=2)


def question_lines(record: TrajectoryRecord) -> Iterator[Line]:
    """Right is here what equals a reference, which is not yet what the judge says; that is the grade of all."""
    questions = dialogue.questions_of(task_of(record))
    answers = dialogue.split(record.answer or "", len(questions))
    right = [equals_one(a, q.answers) for a, q in zip(answers, questions, strict=True)]
    grade = "none" if record.correctness is None else f"{record.correctness:.3f}"
    yield Line("")
    yield Line(f"questions: {sum(right)} of {len(right)} equal a reference; the judge's grade of all: {grade}", HEADING)
    for question, answer, is_right in zip(questions, answers, right, strict=True):
        kind = f" ({one_line(question.kind)})" if question.kind else ""
        given = one_line(answer) or "no answer"
        text = f"{'right' if is_right else 'wrong'}{kind}  {one_line(question.text)}  {given}"
        wanted = "" if is_right else f"  [reference: {one_line(' | '.join(question.answers))}]"
        yield Line(text + wanted, ADDED if is_right else REMOVED, indent=2)


def equals_one(answer: str, references: tuple[str, ...]) -> bool:
    """Normalised as in exact match."""
    return bool(normalise(answer)) and normalise(answer) in map(normalise, references)


def task_of(record: TrajectoryRecord) -> Task:
    """As far as dialogue reads it."""
    return Task(id=record.task, messages=(), references=(), metadata=record.metadata, data_source=record.data_source)


def _call_lines(written: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> Iterator[Line]:
    """In the order in which they were made; `failed` has those that failed as they were sampled."""
    failed = iter(written["failed"])
    for call in calls:
        if call["outcome"] == Outcome.SUCCESS:
            yield Line(f"> {called(call['name'], call['arguments'])}", indent=2)
        elif (how := next(failed, None)) is not None:
            yield Line(f"! {one_line(how['call'])}: {one_line(how['detail'])}", FAILED, indent=2)
    if not calls:
        yield Line("no call", QUIET, indent=2)


def _change_line(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Line:
    if before is None or after is None:
        entry = after or before or {}
        sign, style = ("+", ADDED) if after else ("-", REMOVED)
        return Line(f"{sign} {_name(entry)}: {one_line(entry['text'])}", style, indent=2)
    texts = f"{one_line(before['text'])} -> {one_line(after['text'])}"
    return Line(f"~ {_name(after)}: {texts}", CHANGED, indent=2)


def _name(entry: Mapping[str, Any]) -> str:
    """Kind and id, unless that is the kind, or the beginning of the text."""
    id, kind = one_line(entry["id"]), one_line(entry["kind"])
    return kind if id == kind or entry["text"].startswith(entry["id"]) else f"{kind} {id}"
