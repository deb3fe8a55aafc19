"""`agentgrpo diff RUN_A RUN_B`: how two runs differ. It loads no model, and both runs may still be running."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.records.card import flatten
from agentgrpo.records.difference import first_difference
from agentgrpo.records.html_page import json_text
from agentgrpo.records.lines import counted, one_line, signed
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.reports.damage import warn_of_damage
from agentgrpo.reports.recorded import MODES, RecordedEvaluation, in_common, read_recorded
from agentgrpo.run.evaluate import paired_difference

# --- The first episode of a step that differs between two runs, and its first differing token.

_OUTCOMES = (
    "answer",
    "finish_reason",
    "error",
    "correctness",
    "reward",
    "reward_terms",
    "reward_branches",
    "advantage",
)
"""Fields of an episode's outcome, in the order in which they are determined."""
_SHOWN = 60
"""Characters shown of a text, starting at the difference."""


class _Token(NamedTuple):
    branch: int
    position: int
    message: int
    """Index among the episode's messages."""
    role: str
    sampled: bool
    token: int
    logprob: float | None


def first_episode(a: RunDir, b: RunDir, step: int) -> dict[str, Any]:
    """The first difference between two runs' episodes of a step: {"what": ..., "id": of the episode, "a", "b", ...}.

    what: "token" or "logprob", with its place; "text", if no tokens were recorded; "id", if different tasks were drawn;
    "call"; a field of the outcome; "nothing", if all episodes are equal and therefore only the update differs;
    "unknown", with "reason", if the episodes cannot be compared.
    """
    files = [next((f.path for f in run.trajectory_files() if f.step == step), None) for run in (a, b)]
    if files[0] is None or files[1] is None:
        missing = [run.name for run, file in zip((a, b), files, strict=True) if file is None]
        return {"what": "unknown", "reason": f"{' and '.join(missing)} has no trajectories of the step"}
    try:
        for one, other in zip_longest(read_trajectories(files[0]), read_trajectories(files[1])):
            if found := _apart(one, other):
                return found
    except DataError as e:
        return {"what": "unknown", "reason": str(e)}
    return {"what": "nothing"}


def _apart(a: TrajectoryRecord | None, b: TrajectoryRecord | None) -> dict[str, Any] | None:
    if a is None or b is None or a.id != b.id:
        return {"what": "id", "id": (a or b).id, **_episode_sides(a and a.id, b and b.id)}  # type: ignore[union-attr]
    found = _token_apart(a, b) if a.branches and b.branches else None
    if found := found or _text_apart(a, b):
        return {**found, "id": a.id}
    if (at := first_difference(a.agent["tools"], b.agent["tools"])) is not None:
        calls = [row.agent["tools"][at] if at < len(row.agent["tools"]) else None for row in (a, b)]
        return {"what": "call", "id": a.id, "call": at, **_episode_sides(*calls)}
    for name in _OUTCOMES:
        if (before := getattr(a, name)) != (now := getattr(b, name)):
            return {"what": name, "id": a.id, **_episode_sides(before, now)}
    return None


def _token_apart(a: TrajectoryRecord, b: TrajectoryRecord) -> dict[str, Any] | None:
    """The first differing token or, in equal sequences, the first differing log-prob."""
    logprob = None
    for one, other in zip_longest(_tokens(a), _tokens(b)):
        at = one or other
        assert at is not None
        place = {"branch": at.branch, "position": at.position, "message": at.message, "role": at.role}
        place["sampled"] = at.sampled
        if one is None or other is None or one[:-1] != other[:-1]:
            return {"what": "token", **place, **_episode_sides(_token(a, one), _token(b, other))}
        if logprob is None and one.logprob != other.logprob:
            logprob = {"what": "logprob", **place, **_episode_sides(_token(a, one), _token(b, other))}
    return logprob


def _token(record: TrajectoryRecord, token: _Token | None) -> dict[str, Any] | None:
    """The token as JSON, with the text of its message."""
    if token is None:
        return None
    text = record.agent["messages"][token.message]["content"]
    return {"token": token.token, "logprob": token.logprob, "text": text}


def _text_apart(a: TrajectoryRecord, b: TrajectoryRecord) -> dict[str, Any] | None:
    for i, (one, other) in enumerate(zip_longest(a.agent["messages"], b.agent["messages"])):
        if _said(one) != _said(other):
            at = one or other
            texts = [None if m is None else m["content"] for m in (one, other)]
            same = first_difference(*(text or "" for text in texts)) or 0
            shown = [None if text is None else text[same : same + _SHOWN] for text in texts]
            place = {"branch": at["branch"], "message": i, "role": at["role"], "sampled": at["sampled"]}
            return {"what": "text", **place, "character": same, **_episode_sides(*shown)}
    return None


def _said(message: Mapping[str, Any] | None) -> tuple[Any, ...]:
    return () if message is None else (message["branch"], message["role"], message["content"])


