"""One recorded episode: the schema."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

from agentgrpo.core.durable import write_each_atomic
from agentgrpo.core.errors import DataError, line_of
from agentgrpo.core.messages import Status, finish_reason_of, group_status, status_of
from agentgrpo.core.types import Branch, Episode, Failure, RewardResult, ScoredGroup, Segment, Task

SCHEMA_VERSION = 5
"""Incremented whenever a field is added, removed or renamed, or changes its meaning.

2: group_status; num_bytes, was_cut and cost of a call.
3: memory, reward_branches.
4: environment, which holds the metrics (a separate field before) and the outcome.
5: reason; finish_reason and status of an episode without an answer; by_environment of a call; seat of a
message.
"""
READABLE = (3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """One recorded episode; the fields are the keys of its line, except `branches`."""

    id: str
    """"<task>/<sample_index>", unique within the file."""
    group: str
    task: str
    sample_index: int
    data_source: str
    metadata: dict[str, Any]
    """The data set's own fields of the task."""
    step: int
    split: str
    status: str
    """completed | failed, by core.messages.status_of. An episode fails by the infrastructure, its judge included, or by
    the time limit, and has no reward: training drops its group, an evaluation counts it as wrong in `denominator`."""
    group_status: str
    """completed | failed (if an episode of its group failed), by core.messages.group_status."""
    finish_reason: str
    """stop (it answered, or stopped acting) | length (a limit ended it: context, turns, searches, turns without an
    action; agent.exit says which) | timeout | error."""
    error: dict[str, Any] | None
    """{"kind","stage","message"} of the failure of the episode or of its judge."""
    dropped: str | None
    """Why the episode was not trained on; null = it was, or nothing was trained."""
    prompt_messages: list[Any]
    rendered_prompt: str
    """Text of the segments before the first sampled one, in the first branch."""
    references: list[Any]
    response: str
    """Text of every sampled segment."""
    answer: str | None
    correctness: float | None
    reason: str
    """The judge's reason for its grade; "" = no reason. A grade made of several has all their reasons."""
    reward: float | None
    """null = the episode could not be scored, which is different from 0."""
    reward_terms: dict[str, Any]
    reward_dimensions: dict[str, Any]
    """Values by dimension. criterion/NAME is a part of a judge's grade, or a further number that the judge gave; it is
    not part of the reward's sum."""
    reward_branches: list[Any]
    """The reward of each branch, for its tokens alone; [] = all branches got `reward`."""
    advantage: float | list[Any] | None
    """With credit by turn, branch or position: a list with one entry for each sampled message."""
    prompt_len: int
    """Tokens before the first sampled one, in the first branch."""
    response_len: int
    """Sampled tokens of all branches."""
    agent: dict[str, Any]
    """{"name","exit","tool_turns","messages","tools"}."""
    memory: list[Any]
    """The notes of a memory environment, an object for each branch: see Episode.memory. [] for other environments."""
    environment: dict[str, Any]
    """{"name","metrics","outcome"}: metrics by name, and the environment's own scores."""
    citations: list[Any]
    retrieved_ids: list[Any]
    costs: dict[str, Any]
    """The amounts that the reward terms named *_cost charged; positive = charged."""
    policy_version: int | None
    """The oldest weights that sampled a token of the episode; null = no token was sampled, as in demonstrations."""
    seed: int
    """The run's seed; the episode's seed also depends on split, step, task and sample_index."""
    branches: tuple[Branch, ...]
    """The segments, bit for bit; () if tokens were not recorded."""

    @property
    def is_demonstrated(self) -> bool:
        """Whether its turns were given instead of sampled by a policy."""
        return any(m["sampled"] and m["policy_version"] is None for m in self.agent["messages"])

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the episode, by name."""
        return dict(self.environment["metrics"])


# --- JSON text of a trajectory's parts: ASCII, compact, with null for a number that is not finite.

_MAX_DEPTH = 64
_DEEPEST_HOME = 4
"""Nesting level of a tool call's arguments in a line."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_FLOAT = {float}
_AS_IT_IS = {str, int, bool, type(None)}


