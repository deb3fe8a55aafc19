"""People's feedback on a run's episodes as a preference set: lines {"prompt", "chosen", "rejected"} as TRL reads them.

The texts are exactly what the policy saw and sampled, in its own chat format: apply no template to them. Tool results
within an episode are part of its text.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import DataError
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.rewards.feedback import Statement, Which, graded, read_feedback

_ENDS = re.compile(r"(?:<\|[^<>|\s]+\|>|</s>|<eos>|<end_of_turn>)\s*$")
"""End of a turn, which a trainer on the text adds again."""


@dataclass(frozen=True, slots=True)
class Told:
    """An episode as prompt and completion text."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceSet:
    rows: Sequence[dict[str, str]]
    missing: int
    """Pairs with an episode that is not in the run, or that has several contexts and so no single text."""

    def line(self, out: Path) -> str:
        left_out = f"; {self.missing} more were left out, as the run has no such episode of one context"
        return f"{len(self.rows)} preferences are in {out}{left_out if self.missing else ''}"


def write_preferences(run: RunDir, feedback: Path, out: Path) -> PreferenceSet:
    """Write the preference set to `out`. Raises DataError if there is no pair to write."""
    found = preferences(run, read_feedback(feedback))
    if not found.rows:
        raise DataError(
            f"{feedback} holds no preference between two episodes of {run.path} ({found.missing} between others); give "
            "a preference, or two different grades for episodes of the same task"
        )
    write_atomic(out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found.rows).encode())
    return found


def preferences(run: RunDir, statements: Sequence[Statement]) -> PreferenceSet:
    pairs = [*_pairs(statements)]
    told = _told(run, {which for pair in pairs for which in pair})
    rows = []
    for better, worse in pairs:
        chosen, rejected = told.get(better), told.get(worse)
        if chosen and rejected and chosen.prompt == rejected.prompt:
            rows.append({"prompt": chosen.prompt, "chosen": chosen.completion, "rejected": rejected.completion})
    return PreferenceSet(rows=rows, missing=len(pairs) - len(rows))


def _pairs(statements: Sequence[Statement]) -> Iterator[tuple[Which, Which]]:
    """Yield (better, worse): each stated preference, then each two episodes of a task whose mean grades differ."""
    seen = set()
    for statement in statements:
        if statement.lower is not None and (pair := (statement.which, statement.lower)) not in seen:
            seen.add(pair)
            yield pair
    grades: dict[Which, list[float]] = defaultdict(list)
    for which, grade in graded([s for s in statements if s.lower is None]):
        grades[which].append(grade)
    means = {which: fmean(of) for which, of in grades.items()}
    for one, other in combinations(means, 2):
        better, worse = (one, other) if means[one] > means[other] else (other, one)
        if one.task == other.task and means[one] != means[other] and (better, worse) not in seen:
            yield better, worse


def _told(run: RunDir, wanted: set[Which]) -> dict[Which, Told]:
    """Return the run's first matching episode for each wanted one."""
    found: dict[Which, Told] = {}
    tasks = {which.task for which in wanted}
    for file in run.trajectory_files():
        for record in read_trajectories(file.path):
            if record.task in tasks and (told := _text(record)) is not None:
                for which in Which.of(record.task, answer=record.answer, response=record.response):
                    if which in wanted:
                        found.setdefault(which, told)
    return found


def _text(record: TrajectoryRecord) -> Told | None:
    messages = record.agent["messages"]
    if not record.response or len({message["branch"] for message in messages}) > 1:
        return None
    text = "".join(message["content"] for message in messages)
    return Told(record.rendered_prompt, _ENDS.sub("", text[len(record.rendered_prompt) :]))
