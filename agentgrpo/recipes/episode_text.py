"""A recorded episode as text: of a memory agent how its memory grew, of others what was said and called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgrpo import dialogue
from agentgrpo.protocol import Status
from agentgrpo.recipes.lines import FAILED, HEADING, QUIET, Line, called, counted, one_line, signed
from agentgrpo.recipes.memory_text import chunk_lines, question_lines
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.types import Outcome


def episode_lines(record: TrajectoryRecord) -> Iterator[Line]:
    yield Line(f"episode {one_line(record.id)}{_kind(record)}", HEADING)
    yield Line(f"{record.agent['name']}, step {record.step}, {record.split}: {record.agent['exit']}", QUIET, indent=2)
    if record.error:
        kind, stage, message = (one_line(str(record.error[key])) for key in ("kind", "stage", "message"))
        yield Line(f"failed: {kind} in {stage}: {message}", FAILED, indent=2)
    if dialogue.QUESTIONS in record.metadata and record.status == Status.COMPLETED:
        yield from chunk_lines(record)
        yield from question_lines(record)
    else:
        yield from _turn_lines(record)
    yield Line("")
    grade = "none" if record.correctness is None else f"{record.correctness:.3f}"
    yield Line(f"reward {signed(record.reward)}, correctness {grade}", HEADING)
    for name, value in record.reward_terms.items():
        yield Line(f"{signed(value)}  {one_line(name)}", indent=2)


def _kind(record: TrajectoryRecord) -> str:
    kind = str(record.metadata.get("kind", ""))
    return f" ({one_line(kind)})" if kind else ""


def _turn_lines(record: TrajectoryRecord) -> Iterator[Line]:
    """Every message, and after each sampled one the calls it made."""
    turn = 0
    for message in record.agent["messages"]:
        yield Line("")
        sampled = ", sampled" if message["sampled"] else ""
        yield Line(f"{message['role']}, {counted(message['num_tokens'], 'token')}{sampled}", HEADING)
        yield Line(message["content"], indent=4)
        if message["sampled"]:
            yield from (_call_line(call) for call in record.agent["tools"] if call["turn"] == turn)
            turn += 1
    yield Line("")
    yield Line(f"answer: {one_line(record.answer) if record.answer else 'none'}", HEADING)
    yield Line(f"reference: {one_line(' | '.join(map(str, record.references)))}", indent=2)


def _call_line(call: Mapping[str, Any]) -> Line:
    text = called(call["name"], call["arguments"])
    if call["outcome"] == Outcome.SUCCESS:
        return Line(f"> {text}: {counted(call['num_results'], 'result')}", indent=2)
    why = f": {one_line(call['detail'])}" if call["detail"] else ""
    return Line(f"! {text}: {call['outcome']}{why}", FAILED, indent=2)