def line(row: Mapping[str, Any]) -> str:
    """`row` as a JSON object."""
    try:
        return _ENCODER.encode(row)
    except ValueError:  # a number that is not finite: rare, and expensive to look for
        return _ENCODER.encode(_plain(row))


def string(value: str) -> str:
    return _ENCODER.encode(value)


def members(row: Mapping[str, Any]) -> str:
    """`row` as a JSON object without its braces, to be joined with others by commas."""
    return line(row)[1:-1]


def numbers(values: Mapping[str, float]) -> str:
    """`line` for names and numbers, sorted by name: three times as fast, because each name is encoded only once."""
    ordered, template = _template(tuple(values))
    found = [values[name] for name in ordered]
    if set(map(type, found)) == _FLOAT and math.isfinite(sum(found)):
        return template % tuple(found)
    return line(dict(zip(ordered, found, strict=True)))


@lru_cache(maxsize=256)
def _template(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The sorted names, and the text of their JSON object with a placeholder for each float."""
    ordered = tuple(sorted(names))
    return ordered, "{" + ",".join(_ENCODER.encode(name).replace("%", "%%") + ":%r" for name in ordered) + "}"


def foreign(value: Any) -> Any:
    """A value from outside this package, with its keys sorted, so that the bytes of a file depend on the values alone.
    Raises DataError if it cannot be JSON."""
    return _plain(value, depth=_DEEPEST_HOME)


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as strict JSON, since arguments come from a policy and metadata from a user."""
    if depth > _MAX_DEPTH:
        return f"[more than {_MAX_DEPTH} levels deep]"
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        plain = {str(k): v if type(v) in _AS_IT_IS else _plain(v, depth + 1) for k, v in value.items()}
        return {k: plain[k] for k in sorted(plain)} if depth else plain
    if isinstance(value, (list, tuple)):
        return [_plain(v, depth + 1) for v in value]
    raise DataError(f"a trajectory cannot hold a {type(value).__name__}; metadata and arguments must be plain JSON")


# --- Token ids and logprobs of an episode as text, bit for bit.
#
# An array is "<element>:<base64 of zlib of little-endian elements>"; an element is i (int32), f (float32, where no bit
# is lost) or d (float64, which zlib only wraps).

_LEVELS = {"i": 1, "f": 1, "d": 0}
"""Element -> compression level. Higher levels gain nothing on ids, and zlib cannot compress mantissas of doubles."""


def pack(branches: Sequence[Branch]) -> dict[str, str]:
    """{"ids": the packed ids of all segments in order, "logprobs": those of the sampled segments}."""
    segments = [s for b in branches for s in b.segments]
    logprobs = [x for s in segments for x in s.logprobs or ()]
    return {
        "ids": _encode("i", [t for s in segments for t in s.token_ids]),
        "logprobs": _encode("f" if _fits_float32(logprobs) else "d", logprobs),
    }


def _fits_float32(values: Sequence[float]) -> bool:
    try:
        return list(values) == list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))
    except OverflowError:
        return False


def _encode(element: str, values: Sequence[float]) -> str:
    data = zlib.compress(struct.pack(f"<{len(values)}{element}", *values), _LEVELS[element])
    return f"{element}:{base64.b64encode(data).decode()}"


def _decode(text: str) -> tuple[Any, ...]:
    element, _, packed = text.partition(":")
    if element not in ("i", "f", "d"):
        raise ValueError(f"packed elements are i, f or d, not {element!r}")
    data = zlib.decompress(base64.b64decode(packed, validate=True))
    return struct.unpack(f"<{len(data) // struct.calcsize(element)}{element}", data)


