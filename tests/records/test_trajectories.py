"""Trajectory files: exact, hostile-proof, repeatable."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.core.types import (
    Branch,
    Citation,
    Episode,
    EpisodeGroup,
    Exit,
    Failure,
    Message,
    Outcome,
    RewardResult,
    ScoredGroup,
    Segment,
    Task,
    ToolCall,
    ToolRecord,
)
from agentgrpo.records.trajectories import numbers, pack, read_summary, read_trajectories, write_trajectories
from tests.builders import episode, given, group, sampled, task


def reward(total: float, **terms: float) -> RewardResult:
    return RewardResult(
        total=total,
        terms=terms,
        dimensions={"correctness": total},
        correctness=1.0,
        parts={"fluency": 0.5},
        reason="it\nis right",
    )


def said(*token_ids: int, text: str, logprobs: tuple[float, ...], version: int = 12) -> Segment:
    return Segment(
        role="assistant", token_ids=token_ids, sampled=True, logprobs=logprobs, policy_version=version, text=text
    )


def told(*token_ids: int, text: str, role: str = "tool") -> Segment:
    return Segment(role=role, token_ids=token_ids, sampled=False, text=text)  # type: ignore[arg-type]


THIRD = 1 / 3
TASK = Task(
    id="q7",
    messages=(
        Message(role="system", content="Search."),
        Message(role="user", content="Who?", tool_calls=(ToolCall(name="search", arguments={"q": 1}),)),
    ),
    references=("Castin", "C. Castin"),
    metadata={"kind": "web", "supporting": ("d1",)},
    data_source="almanac",
)
ANSWERED = Episode(
    task=TASK,
    sample_index=3,
    branches=(
        Branch(
            segments=(
                told(1, 2, 3, text="<Search.>", role="system"),
                told(4, text="Who?", role="user"),
                said(50, 51, text="<search>x</search>", logprobs=(-0.5, -THIRD)),
                told(60, 61, 62, text="[R1Q1D1] Castin"),
                said(70, 71, 72, text="<answer>Castin", logprobs=(-0.25, -1e-9, -0.0), version=11),
            )
        ),
    ),
    answer="Castin",
    exit=Exit.ANSWERED,
    metrics={"web_searches": 1.0, "tool_turns": 1.0, "broken": math.nan},
    citations=(Citation(doc_id="d1", marker="[R1Q1D1]", text="Castin"),),
    retrieved_ids=("d1", "d2"),
    tool_records=(
        ToolRecord(
            name="search",
            arguments={"query": "x", "retriever": "web"},
            outcome=Outcome.SUCCESS,
            turn=0,
            num_results=2,
            result_ids=("d1", "d2"),
            by_environment=True,
        ),
    ),
    timings={"time_generate": 1.5, "time_tools": 0.25},
)
LOST = dataclasses.replace(
    ANSWERED,
    sample_index=4,
    branches=(),
    answer=None,
    exit=Exit.ERROR,
    metrics={},
    citations=(),
    retrieved_ids=(),
    tool_records=(),
    failure=Failure(kind="http_500", stage="retriever", message="server said no"),
    timings={},
)


def write(path: Path, *, record_tokens: bool = True) -> None:
    write_trajectories(
        path,
        scored=[
            ScoredGroup(
                group=EpisodeGroup(task=TASK, episodes=(ANSWERED, LOST)),
                rewards=(reward(0.75, correctness=1.0, retriever_cost=-0.25, rerank_cost=0.0), None),
            ),
            ScoredGroup(
                group=group(episode(task("Why?", id="q8"), given(1), sampled(2))),
                rewards=(None,),
                failures=(Failure(kind="JudgeError", stage="judge", message="garbage"),),
            ),
        ],
        advantages=[[1.25, None], [None]],
        dropped=[None, "infrastructure"],
        step=12,
        seed=7,
        environment="search",
        record_tokens=record_tokens,
    )


def test_every_field_of_an_episode_is_recorded(tmp_path: Path) -> None:
    write(tmp_path / "train-000012.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train-000012.jsonl").read_bytes().splitlines()]
    assert lines[0] == {
        "schema_version": 5,
        "split": "train",
        "step": 12,
        "total": 3,
        "scored": 1,
        "reward": {"mean": 0.75, "std": 0.0, "max": 0.75, "min": 0.75},
        "response_len": {"mean": 2.0, "std": math.sqrt(14 / 3), "max": 5, "min": 0},
    }
    tokens = lines[1].pop("tokens")
    assert sorted(tokens) == ["ids", "logprobs"]
    assert lines[1] == {
        "id": "q7/3",
        "group": "q7",
        "task": "q7",
        "sample_index": 3,
        "data_source": "almanac",
        "metadata": {"kind": "web", "supporting": ["d1"]},
        "step": 12,
        "split": "train",
        "policy_version": 11,
        "seed": 7,
        "status": "completed",
        "group_status": "failed",
        "finish_reason": "stop",
        "error": None,
        "dropped": None,
        "prompt_messages": [
            {"role": "system", "content": "Search."},
            {"role": "user", "content": "Who?", "tool_calls": [{"name": "search", "arguments": {"q": 1}}]},
        ],
        "rendered_prompt": "<Search.>Who?",
        "references": ["Castin", "C. Castin"],
        "response": "<search>x</search><answer>Castin",
        "answer": "Castin",
        "memory": [],
        "reward_branches": [],
        "prompt_len": 4,
        "response_len": 5,
        "correctness": 1.0,
        "reward": 0.75,
        "reward_terms": {"correctness": 1.0, "retriever_cost": -0.25, "rerank_cost": 0.0},
        "reward_dimensions": {"correctness": 0.75, "criterion/fluency": 0.5},
        "reason": "it\nis right",
        "advantage": 1.25,
        "costs": {"retriever_cost": 0.25, "rerank_cost": 0.0},
        "citations": [{"doc_id": "d1", "marker": "[R1Q1D1]", "text": "Castin"}],
        "retrieved_ids": ["d1", "d2"],
        "environment": {
            "name": "search",
            "metrics": {"web_searches": 1.0, "tool_turns": 1.0, "broken": None},
            "outcome": {},
        },
        "agent": {
            "name": "search",
            "exit": "answered",
            "tool_turns": 1,
            "messages": [
                {"branch": 0, "role": r, "sampled": s, "num_tokens": n, "policy_version": v, "content": c}
                for r, s, n, v, c in (
                    ("system", False, 3, None, "<Search.>"),
                    ("user", False, 1, None, "Who?"),
                    ("assistant", True, 2, 12, "<search>x</search>"),
                    ("tool", False, 3, None, "[R1Q1D1] Castin"),
                    ("assistant", True, 3, 11, "<answer>Castin"),
                )
            ],
            "tools": [
                {
                    "name": "search",
                    "arguments": {"query": "x", "retriever": "web"},
                    "outcome": "success",
                    "turn": 0,
                    "num_results": 2,
                    "result_ids": ["d1", "d2"],
                    "cached": False,
                    "detail": "",
                    "num_bytes": 0,
                    "was_cut": False,
                    "cost": 0.0,
                    "by_environment": True,
                }
            ],
        },
    }
    lost, ungraded = lines[2], lines[3]
    assert (lost["status"], lost["finish_reason"], lost["reward"], lost["advantage"]) == ("failed", "error", None, None)
    assert lost["error"] == {"kind": "http_500", "stage": "retriever", "message": "server said no"}
    assert (lost["rendered_prompt"], lost["prompt_len"], lost["response_len"]) == ("", 0, 0)
    assert (ungraded["status"], ungraded["error"]["kind"], ungraded["dropped"]) == (
        "failed",
        "JudgeError",
        "infrastructure",
    )


def test_seconds_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train-000012.jsonl")
    assert (tmp_path / "train-000012.timings.jsonl").read_text() == (
        '{"id":"q7/3","time_generate":1.5,"time_tools":0.25}\n{"id":"q7/4"}\n{"id":"q8/0"}\n'
    )
    assert b"time_generate" not in (tmp_path / "train-000012.jsonl").read_bytes()


def test_what_a_call_cost_and_took(tmp_path: Path) -> None:
    """The bytes of the line do not depend on a clock; the companion says how long each call took."""
    lines, clocks = [], []
    for seconds in (0.5, 0.25):
        calls = (
            ToolRecord(name="python", arguments={}, outcome=Outcome.TIMEOUT, turn=0, num_bytes=21, cost=0.2),
            ToolRecord(name="add", arguments={"a": 1}, outcome=Outcome.SUCCESS, turn=1, was_cut=True, seconds=seconds),
        )
        scored = [ScoredGroup(group=group(dataclasses.replace(ANSWERED, tool_records=calls)), rewards=(reward(0.0),))]
        path = tmp_path / f"{seconds}.jsonl"
        write_trajectories(path, scored=scored, advantages=[[0.0]], dropped=[None], step=0, seed=0)
        lines.append(path.read_bytes())
        clocks.append(json.loads(path.with_suffix(".timings.jsonl").read_bytes())["tools"])
    (record,) = read_trajectories(tmp_path / "0.5.jsonl")
    assert [(t["num_bytes"], t["was_cut"], t["cost"]) for t in record.agent["tools"]] == [
        (21, False, 0.2),
        (0, True, 0.0),
    ]
    assert lines[0] == lines[1]
    assert clocks == [[0.0, 0.5], [0.0, 0.25]]


def test_segments_come_back_bit_for_bit(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl")
    first, second, third = read_trajectories(tmp_path / "t.jsonl")
    assert first.branches == ANSWERED.branches
    assert math.copysign(1.0, first.branches[0].logprobs[-1]) == -1.0
    assert first.branches[0].loss_mask == (0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1)
    assert second.branches == ()
    assert [s.logprobs for s in third.branches[0].segments] == [None, (-0.5,)]
    assert (first.reward, second.reward, third.dropped) == (0.75, None, "infrastructure")


def test_a_file_is_read_from_an_episode_on(tmp_path: Path) -> None:
    write(path := tmp_path / "t.jsonl")
    every = list(read_trajectories(path))
    assert [list(read_trajectories(path, first=n)) for n in range(4)] == [every, every[1:], every[2:], []]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"t\.jsonl:1: the summary counts 3 episodes, but 2 follow"):
        list(read_trajectories(path, first=1))


def test_a_turn_that_was_cut_short_says_so(tmp_path: Path) -> None:
    cut = dataclasses.replace(said(5, 6, text="an", logprobs=(-0.5, -0.25)), cut_short=True)
    of = episode(TASK, told(1, 2, text="Who?", role="user"), cut)
    scored = [ScoredGroup(group=group(of), rewards=(reward(0.0),))]
    write_trajectories(tmp_path / "t.jsonl", scored=scored, advantages=[[0.0]], dropped=[None], step=0, seed=0)
    [record] = read_trajectories(tmp_path / "t.jsonl")
    assert record.branches == of.branches
    assert [m.get("cut_short") for m in record.agent["messages"]] == [None, True]


def test_memory_episodes_keep_their_branches_apart(tmp_path: Path) -> None:
    two = dataclasses.replace(
        ANSWERED,
        branches=(*ANSWERED.branches, Branch(segments=(told(9, text="chunk 2"), said(8, text="b", logprobs=(0.1,))))),
    )
    write_trajectories(
        tmp_path / "t.jsonl",
        scored=[ScoredGroup(group=group(two), rewards=(dataclasses.replace(reward(1.0), branches=(0.5, 1.5)),))],
        advantages=[[0.0]],
        dropped=[None],
        step=0,
        seed=0,
    )
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    assert record.branches == two.branches
    assert record.reward_branches == [0.5, 1.5]
    assert (record.prompt_len, record.response_len, record.response) == (4, 6, "<search>x</search><answer>Castinb")


def test_what_a_memory_agent_wrote_is_recorded(tmp_path: Path) -> None:
    """As it was, whatever it spells; numbers that are none are null."""
    hostile = "\x00\u2028</insert>\ud800\n"
    entry = {"id": "s1", "kind": "semantic", "text": hostile, "chunk": 0}
    memory = (
        {"chunk": 0, "changes": [{"op": "insert", "before": None, "after": entry}], "failed": [], "tokens": 3},
        {"chunk": 1, "changes": [], "failed": [{"call": hostile, "detail": "no"}], "tokens": math.inf, "entries": 1},
    )
    write_trajectories(
        tmp_path / "t.jsonl",
        scored=[ScoredGroup(group=group(dataclasses.replace(ANSWERED, memory=memory)), rewards=(reward(1.0),))],
        advantages=[[0.0]],
        dropped=[None],
        step=0,
        seed=0,
    )
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    assert record.memory == [memory[0], memory[1] | {"tokens": None}]


def test_tokens_can_be_switched_off(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", record_tokens=False)
    records = list(read_trajectories(tmp_path / "t.jsonl"))
    assert [r.branches for r in records] == [(), (), ()]
    assert records[0].response_len == 5
    assert json.loads((tmp_path / "t.jsonl").read_bytes().splitlines()[1])["tokens"] is None


def test_float32_logprobs_take_half_the_bytes_and_lose_none(tmp_path: Path) -> None:
    exact, wide = -0.333251953125, -THIRD
    for name, value in (("f", exact), ("d", wide), ("d", 1e300), ("f", -math.inf)):
        path = tmp_path / f"{value}.jsonl"
        one = dataclasses.replace(ANSWERED, branches=(Branch(segments=(said(1, text="", logprobs=(value,)),)),))
        write_trajectories(
            path,
            scored=[ScoredGroup(group=group(one), rewards=(None,))],
            advantages=[[None]],
            dropped=[None],
            step=0,
            seed=0,
        )
        assert json.loads(path.read_bytes().splitlines()[1])["tokens"]["logprobs"][0] == name
        (record,) = read_trajectories(path)
        assert record.branches[0].logprobs == (value,)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"b": 1.5, "a": -0.0, "c": 1e300},
        {"a": 1e308, "b": 1e308},
        {"b": math.nan, "a": 1.0},
        {"a": -math.inf},
        {"b": 2, "a": 0.1 + 0.2, "c": True},
        {"100 %": 1.0, "%r%(a)s": 2.0, '"\n\u2028': 3.0, "\ud800": 4.0},
    ],
)
def test_names_and_numbers_are_written_as_json_writes_them(values: dict[str, float]) -> None:
    plain = {name: value if math.isfinite(value) else None for name, value in sorted(values.items())}
    for given_order in (values, dict(reversed(values.items()))):
        assert numbers(given_order) == json.dumps(plain, separators=(",", ":"))


def test_doubles_are_wrapped_and_not_compressed() -> None:
    logprobs = (-THIRD,) * 100
    packed = pack((Branch(segments=(said(*range(100), text="", logprobs=logprobs),)),))
    element, _, data = packed["logprobs"].partition(":")
    assert (element, zlib.decompress(base64.b64decode(data))) == ("d", struct.pack("<100d", *logprobs))
    assert len(base64.b64decode(data)) == 800 + 11


def test_equal_episodes_give_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    shuffled = dataclasses.replace(ANSWERED, metrics=dict(reversed(list(ANSWERED.metrics.items()))), timings={})
    files = []
    for number, one in enumerate((ANSWERED, shuffled)):
        write_trajectories(
            tmp_path / f"{number}.jsonl",
            scored=[ScoredGroup(group=group(one), rewards=(None,))],
            advantages=[[None]],
            dropped=[None],
            step=0,
            seed=0,
        )
        files.append((tmp_path / f"{number}.jsonl").read_bytes())
    assert files[0] == files[1]


def hostile(text: str, arguments: dict[str, Any]) -> ScoredGroup:
    one = Episode(
        task=Task(
            id=text,
            messages=(Message(role="user", content=text),),
            references=(text,),
            metadata={text: text, "a": [text]},
        ),
        sample_index=0,
        branches=(Branch(segments=(told(1, text=text), said(2, text=text, logprobs=(-1.0,)))),),
        answer=text,
        exit=Exit.ANSWERED,
        metrics={},
        citations=(Citation(doc_id=text, marker=text, text=text),),
        tool_records=(ToolRecord(name=text, arguments=arguments, outcome=Outcome.INVALID_ARGS, turn=0, detail=text),),
        failure=Failure(kind=text, stage=text, message=text),
    )
    return ScoredGroup(group=group(one), rewards=(None,))


@pytest.mark.parametrize(
    "text",
    [
        "\ud800 lone surrogates \udfff",
        "\x00\x1b[2J\x07\x7f\x85\x9b31m",
        "line\nline\r\n\u2028\u2029\x0b\x0c",
        '"quotes" \\ and \\u0041 </script>',
        "\u202ereversed\ufeff 日本語 🎈",
        "",
        "x" * 100_000,
    ],
)
def test_hostile_text_survives_and_breaks_no_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    write_trajectories(path, scored=[hostile(text, {text: text})], advantages=[[None]], dropped=[None], step=0, seed=0)
    data = path.read_bytes()
    assert data.count(b"\n") == 2
    assert all(byte == 0x0A or 0x20 <= byte < 0x7F for byte in data)
    (record,) = read_trajectories(path)
    assert {record.task, record.rendered_prompt, record.response, record.answer, record.references[0]} == {text}
    assert record.metadata == {text: text, "a": [text]}
    assert record.agent["tools"][0]["arguments"] == {text: text}
    assert record.error == {"kind": text, "stage": text, "message": text}
    assert record.branches[0].segments[1].text == text


def test_arguments_that_are_no_json_are_recorded_as_far_as_they_go(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(900):
        deep = {"deeper": deep}
    arguments = {"nan": math.nan, "inf": [-math.inf], "big": 10**300, 7: True, "deep": deep}
    write_trajectories(
        tmp_path / "t.jsonl",
        scored=[hostile("x", arguments)],  # type: ignore[dict-item]
        advantages=[[None]],
        dropped=[None],
        step=0,
        seed=0,
    )
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    found = record.agent["tools"][0]["arguments"]
    assert json.dumps(found.pop("deep")).count("deeper") == 60
    assert found == {"nan": None, "inf": [None], "big": 10**300, "7": True}


def test_metadata_that_is_no_json_is_refused(tmp_path: Path) -> None:
    scored = [ScoredGroup(group=group(episode(task(kinds={"web"}))), rewards=(None,))]
    with pytest.raises(DataError, match="a trajectory cannot hold a set"):
        write_trajectories(tmp_path / "t.jsonl", scored=scored, advantages=[[None]], dropped=[None], step=0, seed=0)
    assert not (tmp_path / "t.jsonl").exists()


def test_a_file_without_episodes_is_a_file(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "t.jsonl", scored=[], advantages=[], dropped=[], step=3, seed=0, split="test")
    assert list(read_trajectories(tmp_path / "t.jsonl")) == []
    assert read_summary(tmp_path / "t.jsonl")["reward"] == {"mean": None, "std": None, "max": None, "min": None}


def edited(path: Path, number: int, **changes: Any) -> Path:
    lines = path.read_text().splitlines()
    row = {k: v for k, v in (json.loads(lines[number - 1]) | changes).items() if v != "gone"}
    lines[number - 1] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("number", "changes", "reason"),
    [
        (1, {"schema_version": 2}, ":1: schema_version 2; this version reads 3 to 5"),
        (1, {"total": 4}, ":1: the summary counts 4 episodes, but 3 follow"),
        (2, {"reward": "gone"}, ":2: KeyError: 'reward'"),
        (3, {"reward": "high"}, ":3: ValueError: reward is a str, not float | None"),
        (3, {"extra": 1}, ":3: TypeError: .*unexpected keyword argument 'extra'"),
        (2, {"tokens": {"ids": "i:AAAA", "logprobs": "f:"}}, ":2: error: Error -. while decompressing"),
        (2, {"tokens": {"ids": "z:AAAA", "logprobs": "f:"}}, ":2: ValueError: packed elements are i, f or d, not 'z'"),
        (2, {"tokens": {"ids": 5, "logprobs": 5}}, ":2: AttributeError"),
    ],
)
def test_a_malformed_file_is_named_with_line_and_reason(
    tmp_path: Path, number: int, changes: dict[str, Any], reason: str
) -> None:
    write(tmp_path / "t.jsonl")
    path = edited(tmp_path / "t.jsonl", number, **changes)
    with pytest.raises(DataError, match=f"t.jsonl{reason}"):
        list(read_trajectories(path))


@pytest.mark.parametrize("fewer", [True, False])
def test_tokens_that_do_not_fit_the_messages_are_refused(tmp_path: Path, fewer: bool) -> None:
    write(tmp_path / "t.jsonl")
    row = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1])
    row["agent"]["messages"][0]["num_tokens"] += 1 if fewer else -1
    edited(tmp_path / "t.jsonl", 2, agent=row["agent"])
    with pytest.raises(
        DataError, match=f":2: ValueError: {'fewer token ids' if fewer else 'more tokens'} than the messages"
    ):
        list(read_trajectories(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    ("cut", "reason"),
    [(lambda data: data[:-30], ":4: .*"), (lambda data: b"", ":1: "), (lambda data: b"[1]\n", ":1: a list instead")],
)
def test_a_damaged_file_is_refused(tmp_path: Path, cut: Any, reason: str) -> None:
    write(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_bytes(cut((tmp_path / "t.jsonl").read_bytes()))
    with pytest.raises(DataError, match=f"t.jsonl{reason}"):
        list(read_trajectories(tmp_path / "t.jsonl"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; trajectories lie in"):
        list(read_trajectories(tmp_path / "t.jsonl"))


def test_credit_by_turn_is_a_list(tmp_path: Path) -> None:
    scored = [ScoredGroup(group=EpisodeGroup(task=TASK, episodes=(ANSWERED, LOST)), rewards=(reward(0.75), None))]
    path = tmp_path / "t.jsonl"
    write_trajectories(path, scored=scored, advantages=[[(-THIRD, 1e-9), None]], dropped=[None], step=0, seed=7)
    assert [json.loads(line)["advantage"] for line in path.read_text().splitlines()[1:]] == [[-THIRD, 1e-9], None]
    assert [r.advantage for r in read_trajectories(path)] == [[-THIRD, 1e-9], None]
    path.write_text(path.read_text().replace(f"[{-THIRD},1e-09]", '"high"'))
    with pytest.raises(DataError, match=r"t.jsonl:2: ValueError: advantage is a str, not float \| list\[Any\] \| None"):
        list(read_trajectories(path))
