"""Whole episodes: tokens, masks, records, metrics, what was written, and what the parts are asked."""

from __future__ import annotations

import json

import pytest

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Exit, Outcome, Passage, ToolCall, ToolRecord
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.memory.base import Change, ChunkGrade, MemoryEntry
from agentgrpo.environments.memory.metrics import ADDITIVE, NAMES
from agentgrpo.tasks.dialogue import memory_task
from tests.environments.memory.scripted import (
    CHUNKS,
    EOS,
    EPISODE,
    QUESTIONS,
    SKIP,
    TASK,
    ScriptedReader,
    ScriptedValidity,
    delete,
    insert,
    make,
    play,
    tags,
    update,
)
from tests.renderers import families

CASTIN = MemoryEntry(id="Velmor lives", kind="fact", text="Velmor lives in Castin", chunk=0)
ROKA = MemoryEntry(id="Velmor lives", kind="fact", text="Velmor lives in Roka", chunk=1)
INSERTED = Change(op="insert", chunk=0, before=None, after=CASTIN)
UPDATED = Change(op="update", chunk=1, before=CASTIN, after=ROKA)
TURNS = (insert(CASTIN.text) + EOS, update(ROKA.text) + EOS, SKIP + EOS)


def as_json(entry: MemoryEntry) -> dict[str, object]:
    return {"id": entry.id, "kind": entry.kind, "text": entry.text, "chunk": entry.chunk}


async def test_every_chunk_is_a_branch_with_one_sampled_turn() -> None:
    played = await play(*TURNS)
    episode = played.episode
    prompts = [
        "Memory:\nChunk: Velmor lives in Castin.\n",
        "Memory:\n Velmor lives in Castin\nChunk: Velmor now lives in Roka.\n",
        "Memory:\n Velmor lives in Roka\nChunk: The weather is nice.\n",
    ]
    assert played.engine.contexts == prompts
    assert [[(s.role, s.sampled, s.text) for s in b.segments] for b in episode.branches] == [
        [("user", False, prompt), ("assistant", True, turn)] for prompt, turn in zip(prompts, TURNS, strict=True)
    ]
    encode = tags().encode_action
    for branch, prompt, turn in zip(episode.branches, prompts, TURNS, strict=True):
        sizes = len(encode(prompt)), len(encode(turn))
        assert branch.token_ids == encode(prompt) + encode(turn)
        assert branch.loss_mask == (0,) * sizes[0] + (1,) * sizes[1]
        assert branch.logprobs == (0.0,) * sizes[0] + tuple(-i / 8 for i in range(sizes[1]))
    assert (episode.exit, episode.sample_index, episode.failure) == (Exit.ANSWERED, 2, None)
    assert json.loads(episode.answer or "") == ["1 entries", "1 entries"]
    assert episode.tool_records == (
        ToolRecord(name="insert", arguments={"content": CASTIN.text}, outcome=Outcome.SUCCESS, turn=0),
        ToolRecord(name="update", arguments={"content": ROKA.text}, outcome=Outcome.SUCCESS, turn=1),
        ToolRecord(name="skip", arguments={}, outcome=Outcome.SUCCESS, turn=2),
    )


async def test_metrics_and_what_each_chunk_added() -> None:
    verdicts = {0: ChunkGrade(verdicts=(True,), wanted=1), 1: ChunkGrade(verdicts=(None,), wanted=2)}
    played = await play(*TURNS, validity=ScriptedValidity(verdicts))
    assert played.episode.metrics_by_turn == dict.fromkeys(ADDITIVE, (0.0, 0.0, 0.0)) | {
        "calls": (1.0, 1.0, 1.0),
        "executed": (1.0, 1.0, 0.0),
        "skips": (0.0, 0.0, 1.0),
        "inserts": (1.0, 0.0, 0.0),
        "updates": (0.0, 1.0, 0.0),
        "judged": (1.0, 0.0, 0.0),
        "valid": (1.0, 0.0, 0.0),
        "wanted": (1.0, 2.0, 0.0),
        "knows_wanted": (1.0, 1.0, 0.0),
    }
    memory, chunks = len(f" {ROKA.text}"), sum(len(f" {chunk}") for chunk in CHUNKS)  # a token a character
    assert set(played.episode.metrics) == NAMES
    assert played.metrics == {
        "calls": 3.0,
        "executed": 2.0,
        "skips": 1.0,
        "inserts": 1.0,
        "updates": 1.0,
        "judged": 1.0,
        "valid": 1.0,
        "wanted": 3.0,
        "knows_wanted": 2.0,
        "chunks": 3.0,
        "questions": 2.0,
        "reader_calls": 2.0,
        "entries": 1.0,
        "memory_tokens": float(memory),
        "chunk_tokens": float(chunks),
        "memory_share": memory / chunks,
        "compression": 1 - memory / chunks,
        "calls_per_chunk": 1.0,
        "validity": 1.0,  # of the chunk that has something to judge
        "exit_answered": 1.0,
    }


