"""Compares recorded episodes with replayed ones and finds the first difference."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from agentgrpo.core.types import Episode, Failure, RewardResult, Segment, ToolRecord
from agentgrpo.records.difference import first_difference
from agentgrpo.records.trajectories import TrajectoryRecord, foreign
from agentgrpo.reports.replay.divergence import Decode, Divergence, ReplayedTurn, around

_FACTS = ("name", "arguments", "outcome", "num_results", "result_ids", "num_bytes", "was_cut", "detail")
"""Recorded facts of a call that may reveal a different reply."""
_FOUND = ("name", "arguments", "outcome", "num_results", "result_ids")
"""The facts that two calls with the same reply must share."""


def compare_turn(
    episode: str, turn: ReplayedTurn, found: Segment, *, tolerance: float, decode: Decode, has_tokens: bool = True
) -> Divergence | None:
    """Compare the recorded sample with the replayed one, token by token; with tolerance=0.0 log-probs must match bit
    for bit. Then compare the decoded texts (without tokens only these)."""
    spot: dict[str, Any] = {"episode": episode, "branch": turn.branch, "turn": turn.number}
    if has_tokens and (difference := _compare_tokens(turn.said, found, spot, tolerance=tolerance, decode=decode)):
        return difference
    before, now = turn.said.text, found.text
    at = first_difference(before, now)
    if at is None:
        return None
    return Divergence(kind="token", character=at, expected_text=around(before, at), found_text=around(now, at), **spot)


def _compare_tokens(
    said: Segment, found: Segment, spot: Mapping[str, Any], *, tolerance: float, decode: Decode
) -> Divergence | None:
    logprobs, others = said.logprobs or (), found.logprobs or ()

    def texts_at(token: int) -> dict[str, Any]:
        character = len(decode(said.token_ids[:token]))  # both sides are equal up to here
        sides = {"expected_text": said.token_ids, "found_text": found.token_ids}
        return {"character": character} | {name: around(decode(ids), character) for name, ids in sides.items()}

    for i, (token, other) in enumerate(zip(said.token_ids, found.token_ids, strict=False)):
        same = logprobs[i] == others[i] or abs(logprobs[i] - others[i]) <= tolerance
        if token == other and same:
            continue
        pair = (token, other) if token != other else (logprobs[i], others[i])
        return Divergence(
            kind="token" if token != other else "logprob",
            token=i,
            expected=pair[0],
            found=pair[1],
            expected_logprob=logprobs[i],
            found_logprob=others[i],
            **texts_at(i),
            **spot,
        )
    lengths = len(said.token_ids), len(found.token_ids)
    if lengths[0] != lengths[1] or said.cut_short != found.cut_short:
        end = min(lengths)
        return Divergence(kind="length", token=end, expected=lengths[0], found=lengths[1], **texts_at(end), **spot)
    return None


def compare_episode(
    record: TrajectoryRecord, episode: Episode, reward: RewardResult | None, *, tolerance: float, decode: Decode
) -> Divergence | None:
    """Compare everything recorded of an episode with a new attempt at it."""
    recorded_exit, failure = record.agent["exit"], episode.failure
    if failure is not None:
        return Divergence(
            episode=record.id, kind="exit", expected=recorded_exit, found=episode.exit.value, found_text=_told(failure)
        )
    if difference := _compare_branches(record, episode, tolerance=tolerance, decode=decode):
        return difference
    if difference := _compare_calls(record, episode):
        return difference
    if record.answer != episode.answer:
        at = first_difference(record.answer or "", episode.answer or "") or 0
        return Divergence(
            episode=record.id,
            kind="answer",
            character=at,
            expected=record.answer,
            found=episode.answer,
            expected_text=around(record.answer or "", at),
            found_text=around(episode.answer or "", at),
        )
    if recorded_exit != episode.exit.value:
        return Divergence(episode=record.id, kind="exit", expected=recorded_exit, found=episode.exit.value)
    return _compare_rewards(record, reward)


def _compare_branches(
    record: TrajectoryRecord, episode: Episode, *, tolerance: float, decode: Decode
) -> Divergence | None:
    has_tokens, number = bool(record.branches), 0
    for index, (then, now) in enumerate(zip_longest(_segments_of(record), _found(episode), fillvalue=())):
        has_sampled = False
        context: tuple[int, ...] = ()
        for expected, found in zip_longest(then, now):
            at: dict[str, Any] = {"branch": index, "turn": number}
            if expected is None or found is None or _part_of(expected) != _part_of(found):
                return _other_course(record, episode, expected, found, at)
            if expected.sampled:
                turn = ReplayedTurn(index, number, context, expected)
                if difference := compare_turn(
                    record.id, turn, found, tolerance=tolerance, decode=decode, has_tokens=has_tokens
                ):
                    return difference
                number, has_sampled = number + 1, True
            elif (has_tokens and expected.token_ids != found.token_ids) or expected.text != found.text:
                return _other_text(record, episode, expected, found, at, after_turn=has_sampled)
            context += expected.token_ids
    return None


def _part_of(segment: Segment) -> tuple[str, bool]:
    return segment.role, segment.sampled


def _segments_of(record: TrajectoryRecord) -> list[tuple[Segment, ...]]:
    """Segments by branch; without token ids if none were recorded."""
    if record.branches:
        return [branch.segments for branch in record.branches]
    branches: dict[int, list[Segment]] = {}
    for m in record.agent["messages"]:
        of_sampled = {"logprobs": (), "policy_version": m["policy_version"]} if m["sampled"] else {}
        segment = Segment(role=m["role"], token_ids=(), sampled=m["sampled"], text=m["content"], **of_sampled)
        branches.setdefault(m["branch"], []).append(segment)
    return [tuple(segments) for segments in branches.values()]


def _found(episode: Episode) -> list[tuple[Segment, ...]]:
    return [branch.segments for branch in episode.branches]


def _other_course(
    record: TrajectoryRecord, episode: Episode, expected: Segment | None, found: Segment | None, at: dict[str, Any]
) -> Divergence:
    """One episode continues where the other ends, or only one of them gets a reply."""
    texts: dict[str, Any] = {
        "expected_text": around(expected.text, 0) if expected else "",
        "found_text": around(found.text, 0) if found else "",
    }
    if at["turn"] and any(segment is not None and segment.role == "tool" for segment in (expected, found)):
        at = {**at, "turn": at["turn"] - 1}
        return Divergence(
            episode=record.id, kind="tool", character=0, **at, **texts, **_calls(record, episode, at["turn"])
        )
    ends = {"expected": record.agent["exit"], "found": episode.exit.value}
    return Divergence(episode=record.id, kind="exit", **at, **texts, **ends)


def _other_text(
    record: TrajectoryRecord,
    episode: Episode,
    expected: Segment,
    found: Segment,
    at: dict[str, Any],
    *,
    after_turn: bool,
) -> Divergence:
    """The text between two turns, or before the first turn of a branch, differs."""
    character = first_difference(expected.text, found.text)
    of_call: dict[str, Any] = {}
    if after_turn:
        at = {**at, "turn": at["turn"] - 1}
        of_call = _calls(record, episode, at["turn"])
    return Divergence(
        episode=record.id,
        kind="tool" if after_turn else "prompt",
        token=first_difference(expected.token_ids, found.token_ids) if expected.token_ids else None,
        character=character,
        expected_text=around(expected.text, character or 0),
        found_text=around(found.text, character or 0),
        **at,
        **of_call,
    )


def _compare_calls(record: TrajectoryRecord, episode: Episode) -> Divergence | None:
    """Compare what the calls found, which their equal replies need not show."""
    then = [{name: call[name] for name in _FOUND} for call in record.agent["tools"]]
    now = [{name: _facts(call)[name] for name in _FOUND} for call in episode.tool_records]
    for i, (expected, found) in enumerate(zip_longest(then, now)):
        if expected != found:
            turn = record.agent["tools"][i]["turn"] if i < len(then) else episode.tool_records[i].turn
            made = {name: (expected or found or {})[name] for name in ("name", "arguments")}
            return Divergence(
                episode=record.id, kind="tool", turn=turn, expected=expected, found=found, call=made, calls=[made]
            )
    return None


def _calls(record: TrajectoryRecord, episode: Episode, turn: int) -> dict[str, Any]:
    """The calls of a turn, and the call whose reply must have changed: the only one, or the first whose recorded facts
    differ."""
    then = [call for call in record.agent["tools"] if call["turn"] == turn]
    now = [_facts(call) for call in episode.tool_records if call.turn == turn]
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in then]
    changed = [i for i, (a, b) in enumerate(zip(then, now, strict=False)) if {k: a[k] for k in _FACTS} != b]
    at = changed[0] if changed else 0 if len(calls) == 1 else None
    return {"calls": calls, "call": None if at is None else calls[at]}


def _facts(call: ToolRecord) -> dict[str, Any]:
    """The facts of a call as they would be recorded."""
    row: dict[str, Any] = {name: getattr(call, name) for name in _FACTS}
    facts: dict[str, Any] = foreign(row | {"outcome": call.outcome.value})
    return facts


def _compare_rewards(record: TrajectoryRecord, reward: RewardResult | None) -> Divergence | None:
    """None if the record has no reward because its judge failed. Terms come first, by name, because the rest follows
    from them."""
    if record.reward is None:
        return None
    if reward is None:
        return Divergence(episode=record.id, kind="reward", expected=record.reward, found_text="it could not be scored")
    rest = ("correctness of the answer", "total", "by branch")
    then = record.reward_terms | dict(
        zip(rest, (record.correctness, record.reward, record.reward_branches), strict=True)
    )
    now = {**reward.terms, **dict(zip(rest, (reward.correctness, reward.total, [*reward.branches]), strict=True))}
    for name in (*sorted(record.reward_terms), *sorted(reward.terms.keys() - then.keys()), *rest):
        if then.get(name) != now.get(name):
            return Divergence(episode=record.id, kind="reward", term=name, expected=then.get(name), found=now.get(name))
    return None


def _told(failure: Failure) -> str:
    return f"{failure.kind} in {failure.stage}: {failure.message}"
