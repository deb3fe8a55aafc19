"""`agentgrpo show`: a run and its episodes for people to read. It loads no model and no model libraries."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import Status
from agentgrpo.core.types import Outcome, Task
from agentgrpo.judges.answers import normalise
from agentgrpo.records.lines import (
    ADDED,
    CHANGED,
    FAILED,
    HEADING,
    QUIET,
    REMOVED,
    TextLine,
    called,
    counted,
    one_line,
    signed,
)
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.records.trajectories import PART, TrajectoryRecord, read_trajectories
from agentgrpo.reports.damage import warn_of_damage
from agentgrpo.reports.overview import overview
from agentgrpo.tasks import dialogue

# --- Finding an episode in the trajectories of a run.


def find_episode(path: Path, id: str) -> TrajectoryRecord:
    """Raises ConfigError if the id is not found, naming similar ids, and DataError for a broken file."""
    known = []
    for record in read_trajectories(path):
        if record.id == id:
            return record
        known.append(record.id)
    near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    what = f"the nearest are {', '.join(near)}" if near else f"the first are {', '.join(known[:3]) or 'none'}"
    raise ConfigError(f"--episode {id}: {path.name} has no such episode; {what}. List them all with --list")


def listing(path: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the file's episodes, with the number of calls of each and, if any episode has a
    memory, its final number of entries. Raises DataError for a broken file."""
    rows, entries = [], []
    for record in read_trajectories(path):
        ungraded = "none" if record.is_demonstrated else "failed"
        grade = ungraded if record.correctness is None else f"{record.correctness:.3f}"
        kind, calls = str(record.metadata.get("kind", "")), str(len(record.agent["tools"]))
        rows.append([record.id, kind, signed(record.reward), grade, calls])
        entries.append([str(record.memory[-1]["entries"]) if record.memory else "none"])
    head = ["episode", "kind", "reward", "correctness", "calls"]
    if all(cell == ["none"] for cell in entries):
        return head, rows
    return [*head, "entries"], [row + more for row, more in zip(rows, entries, strict=True)]


# --- A recorded memory episode as text: the growth of its memory by chunk, and the answers that it allows in the end.
#
#     chunk 2
#         Velmor now lives in Roka.
#       > update {"content": "Velmor lives in Roka before Castin"}
#       ! delete {"key": "Dorin works"}: there is no entry that begins with 'Dorin works'
#       ~ fact: Velmor lives in Castin -> Velmor lives in Roka before Castin
#       memory: 6 tokens, 1 entry; reward +0.850
#
# > a call, ! a failed call; in the memory + an added entry, ~ a changed one, - a removed one.


def chunk_lines(record: TrajectoryRecord) -> Iterator[TextLine]:
    """Yields nothing for an episode without a memory, such as a baseline's. Raises DataError for a task without
    chunks."""
    chunks = dialogue.chunks_of(task_of(record))
    for written in record.memory:
        place = written["chunk"]
        yield TextLine("")
        yield TextLine(f"chunk {place}", HEADING)
        yield TextLine(chunks[place], indent=4)
        yield from _call_lines(written, [call for call in record.agent["tools"] if call["turn"] == place])
        for change in written["changes"]:
            yield _change_line(change["before"], change["after"])
        size = f"{counted(written['tokens'], 'token')}, {counted(written['entries'], 'entry', 'entries')}"
        reward = f"; reward {signed(record.reward_branches[place])}" if record.reward_branches else ""
        yield TextLine(f"memory: {size}{reward}", QUIET, indent=2)


def question_lines(record: TrajectoryRecord) -> Iterator[TextLine]:
    """An answer counts as right here if it equals a reference. The judge grades all answers together."""
    questions = dialogue.questions_of(task_of(record))
    answers = dialogue.split(record.answer or "", len(questions))
    right = [equals_one(a, q.answers) for a, q in zip(answers, questions, strict=True)]
    grade = "none" if record.correctness is None else f"{record.correctness:.3f}"
    yield TextLine("")
    yield TextLine(
        f"questions: {sum(right)} of {len(right)} equal a reference; the judge's grade of all: {grade}", HEADING
    )
    for question, answer, is_right in zip(questions, answers, right, strict=True):
        kind = f" ({one_line(question.kind)})" if question.kind else ""
        given = one_line(answer) or "no answer"
        text = f"{'right' if is_right else 'wrong'}{kind}  {one_line(question.text)}  {given}"
        wanted = "" if is_right else f"  [reference: {one_line(' | '.join(question.answers))}]"
        yield TextLine(text + wanted, ADDED if is_right else REMOVED, indent=2)


def equals_one(answer: str, references: tuple[str, ...]) -> bool:
    """Compare normalised texts, as exact match does."""
    return bool(normalise(answer)) and normalise(answer) in map(normalise, references)


def task_of(record: TrajectoryRecord) -> Task:
    """The task with the fields that dialogue reads."""
    return Task(id=record.task, messages=(), references=(), metadata=record.metadata, data_source=record.data_source)