async def test_what_was_written_is_kept_chunk_by_chunk() -> None:
    played = await play(TURNS[0], update("Dorsin lives in Roka") + delete("Velmor lives") + EOS, insert("a") + EOS)
    castin = len(f" {CASTIN.text}")
    assert played.episode.memory == (
        {
            "chunk": 0,
            "changes": [{"op": "insert", "before": None, "after": as_json(CASTIN)}],
            "failed": [],
            "tokens": castin,
            "entries": 1,
        },
        {
            "chunk": 1,
            "changes": [{"op": "delete", "before": as_json(CASTIN), "after": None}],
            "failed": [
                {
                    "call": 'update {"content": "Dorsin lives in Roka"}',
                    "detail": played.episode.tool_records[1].detail,
                }
            ],
            "tokens": 0,
            "entries": 0,
        },
        {
            "chunk": 2,
            "changes": [
                {"op": "insert", "before": None, "after": {"id": "a", "kind": "fact", "text": "a", "chunk": 2}}
            ],
            "failed": [],
            "tokens": 2,
            "entries": 1,
        },
    )
    assert json.loads(json.dumps(played.episode.memory)) == list(played.episode.memory)


async def test_reader_and_judge_are_asked_about_what_was_written() -> None:
    longer = memory_task("t7", chunks=[*CHUNKS, "b c d."], questions=QUESTIONS, data_source="test")
    played = await play(*TURNS, insert("b c d") + EOS, task=longer)
    assert played.reader.asked == [
        (
            QUESTIONS,
            (
                Passage(id="Velmor lives", text="Velmor lives in Roka", title="fact"),
                Passage(id="b c", text="b c d", title="fact"),
            ),
        )
    ]
    last = Change(op="insert", chunk=3, before=None, after=MemoryEntry(id="b c", kind="fact", text="b c d", chunk=3))
    assert sorted(played.validity.judged) == [
        ("t7", 0, (INSERTED,)),
        ("t7", 1, (INSERTED, UPDATED)),
        ("t7", 2, (INSERTED, UPDATED)),
        ("t7", 3, (INSERTED, UPDATED, last)),
    ], "a judge is told all that was stored by then, and nothing that came later"


async def test_the_engine_is_asked_chunk_by_chunk_and_released_once() -> None:
    played = await play(*TURNS, max_tokens=77)
    assert [tuple(key) for key in played.engine.keys] == [(*EPISODE, 0), (*EPISODE, 1), (*EPISODE, 2)]
    assert {(s.max_tokens, s.stop, s.stop_token_ids) for s in played.engine.samplings} == {
        (77, (), tags().encode_action(EOS))
    }
    assert played.engine.released == [EPISODE]
    timings = dict(played.episode.timings)
    assert 0 <= timings.pop("time_tools") < 5
    assert timings == {"time_generate": 1.5, "time_queue": 0.75}


async def test_parallel_calls_are_applied_in_order() -> None:
    played = await play(insert("a b c") + update("a b d") + insert("a b c") + delete("a b") + EOS)
    assert played.texts == ["a b d"], "the newest entry of the key was deleted"
    assert played.metrics["executed"] == played.metrics["calls"] == 4.0
    assert (played.metrics["inserts"], played.metrics["updates"], played.metrics["deletes"]) == (2.0, 1.0, 1.0)
    assert {record.turn for record in played.episode.tool_records} == {0}


