"""Pages of made-up runs of any size, as `agentgrpo view` lays them out. Equal arguments, equal pages."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.reports.view import page

CHUNK, GROUP, STEPS = 64, 8, 50
DISTINCT = 32
"""Chunks that are made; more episodes repeat their texts, with the numbers of their own row only in the index."""
PIECE = 4
"""Characters of a token."""
KINDS = ("born", "chief", "founder", "hq", "maker")
EXITS = ("answered", "answered", "answered", "no_action", "max_turns")
TERMS = ("correctness", "retriever_cost", "evidence_gain")

Text = Callable[[str], str]
"""What stands in the place of a text of the run."""


def as_it_is(text: str) -> str:
    return text


def write_page(path: Path, episodes: int, *, text: Text = as_it_is, runs: Sequence[str] = ("made",)) -> Path:
    """A page of `episodes` episodes, over all runs, with one step of training for each fiftieth of a run."""
    rows = rows_of(episodes)
    shell = page.page_of("embedded")
    with path.open("wb") as file:
        file.write(shell.head)
        for name, block in _blocks(rows, text, runs):
            file.write(page.element(name, json.dumps(block).encode()))
        file.write(shell.tail)
    return path


def rows_of(episodes: int) -> list[dict[str, Any]]:
    """What the index says of each."""
    return [_row(i, random.Random(i)) for i in range(episodes)]


def _blocks(rows: list[dict[str, Any]], text: Text, runs: Sequence[str]) -> Iterator[tuple[str, Any]]:
    files = _files(len(rows), len(runs))
    task_names = [text(f"task-{g}") for g in range(min(len(rows) // GROUP + 1, 997))]
    kinds, exits = [text(kind) for kind in KINDS], [text(end) for end in dict.fromkeys(EXITS)]
    yield (
        "overview",
        {
            "version": 1,
            "chunk": CHUNK,
            "num_episodes": len(rows),
            "runs": [_run(name, text, seed) for seed, name in enumerate(runs)],
            "files": files,
        },
    )
    place = [i for i, file in enumerate(files) for _ in range(file["count"])]
    numbers = ("sample", "reward", "correctness", "advantage", "turns", "tokens", "calls", "cost", "seconds")
    codes = [row["group"] % len(task_names) for row in rows]
    yield (
        "index",
        {
            "file": place,
            "step": [files[i]["step"] for i in place],
            **{name: [row[name] for row in rows] for name in numbers},
            "task": {"values": task_names, "codes": codes},
            "kind": {"values": kinds, "codes": [row["group"] % len(KINDS) for row in rows]},
            "exit": {"values": exits, "codes": [row["exit"] for row in rows]},
            "status": {"values": ["completed", text("failed")], "codes": [int(row["failed"]) for row in rows]},
            "error": {"values": [None, text("error")], "codes": [int(row["failed"]) for row in rows]},
            "dropped": {"values": [None, text("degenerate")], "codes": [int(row["group"] % 4 == 0) for row in rows]},
        },
    )
    made: dict[int, list[Any]] = {}
    for k in range(-(-len(rows) // CHUNK)):
        part = rows[k * CHUNK : (k + 1) * CHUNK]
        key = k % DISTINCT
        if key not in made or len(made[key]) != len(part):
            made[key] = [
                _episode(row, task_names[row["group"] % len(task_names)], exits[row["exit"]], text) for row in part
            ]
        yield f"chunk-{k}", made[key]


def _files(total: int, runs: int) -> list[dict[str, Any]]:
    files, first = [], 0
    for run in range(runs):
        share = total // runs + (total % runs if run == runs - 1 else 0)
        size = -(-share // (STEPS + 2) // GROUP) * GROUP or GROUP
        names = [(f"train-{s:06d}", "train", s) for s in range(STEPS)]
        names += [("eval-start-greedy", "start", None), ("eval-end-greedy", "end", None)]
        for i, (name, policy, step) in enumerate(names):
            count = min(size, share) if i < len(names) - 1 else share
            mode = "sampled" if policy == "train" else "greedy"
            place = {"run": run, "name": name, "policy": policy, "step": step, "mode": mode, "damaged": None}
            files.append({**place, "first": first, "count": count})
            first, share = first + count, share - count
    return files


def _row(number: int, rng: random.Random) -> dict[str, Any]:
    right = float(rng.random() < 0.7)
    return {
        "number": number,
        "group": number // GROUP,
        "sample": number % GROUP,
        "reward": round(right - rng.random() * 0.3, 4),
        "correctness": right,
        "advantage": round(rng.gauss(0, 1), 4),
        "turns": 1 + rng.randrange(3),
        "tokens": 30 + rng.randrange(40),
        "calls": 1,
        "cost": round(rng.random() * 0.1, 3),
        "seconds": round(rng.random() * 3, 3),
        "exit": rng.randrange(3),
        "failed": rng.random() < 0.02,
    }


def pieces_of(text: str) -> list[int]:
    """Characters per token, as a browser counts them."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return [PIECE] * (units // PIECE) + ([units % PIECE] if units % PIECE else [])