def unpack(messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> tuple[Branch, ...]:
    """The branches that `pack` was given; `messages` is the line's agent.messages. Raises ValueError, KeyError,
    TypeError, AttributeError, zlib.error or struct.error if the two do not fit together."""
    ids, logprobs = iter(_decode(tokens["ids"])), iter(_decode(tokens["logprobs"]))
    branches: dict[int, list[Segment]] = {}
    seats: dict[int, str] = {}
    for m in messages:
        count = m["num_tokens"]
        token_ids = tuple(itertools.islice(ids, count))
        if len(token_ids) != count:
            raise ValueError("fewer token ids than the messages count")
        segment = Segment(
            role=m["role"],
            token_ids=token_ids,
            sampled=m["sampled"],
            logprobs=None if m["policy_version"] is None else tuple(itertools.islice(logprobs, count)),
            policy_version=m["policy_version"],
            text=m["content"],
            cut_short=m.get("cut_short", False),
            masked=m.get("masked", False),
            grammar=m.get("grammar", ""),
        )
        branches.setdefault(m["branch"], []).append(segment)
        seats[m["branch"]] = m.get("seat", "")
    if next(ids, None) is not None or next(logprobs, None) is not None:
        raise ValueError("more tokens than the messages count")
    return tuple(Branch(segments=tuple(segments), seat=seats[i]) for i, segments in branches.items())


# --- A trajectory file to typed records.

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "float": (int, float),
    "float | None": (int, float, NoneType),
    "float | list[Any] | None": (int, float, list, NoneType),
    "list[Any]": (list,),
    "dict[str, Any]": (dict,),
    "dict[str, Any] | None": (dict, NoneType),
}


def read_trajectories(path: Path, *, first: int = 0) -> Iterator[TrajectoryRecord]:
    """The episodes of a file in order, from index `first` on. Raises DataError with file, line and reason if a line is
    malformed, of another schema, or missing."""
    summary = read_summary(path)
    number = first + 1
    with path.open("rb") as f:
        for number, line in enumerate(itertools.islice(f, first + 1, None), start=first + 2):
            row = _parse(path, number, line)
            try:
                yield _record(row)
            except (ValueError, KeyError, TypeError, AttributeError, zlib.error, struct.error) as e:
                raise DataError(f"{path}:{number}: {line_of(e)}") from e
    if number != summary["total"] + 1:
        raise DataError(f"{path}:1: the summary counts {summary['total']} episodes, but {number - 1} follow")


def read_summary(path: Path) -> dict[str, Any]:
    """The first line of a file. Raises DataError if the file is missing, or its schema version is not supported."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; trajectories lie in the `trajectories` folder of a run")
    with path.open("rb") as f:
        summary = _parse(path, 1, f.readline())
    if summary.get("schema_version") not in READABLE or not isinstance(summary.get("total"), int):
        raise DataError(
            f"{path}:1: schema_version {summary.get('schema_version')}; this version reads "
            f"{READABLE[0]} to {READABLE[-1]}"
        )
    return summary


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}:{number}: {e}") from e
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: a {type(row).__name__} instead of an object")
    return row


def _record(row: dict[str, Any]) -> TrajectoryRecord:
    tokens = row.pop("tokens")
    if "metrics" in row:  # schema 3
        row["environment"] = {"name": row["agent"]["name"], "metrics": row.pop("metrics"), "outcome": {}}
    row.setdefault("reason", "")  # before schema 5
    for field in fields(TrajectoryRecord):
        if field.name != "branches" and not isinstance(row[field.name], _TYPES[str(field.type)]):
            raise ValueError(f"{field.name} is a {type(row[field.name]).__name__}, not {field.type}")
    return TrajectoryRecord(**row, branches=unpack(row["agent"]["messages"], tokens) if tokens else ())


# --- Scored groups to a trajectory file.

PART = "criterion/"
"""Prefix for the parts of the judge's grade among the dimensions of the reward."""