async def test_calls_that_fail() -> None:
    """A duplicate, an update of nothing, one that cannot be read, and one that is no tool's."""
    played = await play(insert("a b c") + insert("a b c") + update("x y") + '<drop>{"key": "a"}</drop><insert>z' + EOS)
    assert played.texts == ["a b c"]
    records = played.episode.tool_records
    assert [(r.name, r.arguments, r.outcome) for r in records] == [
        ("insert", {"content": "a b c"}, Outcome.SUCCESS),
        ("insert", {"content": "a b c"}, Outcome.INVALID_ARGS),
        ("update", {"content": "x y"}, Outcome.INVALID_ARGS),
        ("drop", {"key": "a"}, Outcome.TOOL_NOT_FOUND),
        ("insert", {}, Outcome.INVALID_ARGS),
    ]
    assert [bool(r.detail) for r in records] == [False, True, True, True, True]
    assert records[4].detail == "<insert> is not closed by </insert>"
    counted = ("calls", "executed", "failed_calls", "skips", "malformed", "over_limit", "stray")
    assert [played.episode.metrics[name] for name in counted] == [5.0, 1.0, 4.0, 0.0, 1.0, 0.0, 0.0]
    assert [(failed["call"], failed["detail"]) for failed in played.episode.memory[0]["failed"]] == [
        ('insert {"content": "a b c"}', records[1].detail),
        ('update {"content": "x y"}', records[2].detail),
        ('drop {"key": "a"}', records[3].detail),
        ("<insert>z", records[4].detail),
    ]


async def test_calls_over_the_limit_are_refused() -> None:
    turn = "".join(map(insert, "abc")) + SKIP + "<insert>" + EOS
    played = await play(turn, turn, max_calls=2)
    assert played.texts == ["a", "b"]
    assert played.episode.metrics_by_turn["over_limit"] == (3.0, 3.0)
    assert played.episode.metrics_by_turn["failed_calls"] == (3.0, 5.0), "the second time all are there already"
    assert played.episode.metrics_by_turn["malformed"] == (1.0, 1.0)
    assert played.episode.metrics_by_turn["skips"] == (0.0, 0.0)
    assert [(r.name, r.outcome, r.detail) for r in played.episode.tool_records[2:5]] == [
        (name, Outcome.INVALID_ARGS, "the limit of 2 calls for one chunk is reached")
        for name in ("insert", "skip", "insert")
    ]


@pytest.mark.parametrize(
    ("turn", "stray", "calls"),
    [
        ("Nothing new." + EOS, 1.0, 0.0),
        ("Nothing new.", 1.0, 0.0),
        ("I note: " + insert("a") + EOS, 1.0, 1.0),
        (f"\n{insert('a')}\n \n" + EOS, 0.0, 1.0),
        (EOS, 0.0, 0.0),
        ("<insert>a" + EOS, 0.0, 1.0),
    ],
)
async def test_text_outside_of_calls_is_stray(turn: str, stray: float, calls: float) -> None:
    played = await play(turn, SKIP + EOS)
    assert played.episode.metrics_by_turn["stray"] == (stray, 0.0)
    assert played.episode.metrics_by_turn["calls"] == (calls, 1.0)


async def test_an_empty_memory_is_read_for_nothing() -> None:
    played = await play(SKIP + EOS, EOS)
    assert json.loads(played.episode.answer or "") == ["", ""]
    assert played.metrics == {
        "calls": 1.0,
        "skips": 1.0,
        "chunks": 2.0,
        "questions": 2.0,
        "empty_memory": 1.0,
        "chunk_tokens": float(sum(len(f" {chunk}") for chunk in CHUNKS[:2])),
        "compression": 1.0,
        "calls_per_chunk": 0.5,
        "exit_answered": 1.0,
    }


TRUE, FALSE, SAME, NONE = (True,), (False,), (), (None,)