def _tokens(record: TrajectoryRecord) -> Iterator[_Token]:
    message = -1
    for number, branch in enumerate(record.branches):
        position = 0
        for segment in branch.segments:
            message += 1
            for i, token in enumerate(segment.token_ids):
                logprob = None if segment.logprobs is None else segment.logprobs[i]
                yield _Token(number, position, message, segment.role, segment.sampled, token, logprob)
                position += 1


def _episode_sides(a: Any, b: Any) -> dict[str, Any]:
    return {"a": a, "b": b}


# --- Two runs' end weights, over the tasks that both were evaluated on.


def evaluations(a: RunDir, b: RunDir) -> dict[str, Any]:
    """Mode -> {"n": number of common tasks, "reason": why they cannot be compared, or ""; "only": number of tasks in
    one run only; "renamed": number of tasks with the same id but another content; "failed"; "headline": names of
    metrics, the quality first; "metrics": {name: {"a","b","difference"}}; "kinds": the quality by kind of task, with
    "n"}. difference: [mean, low, high], paired by task."""
    return {mode: _mode(a, b, mode) for mode in MODES}


def _mode(a: RunDir, b: RunDir, mode: str) -> dict[str, Any]:
    try:
        before, now = (read_recorded(run, "end", mode) for run in (a, b))
    except DataError as e:
        return {"n": 0, "reason": str(e)}
    missing = [run.name for run, found in ((a, before), (b, now)) if found is None]
    if before is None or now is None:
        return {"n": 0, "reason": f"the end weights of {' and '.join(missing)} are not evaluated"}
    common, renamed = in_common(before, now)
    row = {
        "n": len(common),
        "reason": "" if common else "no task in common",
        "only": {"a": len(before.task_ids) - len(common), "b": len(now.task_ids) - len(common)},
        "renamed": renamed,
        "failed": {"a": before.num_failed, "b": now.num_failed},
    }
    return row | (_compared(before.only(common), now.only(common)) if common else {})


def _compared(a: RecordedEvaluation, b: RecordedEvaluation) -> dict[str, Any]:
    names = [name for name in a.columns if name in b.columns]
    metrics = {name: _difference(a.columns[name], b.columns[name]) for name in names}
    kinds = {}
    for kind in sorted({*a.kinds} - {""}):
        rows = [i for i, k in enumerate(a.kinds) if k == kind]
        sides = ([side.columns[side.quality][i] for i in rows] for side in (a, b))
        kinds[kind] = {"n": len(rows), **_difference(*sides)}
    return {"headline": [name for name in a.headline if name in metrics], "metrics": metrics, "kinds": kinds}