def write_trajectories(
    path: Path,
    *,
    scored: Sequence[ScoredGroup],
    advantages: Sequence[Sequence[float | Sequence[float | None] | None]],
    dropped: Sequence[str | None],
    step: int,
    seed: int,
    split: str = "train",
    environment: str = "",
    record_tokens: bool = True,
) -> None:
    """Write `path` and its timings companion, each atomically (StorageError). advantages[i][j], a number or one for
    each turn, belongs to episode j of scored[i]; dropped[i] belongs to the whole group."""
    lines: list[str] = []
    clocks: list[str] = []
    lengths: list[int] = []
    for group, group_advantages, reason in zip(scored, advantages, dropped, strict=True):
        ends = _ends(group)
        of_group = members(
            _task(group.group.task)
            | {"step": step, "split": split, "seed": seed, "dropped": reason}
            | {"group_status": group_status(end["status"] for end in ends)}
        )
        for episode, reward, advantage, end in zip(
            group.group.episodes, group.rewards, group_advantages, ends, strict=True
        ):
            identity = f"{episode.task.id}/{episode.sample_index}"
            row = {
                "id": identity,
                "sample_index": episode.sample_index,
                **end,
                **_texts(episode),
                "memory": [foreign(written) for written in episode.memory],
                "correctness": reward.correctness if reward else None,
                "reason": reward.reason if reward else "",
                "reward": reward.total if reward else None,
                "reward_branches": reward.branches if reward else (),
                "advantage": advantage,
                "tokens": pack(episode.branches) if record_tokens else None,
            }
            texts = (
                members(row),
                of_group,
                _numbers(episode, reward),
                _environment(episode, episode.environment or environment),
                f'"agent":{_agent(episode, episode.environment or environment)}',
            )
            lines.append(f"{{{','.join(texts)}}}")
            clocks.append(line({"id": identity, **episode.timings, **_seconds(episode)}))
            lengths.append(row["response_len"])
    rewards = [reward.total for group in scored for reward in group.rewards if reward]
    summary = {
        "schema_version": SCHEMA_VERSION,
        "split": split,
        "step": step,
        "total": len(lines),
        "scored": len(rewards),
        "reward": _spread(rewards),
        "response_len": _spread(lengths),
    }
    companion = path.with_suffix(".timings.jsonl")
    write_each_atomic({path: _text([line(summary), *lines]), companion: _text(clocks)})


def _task(task: Task) -> dict[str, Any]:
    return {
        "group": task.id,
        "task": task.id,
        "data_source": task.data_source,
        "metadata": foreign(task.metadata),
        "prompt_messages": [_message(m.role, m.content, m.tool_calls) for m in task.messages],
        "references": task.references,
    }


def _ends(group: ScoredGroup) -> list[dict[str, Any]]:
    """How each episode ended. An episode whose judge failed counts as failed, however it finished."""
    judged = group.failures or (None,) * len(group.rewards)
    return [_end(e, e.failure or failure) for e, failure in zip(group.group.episodes, judged, strict=True)]


def _end(episode: Episode, failure: Failure | None) -> dict[str, Any]:
    finish_reason = finish_reason_of(episode.exit)
    return {
        "status": Status.FAILED if failure else status_of(finish_reason),
        "finish_reason": finish_reason,
        "error": {"kind": failure.kind, "stage": failure.stage, "message": failure.message} if failure else None,
    }


def _texts(episode: Episode) -> dict[str, Any]:
    segments = [s for b in episode.branches for s in b.segments]
    versions = [s.policy_version for s in segments if s.policy_version is not None]
    opening = itertools.takewhile(lambda s: not s.sampled, episode.branches[0].segments if episode.branches else ())
    return {
        "rendered_prompt": "".join(s.text for s in opening),
        "response": "".join(s.text for s in segments if s.sampled),
        "answer": episode.answer,
        "prompt_len": episode.branches[0].num_prompt_tokens if episode.branches else 0,
        "response_len": sum(b.num_sampled_tokens for b in episode.branches),
        "citations": [
            {"doc_id": c.doc_id, "marker": c.marker, "text": c.text, **({"places": c.places} if c.places else {})}
            for c in episode.citations
        ],
        "retrieved_ids": episode.retrieved_ids,
        "policy_version": min(versions, default=None),
    }