@pytest.mark.parametrize(
    ("turns", "verdicts", "is_empty"),
    [
        pytest.param((insert("a"), insert("b")), (FALSE, FALSE), True, id="false entries"),
        pytest.param((insert("a"), insert("b")), (TRUE, FALSE), False, id="a right one among them"),
        pytest.param((insert("a"), insert("b")), (FALSE, NONE), False, id="one that was not judged"),
        pytest.param(
            (insert("a"), insert("b") + delete("a")), (TRUE, (False, False)), True, id="the right one deleted"
        ),
        pytest.param((insert("a b"), update("a b c")), (TRUE, FALSE), True, id="the right one overwritten"),
        pytest.param((insert("a b"), update("a b c")), (FALSE, TRUE), False, id="the false one put right"),
        pytest.param((insert("a") + delete("a") + insert("a"),), ((True, False, False),), False, id="rewritten"),
        pytest.param((insert("a"), delete("a")), (TRUE, TRUE), True, id="rightly nothing"),
        pytest.param((insert("a"), SKIP), (FALSE, SAME), True, id="a false one and a skip"),
    ],
)
async def test_a_memory_in_which_nothing_is_right_counts_as_empty(
    turns: tuple[str, ...], verdicts: tuple[tuple[bool | None, ...], ...], is_empty: bool
) -> None:
    grades = {chunk: ChunkGrade(verdicts=of) for chunk, of in enumerate(verdicts)}
    played = await play(*(turn + EOS for turn in turns), validity=ScriptedValidity(grades))
    [(_, documents)] = played.reader.asked
    expected = ["", ""] if is_empty else [f"{len(documents)} entries"] * 2
    assert json.loads(played.episode.answer or "") == expected
    assert played.episode.metrics["empty_memory"] == is_empty
    assert played.episode.metrics["entries"] == len(documents)


async def test_the_core_paragraph_counts_as_an_entry() -> None:
    def core(text: str) -> str:
        call = {"memory_type": "core", "new_content": text}
        return f"<memory_update>{json.dumps(call)}</memory_update>"

    for verdicts, is_empty in (((TRUE, FALSE), True), ((FALSE, TRUE), False)):
        grades = {chunk: ChunkGrade(verdicts=of) for chunk, of in enumerate(verdicts)}
        turns = (core("Ada, a baker") + EOS, core("Ada, a cook") + EOS)
        played = await play(*turns, schema="three_part", validity=ScriptedValidity(grades))
        assert played.episode.metrics["empty_memory"] == is_empty


@pytest.mark.parametrize("name", families.TOKENIZERS)
async def test_the_same_episode_in_every_way_to_write_calls(name: str) -> None:
    """The agent knows none of them."""
    renderer = families.renderer(name)
    calls = [
        (ToolCall(name="memory_insert", arguments={"memory_type": "semantic", "content": "Velmor lives in Castin."}),),
        (
            ToolCall(name="memory_update", arguments={"memory_type": "core", "new_content": "A \u00e9."}),
            ToolCall(
                name="memory_update",
                arguments={"memory_type": "semantic", "memory_id": "s1", "new_content": "Velmor lives in Roka."},
            ),
            ToolCall(name="memory_insert", arguments={"memory_type": "odd", "content": "x"}),
        ),
        (ToolCall(name="memory_skip", arguments={}),),
    ]
    script = [renderer.write(ParsedTurn(calls=of_turn)) for of_turn in calls]
    contexts: list[str] = []

    def say(key: SeedKey, context: str) -> str:
        contexts.append(context)
        return script[key.turn]

    engine = ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=say, max_context=50_000)
    reader = ScriptedReader()
    agent = make(engine, renderer=renderer, schema="three_part", reader=reader, max_context=None)
    episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=2000))
    assert [(d.id, d.title, d.text) for d in reader.asked[0][1]] == [
        ("core", "core", "A \u00e9."),
        ("s1", "semantic", "Velmor lives in Roka."),
    ]
    assert [(r.name, r.turn, r.outcome) for r in episode.tool_records] == [
        ("memory_insert", 0, Outcome.SUCCESS),
        ("memory_update", 1, Outcome.SUCCESS),
        ("memory_update", 1, Outcome.SUCCESS),
        ("memory_insert", 1, Outcome.INVALID_ARGS),
        ("memory_skip", 2, Outcome.SUCCESS),
    ]
    assert episode.metrics_by_turn["updates"] == (0.0, 2.0, 0.0)
    assert episode.metrics_by_turn["stray"] == (0.0, 0.0, 0.0)
    assert [[s.sampled for s in b.segments] for b in episode.branches] == [[False, True]] * 3
    assert [b.segments[1].token_ids for b in episode.branches] == [renderer.encode_action(turn) for turn in script]
    assert "Memory:\ncore:\n A \u00e9.\nsemantic:\n [s1] Velmor lives in Roka.\nChunk: The" in contexts[2]