def _message(
    text: str, *, sampled: bool, advantage: float | None, rng: random.Random, branch: int = 0
) -> dict[str, Any]:
    pieces = pieces_of(text)
    return {
        "branch": branch,
        "role": "assistant" if sampled else "tool",
        "sampled": sampled,
        "version": 3 if sampled else None,
        "text": text,
        "advantage": advantage if sampled else None,
        "pieces": pieces,
        "logprobs": [round(-(rng.random() ** 4) * 5, 4) for _ in pieces] if sampled else None,
        "ratios": [round(0.7 + rng.random() * 0.6, 4) for _ in pieces] if sampled else None,
        "cut_short": False,
    }


def _episode(row: dict[str, Any], task: str, end: str, text: Text) -> dict[str, Any]:
    rng = random.Random(row["number"])
    memory = row["group"] % 2 == 1
    question = text(f"Who founded the house number {row['group']}?")
    # The bits of the place in the group, a token each: any two episodes part at one of three tokens.
    ways = "".join(PIECE * str(row["sample"] >> bit & 1) for bit in range(3))
    said = (f"<search> house {row['group']} {ways} </search>", "a document says much. " * 30, "<answer> me")
    turns = [
        _message(text(t), sampled=i != 1, advantage=row["advantage"], rng=rng, branch=i if memory else 0)
        for i, t in enumerate(said)
    ]
    call = {
        "turn": 0,
        "name": text("search"),
        "arguments": {text("query"): text("house")},
        "outcome": "success" if rng.random() < 0.8 else text("timeout"),
        "detail": text("a detail"),
        "num_results": 2,
        "result_ids": [text("doc-1"), text("doc-2")],
        "cached": False,
        "cost": 0.05,
        "seconds": 0.2,
        "was_cut": False,
    }
    return {
        "id": f"{task}/{row['sample']}",
        "task": task,
        "group": task,
        "metadata": {text("key"): text("value"), **(_chunks(text) if memory else {})},
        "references": [text("a reference")],
        "question": question,
        "messages": turns,
        "tools": [call],
        "answer": json.dumps([text("an answer"), text("another")]) if memory else text("an answer"),
        "reward": row["reward"],
        "branch_rewards": [],
        "terms": {name: round(rng.gauss(0, 0.3), 3) for name in TERMS},
        "dimensions": {"correctness": row["correctness"]},
        "correctness": row["correctness"],
        "metrics": {text("rounds"): 1.0, text("never"): 0.0},
        "costs": {text("cost"): row["cost"]},
        "citations": [{"doc_id": text("doc"), "marker": text("[1]"), "text": text("cited")}],
        "retrieved_ids": [text("retrieved")],
        "memory": _memory(text) if memory else [],
        "error": {"kind": text("kind"), "detail": text("what")} if row["failed"] else None,
        "dropped": None,
        "status": "completed",
        "exit": end,
        "policy_version": 3,
        "timings": {"time_generate": 0.5},
    }


