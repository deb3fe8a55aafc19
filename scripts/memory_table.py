"""Markdown tables of the learning results of memory runs, with no run left out.

python scripts/memory_table.py runs/a runs/b ...

Four tables, all of greedy evaluations: answers and memory before and after training; the oracle and the baselines; the
same by kind of task (`long`: many chunks); and correct answers by kind of question. The last table is counted from the
trajectories: an answer is correct if it equals a reference, normalised as in exact match. It may therefore differ from
the grade of another judge.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.reports.show import equals_one, task_of
from agentgrpo.tasks import dialogue

ORDER = ("current", "history", "count", "forgotten", "rumoured", "never")
"""Kinds of questions that come first, in this order; other kinds follow by name."""
POLICIES = {"before": "start", "after": "end"}
"""Name in the tables -> name in the trajectories' file."""
Row = list[str]


def read(run: Path) -> dict[str, Any]:
    path = run / "eval.json"
    if not path.is_file():
        sys.exit(f"{run} has no eval.json; give runs that were evaluated")
    result: dict[str, Any] = json.loads(path.read_bytes())
    if "memory_tokens" not in result["figures"]["headline"]:
        sys.exit(f"{run} is no run of environment=memory; scripts/learning_table.py shows it")
    return result


def learned(name: str, result: dict[str, Any]) -> Row:
    before, after = (result["greedy"][side] for side in ("baseline", "trained"))
    mean, low, high = (100 * x for x in result["greedy"]["difference"]["correctness"])
    _, least, most = result["greedy"]["difference"]["memory_tokens"]
    return [
        name,
        f"{before['correctness']:.3f} → {after['correctness']:.3f}",
        f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]",
        f"{1 - before['compression']:.3f} → {1 - after['compression']:.3f}",
        f"{before['memory_tokens']:.1f} → {after['memory_tokens']:.1f} [{least:+.1f}, {most:+.1f}]",
        f"{before['validity']:.3f} → {after['validity']:.3f}",
        f"{before['calls_per_chunk']:.2f} → {after['calls_per_chunk']:.2f}",
        result["verdict"],
    ]


def rivals(name: str, result: dict[str, Any]) -> Iterator[Row]:
    """Rows for the trained policy, the oracle and every baseline, each baseline with the policy's gain over it."""
    for who, row in (("after", result["greedy"]["trained"]), ("oracle", result.get("oracle"))):
        if row:
            yield [name, who, f"{row['correctness']:.3f}", f"{1 - row['compression']:.3f}", "", ""]
    for who, row in result.get("baselines", {}).items():
        mean, low, high = (100 * x for x in row["gain"])
        gain = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        yield [name, who, f"{row['correctness']:.3f}", f"{1 - row['compression']:.3f}", gain, row["note"]]


def by_task(name: str, result: dict[str, Any]) -> Iterator[Row]:
    for kind, row in result["greedy"]["kinds"].items():
        before, after = row["baseline"], row["trained"]
        best = max(
            ((who, b["kinds"][kind]) for who, b in result.get("baselines", {}).items() if kind in b["kinds"]),
            key=lambda found: found[1]["correctness"],
            default=None,
        )
        yield [
            name,
            kind,
            f"{before['correctness']:.3f} → {after['correctness']:.3f}",
            f"{1 - before['compression']:.3f} → {1 - after['compression']:.3f}",
            f"{best[0]} {best[1]['correctness']:.3f} ({1 - best[1]['compression']:.3f})" if best else "",
        ]


def right_by_kind(records: Iterable[TrajectoryRecord]) -> dict[str, list[bool]]:
    """Kind of question -> whether each was answered correctly. Failed episodes are left out."""
    found: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if record.status == "completed":
            questions = dialogue.questions_of(task_of(record))
            answers = dialogue.split(record.answer or "", len(questions))
            for question, answer in zip(questions, answers, strict=True):
                found[question.kind].append(equals_one(answer, question.answers))
    return {kind: found[kind] for kind in sorted(found, key=lambda k: (_place(k), k))}


def by_question(run: Path, result: dict[str, Any]) -> dict[str, dict[str, list[bool]]]:
    """Policy or baseline -> kind of question -> correct or not, for those with trajectories in the run."""
    names = POLICIES | {name: name for name in result.get("baselines", {})}
    paths = {who: run / "trajectories" / f"eval-{name}-greedy.jsonl" for who, name in names.items()}
    return {who: right_by_kind(read_trajectories(path)) for who, path in paths.items() if path.is_file()}


def questions_table(runs: Sequence[Path], results: Sequence[dict[str, Any]]) -> str:
    counted = {run: by_question(run, result) for run, result in zip(runs, results, strict=True)}
    kinds = {kind for of in counted.values() for rows in of.values() for kind in rows}
    columns = sorted(kinds, key=lambda k: (_place(k), k))
    rows = [
        [run.name, who, *(f"{fmean(by[kind]):.3f} ({len(by[kind])})" if kind in by else "" for kind in columns)]
        for run, of in counted.items()
        for who, by in of.items()
    ]
    return markdown(["run", "", *(kind or "questions" for kind in columns)], rows)


def markdown(head: Row, rows: Iterable[Row]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def tables(runs: Sequence[Path]) -> str:
    results = [read(run) for run in runs]
    named = [(run.name, result) for run, result in zip(runs, results, strict=True)]
    head = ["run", "correctness", "gain, points [95 %]", "memory share", "memory tokens [95 % of the change]"]
    parts = [
        markdown([*head, "validity", "calls/chunk", "verdict"], [learned(*one) for one in named]),
        markdown(
            ["run", "", "correctness", "memory share", "gain on it, points [95 %]", ""],
            [row for one in named for row in rivals(*one)],
        ),
        markdown(
            ["run", "kind", "correctness", "memory share", "best baseline (its share)"],
            [row for one in named for row in by_task(*one)],
        ),
        questions_table(runs, results),
    ]
    return "\n\n".join(parts)


def _place(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give run directories: python scripts/memory_table.py runs/a runs/b")
    print(tables([Path(argument) for argument in sys.argv[1:]]))