def _difference(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    return {"a": fmean(a), "b": fmean(b), "difference": list(paired_difference(a, b))}


# --- The rewards of two runs, and the first step in which the runs differ.

LAST = 10
"""Number of final steps whose mean represents the end of training."""
_TERM = "reward/term/"
_WHOLE = ("reward/mean", "correctness", "cost/episode")


def rewards(a: RunDir, b: RunDir) -> dict[str, Any]:
    """Means over the common steps: {"steps": {"a","b","common"}, "last": {tag: {"a","b","difference"}}, "all":
    likewise}. last: over the last LAST common steps. A value is null if the run lacks the tag."""
    before, now = _by_step(a), _by_step(b)
    common = sorted(before.keys() & now.keys())
    rows = [before[step] for step in common], [now[step] for step in common]
    terms = sorted({tag for side in rows for row in side for tag in row if tag.startswith(_TERM)})
    tags = [tag for tag in (*_WHOLE, *terms) if any(tag in row for side in rows for row in side)]
    return {
        "steps": {"a": len(before), "b": len(now), "common": len(common)},
        "last": {tag: _means(tag, *(side[-LAST:] for side in rows)) for tag in tags},
        "all": {tag: _means(tag, *rows) for tag in tags},
    }


def _means(tag: str, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    sides = [[row[tag] for row in side if row.get(tag) is not None] for side in (a, b)]
    means = [fmean(values) if values else None for values in sides]
    known = means[0] is not None and means[1] is not None
    return {"a": means[0], "b": means[1], "difference": means[1] - means[0] if known else None}  # type: ignore[operator]


def first_step_apart(a: RunDir, b: RunDir) -> dict[str, Any] | None:
    """The first common step whose metrics are not equal, bit for bit: {"step", "tags": rows as in `settings`,
    "episode": see `first_episode`}; None if all common steps are equal."""
    before, now = _by_step(a), _by_step(b)
    for step in sorted(before.keys() & now.keys()):
        if before[step] != now[step]:
            return {"step": step, "tags": _tags(before[step], now[step]), "episode": first_episode(a, b, step)}
    return None


def _tags(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    differ = sorted(tag for tag in a.keys() | b.keys() if (tag in a, a.get(tag)) != (tag in b, b.get(tag)))
    return [{"key": tag, **{name: row[tag] for name, row in (("a", a), ("b", b)) if tag in row}} for tag in differ]


def _by_step(run: RunDir) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in run.metrics()}


# --- Settings, versions and machines that differ, key by key.

_OWN = ("run.dir",)
"""Keys that always differ between runs."""


def settings(a: RunDir, b: RunDir) -> list[dict[str, Any]]:
    """{"key","a","b"} for every key of the configurations that differs, sorted by key."""
    return apart(a.config, b.config)


def apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The differing rows of two nested mappings, sorted by key; a row lacks "a" or "b" if that side lacks the key."""
    before, now = flatten(a), flatten(b)
    rows = []
    for key in sorted(before.keys() | now.keys()):
        if key not in _OWN and (key in before, before.get(key)) != (key in now, now.get(key)):
            sides = {name: side[key] for name, side in (("a", before), ("b", now)) if key in side}
            rows.append({"key": key, **sides})
    return rows


# --- The origin of two runs: versions and machine, start weights, data.


def origins(a: RunDir, b: RunDir) -> dict[str, Any]:
    """ "environment": differing versions, machine facts and determinism. "start" and "fingerprints": digests of the
    start weights, the data and the tools, with "same" (null if a run has no checkpoint that records them)."""
    states = [run.checkpoint_state() for run in (a, b)]
    starts = [state.get("start", {}).get("sha256") for state in states]
    names = sorted({name for state in states for name in state.get("fingerprints", {})})
    fingerprints = {name: [state.get("fingerprints", {}).get(name) for state in states] for name in names}
    return {
        "environment": apart(a.environment, b.environment),
        "start": _sides(starts, known=all(starts)),
        "fingerprints": {name: _sides(values, known=all(states)) for name, values in fingerprints.items()},
    }


def _sides(values: list[Any], *, known: bool) -> dict[str, Any]:
    return {"a": values[0], "b": values[1], "same": values[0] == values[1] if known else None}


# --- The difference of two runs as text.

_ABSENT = "–"
_TAGS = 12
"""Number of differing tags shown for the first differing step; --json lists all."""
_WIDE = 70
"""Maximum characters of a value."""


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
    """The first difference between the episodes, in words."""
    what = episode["what"]
    if what == "nothing":
        return ["its episodes are the same: it was the update that differs"]
    if what == "unknown":
        return [f"its episodes cannot be compared: {episode['reason']}"]
    if what == "id":
        return [f"first episode that differs: {episode['a']} in A, {episode['b']} in B: other tasks were drawn"]
    head = f"first episode that differs: {episode['id']}, in {_place(episode)}"
    return [head, *(f"  {name.upper()}  {_said_lines(episode[name])}" for name in ("a", "b"))]


def _place(episode: Mapping[str, Any]) -> str:
    what = episode["what"]
    if what == "call":
        return f"call {episode['call']}"
    if "message" not in episode:
        return str(what)
    by = "sampled by the policy" if episode["sampled"] else "not sampled: what it was told"
    at = f"{what} {episode['position']}" if "position" in episode else f"character {episode['character']}"
    return f"branch {episode['branch']}, message {episode['message']} ({episode['role']}, {by}), {at}"


def _said_lines(side: Any) -> str:
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
        screen.table(
            title, ["metric", "A", "B", "B − A", "95 % interval"], [_compared_lines(*m) for m in metrics.items()]
        )
        if row["kinds"] and mode == "greedy":
            quality = row["headline"][0]
            rows = [_compared_lines(f"{kind} ({k['n']})", k) for kind, k in row["kinds"].items()]
            screen.table(f"{quality} by kind, {mode}", ["kind", "A", "B", "B − A", "95 % interval"], rows)
    if row.get("renamed"):
        screen.text(f"note: {counted(row['renamed'], 'task')} of one id ask something else in A and B; left out")
    if any(row.get("only", {}).values()):
        screen.text(f"note: {row['only']['a']} tasks are A's alone and {row['only']['b']} B's; left out")
    if any(row.get("failed", {}).values()):
        screen.text(f"note: {row['failed']['a']} tasks failed in A and {row['failed']['b']} in B; left out")


def _compared_lines(name: str, row: Mapping[str, Any]) -> list[str]:
    mean, low, high = row["difference"]
    return [name, f"{row['a']:.3f}", f"{row['b']:.3f}", signed(mean), f"[{low:+.3f}, {high:+.3f}]"]


def diff(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Exit code 0 whether or not the runs differ. Raises ConfigError if a directory is not a run."""
    given = command.arguments
    if len(given["other"]) != 1:
        raise ConfigError(f"diff compares two runs, got {1 + len(given['other'])}: agentgrpo diff RUN_A RUN_B")
    runs = [RunDir(Path(path)) for path in (given["run_dir"], given["other"][0])]
    warn_of_damage(runs)
    found = difference(*runs)
    if given["json"]:
        print(json_text(found, indent=2))
    else:
        show(Screen("quiet"), found)
    return VerbResult()


def difference(a: RunDir, b: RunDir) -> dict[str, Any]:
    """The data that `--json` prints: "a" and "b" are the runs; a row with only one of them exists only there.
    Differences are b minus a."""
    return {
        "runs": {"a": str(a.path), "b": str(b.path)},
        "settings": settings(a, b),
        **origins(a, b),
        "rewards": rewards(a, b),
        "first_difference": first_step_apart(a, b),
        "evaluations": evaluations(a, b),
    }