def _message(role: str, content: str, calls: Sequence[Any]) -> dict[str, Any]:
    called = [{"name": call.name, "arguments": foreign(call.arguments)} for call in calls]
    return {"role": role, "content": content} | ({"tool_calls": called} if called else {})


def _numbers(episode: Episode, reward: RewardResult | None) -> str:
    """The members that map names to numbers, as text."""
    terms = reward.terms if reward else {}
    costs = {name: 0.0 - value for name, value in terms.items() if name.endswith("_cost")}
    return (
        f'"costs":{numbers(costs)},"reward_terms":{numbers(terms)},'
        f'"reward_dimensions":{numbers(_dimensions(reward) if reward else {})}'
    )


def _dimensions(reward: RewardResult) -> dict[str, float]:
    return {**reward.dimensions, **{f"{PART}{name}": grade for name, grade in reward.parts.items()}}


def _environment(episode: Episode, name: str) -> str:
    """The member "environment", as text."""
    outcome = {k: list(v) if isinstance(v, tuple) else v for k, v in episode.outcome.items()}
    return f'"environment":{{"name":{json.dumps(name)},"metrics":{numbers(episode.metrics)},"outcome":{line(outcome)}}}'


def _agent(episode: Episode, name: str) -> str:
    """The object "agent", as text."""
    rest = {
        "name": name,
        "exit": episode.exit.value,
        "tool_turns": int(episode.metrics.get("tool_turns", len({r.turn for r in episode.tool_records}))),
        "tools": [
            {
                "name": r.name,
                "arguments": foreign(r.arguments),
                "outcome": r.outcome.value,
                "turn": r.turn,
                "num_results": r.num_results,
                "result_ids": r.result_ids,
                "cached": r.cached,
                "detail": r.detail,
                "num_bytes": r.num_bytes,
                "was_cut": r.was_cut,
                "cost": r.cost,
                **({"by_environment": True} if r.by_environment else {}),
            }
            for r in episode.tool_records
        ],
    }
    messages = ",".join([_segment(i, b.seat, s) for i, b in enumerate(episode.branches) for s in b.segments])
    return f'{{{members(rest)},"messages":[{messages}]}}'


def _seconds(episode: Episode) -> dict[str, list[float]]:
    """The seconds of each entry of "tools", if the agent times single calls."""
    seconds = [r.seconds for r in episode.tool_records]
    return {"tools": seconds} if any(seconds) else {}


def _segment(branch: int, seat: str, s: Segment) -> str:
    """An entry of "messages", as text: the most frequent object of a file, so it is written without the encoder."""
    sampled = "true" if s.sampled else "false"
    version = "null" if s.policy_version is None else s.policy_version
    cut_short = ',"cut_short":true' if s.cut_short else ""
    masked = ',"masked":true' if s.masked else ""
    grammar = f',"grammar":{string(s.grammar)}' if s.grammar else ""
    of_seat = f',"seat":{string(seat)}' if seat else ""
    return (
        f'{{"branch":{branch}{of_seat},"role":{string(s.role)},"sampled":{sampled},"num_tokens":{len(s.token_ids)},'
        f'"policy_version":{version}{cut_short}{masked}{grammar},"content":{string(s.text)}}}'
    )


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, population standard deviation, largest and smallest; null without values, or if a value is not finite."""
    if not values or not all(math.isfinite(v) for v in values):
        return dict.fromkeys(("mean", "std", "max", "min"))
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return {"mean": mean, "std": std, "max": max(values), "min": min(values)}


def _text(lines: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in lines).encode()
