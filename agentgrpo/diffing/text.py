"""The difference of two runs as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.diffing.metrics import LAST
from agentgrpo.recipes.lines import counted, one_line, signed
from agentgrpo.records.screen import Screen

_ABSENT = "–"
_TAGS = 12
"""Tags of the first step that differs that are shown; --json has all."""
_WIDE = 70
"""Characters of a value."""


def show(screen: Screen, found: Mapping[str, Any]) -> None:
    screen.text(f"A  {found['runs']['a']}")
    screen.text(f"B  {found['runs']['b']}")
    _rows(screen, "settings", "key", found["settings"], none="the settings are the same")
    _rows(screen, "versions and machine", "what", found["environment"], none="versions and machine are the same")
    for what, sides in (("start weights", found["start"]), *sorted(found["fingerprints"].items())):
        screen.text(f"{what}: {_sameness(sides)}")
    _rewards(screen, found["rewards"])
    _first(screen, found["first_difference"], found["rewards"]["steps"])
    for mode, row in found["evaluations"].items():
        _evaluation(screen, mode, row)


def _rows(screen: Screen, title: str, column: str, rows: Sequence[Mapping[str, Any]], *, none: str) -> None:
    if rows:
        screen.table(
            title, [column, "A", "B"], [[one_line(row["key"]), _value(row, "a"), _value(row, "b")] for row in rows]
        )
    else:
        screen.text(none)


def _value(row: Mapping[str, Any], side: str) -> str:
    if side not in row:
        return _ABSENT
    value = row[side]
    text = one_line(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _WIDE else f"{text[:_WIDE]}…"


def _sameness(sides: Mapping[str, Any]) -> str:
    if sides["same"] is None:
        return "unknown: a run has no checkpoint that says so"
    if sides["same"]:
        return "the same"
    return f"{str(sides['a'])[:12]} in A, {str(sides['b'])[:12]} in B"


def _rewards(screen: Screen, rewards: Mapping[str, Any]) -> None:
    steps = rewards["steps"]
    screen.text(f"steps: {steps['a']} in A, {steps['b']} in B, {steps['common']} in both")
    if not steps["common"]:
        return
    for title, part in (
        (f"mean of the last {min(LAST, steps['common'])} steps of both", "last"),
        (f"mean of all {steps['common']}", "all"),
    ):
        rows = [
            [one_line(tag).removeprefix("reward/"), *(_ABSENT if x is None else signed(x) for x in row.values())]
            for tag, row in rewards[part].items()
        ]
        screen.table(title, ["reward", "A", "B", "B − A"], rows)


def _first(screen: Screen, first: Mapping[str, Any] | None, steps: Mapping[str, int]) -> None:
    if first is None:
        if steps["common"]:
            screen.text(f"the metrics of {counted(steps['common'], 'step')} are the same, bit for bit")
        return
    screen.text(f"first step that differs: {first['step']}, in {counted(len(first['tags']), 'metric')}")
    _rows(screen, f"step {first['step']}", "metric", first["tags"][:_TAGS], none="")
    if len(first["tags"]) > _TAGS:
        screen.text(f"... and {len(first['tags']) - _TAGS} more: --json")
    for line in episode_lines(first["episode"]):
        screen.text(line)


def episode_lines(episode: Mapping[str, Any]) -> list[str]:
    """Where the first episode differs, in words."""
    what = episode["what"]
    if what == "nothing":
        return ["its episodes are the same: it was the update that differs"]
    if what == "unknown":
        return [f"its episodes cannot be compared: {episode['reason']}"]
    if what == "id":
        return [f"first episode that differs: {episode['a']} in A, {episode['b']} in B: other tasks were drawn"]
    head = f"first episode that differs: {episode['id']}, in {_place(episode)}"
    return [head, *(f"  {name.upper()}  {_said(episode[name])}" for name in ("a", "b"))]


def _place(episode: Mapping[str, Any]) -> str:
    what = episode["what"]
    if what == "call":
        return f"call {episode['call']}"
    if "message" not in episode:
        return str(what)
    by = "sampled by the policy" if episode["sampled"] else "not sampled: what it was told"
    at = f"{what} {episode['position']}" if "position" in episode else f"character {episode['character']}"
    return f"branch {episode['branch']}, message {episode['message']} ({episode['role']}, {by}), {at}"


def _said(side: Any) -> str:
    if side is None:
        return _ABSENT
    if isinstance(side, dict) and side.keys() == {"token", "logprob", "text"}:
        logprob = "" if side["logprob"] is None else f", log-prob {side['logprob']!r}"
        return f"token {side['token']}{logprob}: {_value({'text': side['text']}, 'text')}"
    return _value({"side": side}, "side")


def _evaluation(screen: Screen, mode: str, row: Mapping[str, Any]) -> None:
    if row["reason"]:
        screen.text(f"evaluation, {mode}: {row['reason']}")
    else:
        metrics = {name: row["metrics"][name] for name in (*row["headline"], *row["metrics"])}
        title = f"end weights, {counted(row['n'], 'task')} in common, {mode}"
        screen.table(title, ["metric", "A", "B", "B − A", "95 % interval"], [_compared(*m) for m in metrics.items()])
        if row["kinds"] and mode == "greedy":
            quality = row["headline"][0]
            rows = [_compared(f"{kind} ({k['n']})", k) for kind, k in row["kinds"].items()]
            screen.table(f"{quality} by kind, {mode}", ["kind", "A", "B", "B − A", "95 % interval"], rows)
    if row.get("renamed"):
        screen.text(f"note: {counted(row['renamed'], 'task')} of one id ask something else in A and B; left out")
    if any(row.get("only", {}).values()):
        screen.text(f"note: {row['only']['a']} tasks are A's alone and {row['only']['b']} B's; left out")
    if any(row.get("failed", {}).values()):
        screen.text(f"note: {row['failed']['a']} tasks failed in A and {row['failed']['b']} in B; left out")


def _compared(name: str, row: Mapping[str, Any]) -> list[str]:
    mean, low, high = row["difference"]
    return [name, f"{row['a']:.3f}", f"{row['b']:.3f}", signed(mean), f"[{low:+.3f}, {high:+.3f}]"]