def _chunks(text: Text) -> dict[str, Any]:
    questions = [
        {"question": text(f"question {i}"), "answers": [text("yes")], "kind": text("current")} for i in range(2)
    ]
    return {"chunks": [text("chunk one"), text("chunk two")], "questions": questions}


def _memory(text: Text) -> list[dict[str, Any]]:
    first = {"id": "a", "kind": text("fact"), "text": text("he lives here"), "chunk": 0}
    second = {"id": "a", "kind": text("fact"), "text": text("he lives there"), "chunk": 1}
    failed = [{"call": text("<update>"), "detail": text("no such entry")}]
    return [
        {
            "chunk": 0,
            "changes": [{"op": "insert", "before": None, "after": first}],
            "failed": [],
            "tokens": 4,
            "entries": 1,
        },
        {
            "chunk": 1,
            "changes": [{"op": "update", "before": first, "after": second}],
            "failed": failed,
            "tokens": 4,
            "entries": 1,
        },
    ]


def _run(name: str, text: Text, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    steps = list(range(STEPS))

    def curve(start: float, end: float, noise: float = 0.05) -> list[float]:
        return [round(end + (start - end) * 0.92**s + rng.gauss(0, noise), 4) for s in steps]

    tags = {
        "reward/mean": curve(0.3, 0.9),
        "reward/std": curve(0.4, 0.2),
        "correctness": curve(0.4, 0.95),
        "agent/search_rounds": curve(2.4, 1.4),
        "agent/web_searches": curve(1.5, 0.3),
        "agent/vdb_searches": curve(0.5, 1.1),
        f"agent/calls/{text('tool')}": curve(1, 1),
        "agent/exit_answered": curve(0.9, 1.0, 0.0),
        "groups/total": [16.0] * STEPS,
        "groups/degenerate": [float(rng.randrange(16)) for _ in steps],
        **{f"reward/term/{term}": curve(-0.1, 0.3) for term in TERMS},
        f"agent/{text('metric')}": curve(1, 0),
    }
    timings = {"time/generation": curve(2, 1), "time/train": curve(1, 1)}
    figures = {"correctness": 0.6, "search_rounds": 2.4, text("figure"): 1.0}
    difference = {key: [0.1, 0.05, 0.15] for key in figures}
    kinds = {text(kind): {"baseline": figures, "trained": figures} for kind in KINDS}
    mode = {"baseline": figures, "trained": figures, "difference": difference, "kinds": kinds}
    lines = [f"{key}:\n  name: {json.dumps(text('value'))}" for key in ("task", "model", "environment")]
    return {
        "name": text(name),
        "path": text(f"runs/{name}"),
        **{key: text(key) for key in ("task", "model", "reward", "agent", "algorithm")},
        "max_steps": STEPS,
        "steps_done": STEPS,
        "finished": True,
        "verdict": "PASS",
        "config": "\n".join(lines) + f"\nrun:\n  seed: {seed}\n",
        "environment": {"versions": {"torch": text("2.9")}, "machine": text("Linux")},
        "metrics": {"step": steps, "tags": tags},
        "timings": {"step": steps, "tags": timings},
        "profile": {"step": [], "tags": {}},
        "evaluation": {
            "verdict": "PASS",
            "reason": text("better"),
            "n": 100,
            "greedy": mode,
            "sampled": mode,
            "oracle": figures,
        },
        "labels": {"agent/search_rounds": text("rounds"), "correctness": "correctness"},
        "has_tokens": True,
        "has_ratio": True,
        "ratio_of": text("step-000040"),
        "damage": [text("eval.json: torn")],
    }


def in_turn(strings: Iterable[str]) -> Text:
    """A text that gives the strings one after another, and from their start again."""
    left = list(strings)
    place = 0

    def next_one(_: str) -> str:
        nonlocal place
        place += 1
        return left[(place - 1) % len(left)]

    return next_one