def _call_lines(written: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> Iterator[TextLine]:
    """The calls in order; `failed` holds the failed ones as they were sampled."""
    failed = iter(written["failed"])
    for call in calls:
        if call["outcome"] == Outcome.SUCCESS:
            yield TextLine(f"> {called(call['name'], call['arguments'])}", indent=2)
        elif (how := next(failed, None)) is not None:
            yield TextLine(f"! {one_line(how['call'])}: {one_line(how['detail'])}", FAILED, indent=2)
    if not calls:
        yield TextLine("no call", QUIET, indent=2)


def _change_line(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> TextLine:
    if before is None or after is None:
        entry = after or before or {}
        sign, style = ("+", ADDED) if after else ("-", REMOVED)
        return TextLine(f"{sign} {_name(entry)}: {one_line(entry['text'])}", style, indent=2)
    texts = f"{one_line(before['text'])} -> {one_line(after['text'])}"
    return TextLine(f"~ {_name(after)}: {texts}", CHANGED, indent=2)


def _name(entry: Mapping[str, Any]) -> str:
    """Kind and id; the kind alone if the id equals it or begins the text."""
    id, kind = one_line(entry["id"]), one_line(entry["kind"])
    return kind if id == kind or entry["text"].startswith(entry["id"]) else f"{kind} {id}"


# --- A recorded episode as text: for a memory agent the growth of its memory, for others the messages and calls.


def episode_lines(record: TrajectoryRecord) -> Iterator[TextLine]:
    yield TextLine(f"episode {one_line(record.id)}{_kind(record)}", HEADING)
    yield TextLine(
        f"{record.agent['name']}, step {record.step}, {record.split}: {record.agent['exit']}", QUIET, indent=2
    )
    if record.error:
        kind, stage, message = (one_line(str(record.error[key])) for key in ("kind", "stage", "message"))
        yield TextLine(f"failed: {kind} in {stage}: {message}", FAILED, indent=2)
    if dialogue.QUESTIONS in record.metadata and record.status == Status.COMPLETED:
        yield from chunk_lines(record)
        yield from question_lines(record)
    else:
        yield from _turn_lines(record)
    yield TextLine("")
    grade = "none" if record.correctness is None else f"{record.correctness:.3f}"
    yield TextLine(f"reward {signed(record.reward)}, correctness {grade}", HEADING)
    for name, value in record.reward_terms.items():
        yield TextLine(f"{signed(value)}  {one_line(name)}", indent=2)
    parts = {n.removeprefix(PART): v for n, v in record.reward_dimensions.items() if n.startswith(PART)}
    if record.reason or parts:
        yield TextLine("")
        yield TextLine("the judge", HEADING)
    if record.reason:
        yield TextLine(record.reason, indent=2)
    for name, value in parts.items():
        yield TextLine(f"{value:g}  {one_line(name)}", indent=2)


def _kind(record: TrajectoryRecord) -> str:
    kind = str(record.metadata.get("kind", ""))
    return f" ({one_line(kind)})" if kind else ""


def _turn_lines(record: TrajectoryRecord) -> Iterator[TextLine]:
    """Every message, and after each sampled message its calls."""
    turn = 0
    for message in record.agent["messages"]:
        yield TextLine("")
        sampled = ", sampled" if message["sampled"] else ""
        yield TextLine(f"{message['role']}, {counted(message['num_tokens'], 'token')}{sampled}", HEADING)
        yield TextLine(message["content"], indent=4)
        if message["sampled"]:
            yield from (_call_line(call) for call in record.agent["tools"] if call["turn"] == turn)
            turn += 1
    yield TextLine("")
    yield TextLine(f"answer: {one_line(record.answer) if record.answer else 'none'}", HEADING)
    yield TextLine(f"reference: {one_line(' | '.join(map(str, record.references)))}", indent=2)


def _call_line(call: Mapping[str, Any]) -> TextLine:
    text = called(call["name"], call["arguments"])
    if call["outcome"] == Outcome.SUCCESS:
        return TextLine(f"> {text}: {counted(call['num_results'], 'result')}", indent=2)
    why = f": {one_line(call['detail'])}" if call["detail"] else ""
    return TextLine(f"! {text}: {call['outcome']}{why}", FAILED, indent=2)


def show(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Print the whole run, one episode of a trajectory file, or a table of the file's episodes. Raises ConfigError if
    the run, file or episode does not exist."""
    given = command.arguments
    run, screen = RunDir(Path(given["run_dir"])), Screen("quiet")
    warn_of_damage([run])
    if not (given["list"] or any(given[name] is not None for name in ("episode", "file", "step"))):
        overview(screen, run)
        return VerbResult()
    path = run.trajectory_file(name=given["file"], step=given["step"]).path
    if given["episode"] is None:
        columns, rows = listing(path)
        screen.line(str(path))
        screen.table(f"{len(rows)} episodes", columns, rows)
    else:
        record = find_episode(path, given["episode"])
        screen.line(str(path))
        for line in episode_lines(record):
            screen.text(line.text, style=line.style, indent=line.indent)
    return VerbResult()
