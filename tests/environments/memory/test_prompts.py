"""What the policy is shown of a chunk, and how it is made to fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Message, Task, ToolCall
from agentgrpo.environments.memory.base import MemoryEntry
from agentgrpo.environments.memory.prompt import instructions_for, messages, shown
from agentgrpo.environments.memory.schema import CORE, SCHEMAS
from agentgrpo.environments.memory.store import Memory
from agentgrpo.rollout.loop import PolicyRunner
from tests.environments.memory.scripted import EOS, ONE, TASK, insert, made_of, make, play, tags, token_ids_of
from tests.environments.scripted import ScriptedEngine
from tests.renderers import families

INSTRUCTED = instructions_for(SCHEMAS["three_part"])


def fact(text: str, *, kind: str = "fact", id: str = "") -> MemoryEntry:
    return MemoryEntry(id=id or text[:2], kind=kind, text=text, chunk=0)


def remembering(agent: PolicyRunner, *texts: str) -> Memory:
    memory = made_of(agent).new_memory()
    for text in texts:
        assert memory.apply(ToolCall(name="insert", arguments={"content": text}), chunk=0).change is not None
    return memory


def opening(agent: PolicyRunner, memory: Memory, chunk: str) -> tuple[str, bool]:
    token_ids, was_cut = token_ids_of(agent, memory, chunk)
    return agent.renderer.decode(token_ids), was_cut


def test_entries_of_several_kinds_are_shown_with_their_ids() -> None:
    entries = [
        fact("Met Dorsin.", kind="episodic", id="e1"),
        fact("Velmor is a town.", kind="semantic", id="s2"),
        fact("Left Roka.", kind="episodic", id="e2"),
        fact("Likes tea.", kind=CORE, id=CORE),
    ]
    assert messages(SCHEMAS["three_part"], "Be brief.", entries, " Hello.\n") == (
        Message(role="system", content="Be brief."),
        Message(
            role="user",
            content="Memory:\ncore:\n Likes tea.\nsemantic:\n [s2] Velmor is a town.\n"
            "episodic:\n [e1] Met Dorsin.\n [e2] Left Roka.\nChunk: Hello.",
        ),
    )
    [user] = messages(SCHEMAS["keyed"], None, [fact("a b c"), fact("a b d")], "Hello.")
    assert user.content == "Memory:\n a b c\n a b d\nChunk: Hello."


@pytest.mark.parametrize(
    ("count", "matching", "expected"),
    [
        (2, False, "cd"),
        (9, False, "abcd"),
        (0, False, ""),
        (0, True, ""),
        (1, True, "c"),  # two words in common, of which one counts three
        (2, True, "bc"),  # b has one that counts three, a has two of one each
        (3, True, "abc"),
        (4, True, "abcd"),
    ],
)
def test_which_entries_are_shown(count: int, matching: bool, expected: str) -> None:
    """In the order in which they were written, whichever are chosen."""
    texts = {"a": "it is nice in here", "b": "Velmor", "c": "Velmor is", "d": "nothing of that"}
    entries = [fact(text, id=name) for name, text in texts.items()]
    found = shown(entries, "It is nice; Velmor too is so.", count=count, matching=matching)
    assert "".join(entry.id for entry in found) == expected


def test_of_entries_that_match_alike_the_newest_are_shown() -> None:
    entries = [fact(f"Velmor {i}", id=str(i)) for i in range(4)] + [fact("x", id="4")]
    assert [e.id for e in shown(entries, "Velmor", count=2, matching=True)] == ["2", "3"]
    assert [e.id for e in shown(entries, "y", count=2, matching=True)] == ["3", "4"]


def test_each_kind_has_its_own_number_of_entries() -> None:
    entries = [fact(str(i), kind="semantic" if i % 3 else "episodic", id=str(i)) for i in range(9)]
    assert [e.id for e in shown(entries, "", count=2, matching=False)] == ["3", "6", "7", "8"]
    assert [e.id for e in shown(entries, "0 1", count=1, matching=True)] == ["0", "1"]


async def test_what_is_chosen_is_what_is_shown() -> None:
    texts = ("Velmor lives", "Dorsin lives", "Ril works")
    for options, expected in (
        ({"shown_entries": 1}, " Ril works\n"),
        ({"shown_entries": 1, "shown_by": "matching"}, " Velmor lives\n"),
        ({}, " Velmor lives\n Dorsin lives\n Ril works\n"),
    ):
        agent = make(ScriptedEngine([]), **options)
        text, was_cut = opening(agent, remembering(agent, *texts), "Velmor is here.")
        assert (text, was_cut) == (f"Memory:\n{expected}Chunk: Velmor is here.\n", False)


# --- room: a token is a character


def sized(text: str, *, left: int = 10, **options: object) -> PolicyRunner:
    """One whose prompts may be as long as `text`."""
    return make(ScriptedEngine([], max_context=len(text) + left), min_context_left=left, **options)


@pytest.mark.parametrize("left_out", [0, 1, 2, 3])
def test_the_oldest_entries_are_left_out_until_the_prompt_fits(left_out: int) -> None:
    texts = ("a one", "b two", "c three")
    chunk = "A chunk of text."
    expected = "\n".join(["Memory:", *(f" {text}" for text in texts[left_out:]), f"Chunk: {chunk}", ""])
    for more in (0, 3):  # less than the next entry
        agent = sized(expected + "x" * more)
        assert opening(agent, remembering(agent, *texts), chunk) == (expected, False)


@pytest.mark.parametrize("kept", [15, 3, 1, 0])
def test_a_chunk_that_does_not_fit_alone_is_cut(kept: int) -> None:
    chunk = "A chunk of text."
    expected = f"Memory:\nChunk: {chunk[:kept].strip()}\n"
    agent = sized(f"Memory:\nChunk: {chunk[:kept]}\n")
    assert opening(agent, remembering(agent, "a one"), chunk) == (expected, True)
    assert opening(agent, remembering(agent, "a one"), chunk + "x" * 1_000_000) == (expected, True)


def test_the_core_paragraph_is_left_out_last_of_all() -> None:
    expected = "Memory:\ncore:\n Likes tea.\nChunk: Hello.\n"
    agent = sized(expected + "x" * 10, schema="three_part", renderer=tags("three_part"))
    memory = made_of(agent).new_memory()
    for name, arguments in (
        ("memory_update", {"memory_type": "core", "new_content": "Likes tea."}),
        ("memory_insert", {"memory_type": "semantic", "content": "Velmor is a town."}),
    ):
        assert memory.apply(ToolCall(name=name, arguments=arguments), chunk=0).change is not None
    assert opening(agent, memory, "Hello.") == (expected, False)


def test_a_prompt_for_which_there_is_no_room_at_all_is_refused() -> None:
    agent = sized("Memory:\nChunk:\n"[:-1])
    with pytest.raises(
        ConfigError, match=r"^the prompt without memory and chunk takes too much; environment\.max_context=40"
    ):
        token_ids_of(agent, made_of(agent).new_memory(), "A chunk.")


async def test_an_episode_goes_on_with_what_fits() -> None:
    """The second chunk is shown without the first entry, the third is cut; neither is an error."""
    chunks = ["Velmor.", "Dorsin lives in Roka.", "Once upon a time there was " + "x" * 100]
    room = len("Memory:\n Velmor lives\nChunk: Dorsin lives in Roka.\n") - 1
    task = Task(**{**_fields(TASK), "metadata": {**TASK.metadata, "chunks": chunks}})
    played = await play(
        insert("Velmor lives") + EOS, EOS, EOS, task=task, max_context=room + 30, min_context_left=30, max_tokens=500
    )
    prompts = [branch.segments[0].text for branch in played.episode.branches]
    assert prompts[1] == "Memory:\nChunk: Dorsin lives in Roka.\n"
    assert prompts[2] == f"Memory:\nChunk: {chunks[2]}"[: room - 1] + "\n"
    assert played.metrics["truncated_chunks"] == 1.0
    assert [s.max_tokens for s in played.engine.samplings] == [room + 30 - len(prompt) for prompt in prompts]


def _fields(task: Task) -> dict[str, object]:
    return {name: getattr(task, name) for name in ("id", "messages", "references", "data_source")}


async def test_a_turn_is_cut_short_by_the_end_of_the_context() -> None:
    prompt = "Memory:\nChunk: Velmor lives in Castin.\n"
    played = await play(insert("x" * 99) + EOS, max_context=len(prompt) + 20, min_context_left=20)
    assert [s.max_tokens for s in played.engine.samplings] == [20]
    assert len(played.episode.branches[0].token_ids) == len(prompt) + 20
    assert (played.episode.metrics["malformed"], played.episode.metrics["executed"]) == (1.0, 0.0)


def test_a_first_prompt_that_leaves_no_room_is_refused_before_any_episode() -> None:
    whole = "Memory:\nChunk: Velmor lives in Castin.\n"
    sized(whole).rehearse(ONE)
    make(ScriptedEngine([]), max_context=len(whole) + 10, min_context_left=10).rehearse(ONE)
    with pytest.raises(ConfigError) as caught:
        sized(whole[:-1]).rehearse(ONE)
    assert str(caught.value) == (
        "task t8: the prompt of its first chunk takes 39 tokens, tools included; environment.max_context=4096 (the "
        "engine holds 48) less environment.min_context_left=10 for a turn leaves 38. Raise it (no model holds "
        "more than its own positions), lower the second, or cut the data into smaller chunks"
    )


@pytest.mark.parametrize("missing", ["chunks", "questions"])
def test_a_task_that_is_no_memory_task_is_refused(missing: str) -> None:
    rest = {name: value for name, value in TASK.metadata.items() if name != missing}
    with pytest.raises(DataError, match=f"task t7 has no {missing}"):
        make(ScriptedEngine([])).rehearse(Task(**{**_fields(TASK), "metadata": rest}))


# --- instructions


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, INSTRUCTED),
        ({"describe_tools": False}, None),
        ({"instructions": None}, None),
        ({"instructions": "Be brief."}, "Be brief."),
        ({"instructions": "Be brief.", "describe_tools": False}, "Be brief."),
    ],
)
def test_who_is_told_what_to_do(options: dict[str, object], told: str | None) -> None:
    agent = make(ScriptedEngine([]), **{"schema": "three_part", "instructions": "auto", **options})
    text, _ = opening(agent, made_of(agent).new_memory(), "Hello.")
    assert text == ("" if told is None else f"{told}\n") + "Memory:\nChunk: Hello.\n"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_instructions_say_what_there_is_and_come_first(schema: str) -> None:
    text = instructions_for(SCHEMAS[schema])
    assert all(kind in text for kind in SCHEMAS[schema].kinds if not SCHEMAS[schema].is_keyed)
    assert all(word in text for word in ("Insert", "Update", "Delete", "rumours", "Write calls and nothing"))
    assert ("skip" if SCHEMAS[schema].has_skip else "call nothing") in text
    assert ("skip" in text) == SCHEMAS[schema].has_skip
    agent = make(ScriptedEngine([], max_context=50_000), schema=schema, instructions="auto", max_context=None)
    for chunk in ("One.", "Two."):
        assert opening(agent, made_of(agent).new_memory(), chunk)[0].startswith(f"{text}\nMemory:\n")


def test_a_chat_model_gets_the_tools_from_its_template_and_the_instructions_as_a_system_message() -> None:
    renderer = families.renderer("qwen3")
    agent = make(
        ScriptedEngine([], max_context=50_000),
        renderer=renderer,
        schema="three_part",
        instructions="auto",
        max_context=None,
    )
    text = renderer.decode(token_ids_of(agent, made_of(agent).new_memory(), "Hello.")[0])
    assert text.startswith(f"<|im_start|>system\n{INSTRUCTED}\n\n# Tools\n")
    assert all(f'"name": "{spec.name}"' in text for spec in SCHEMAS["three_part"].specs)
    assert text.endswith("<|im_start|>user\nMemory:\nChunk: Hello.<|im_end|>\n<|im_start|>assistant\n")


# --- options


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_calls", 0, r"environment\.max_calls 0: 1 or more is allowed; raise it"),
        ("max_context", 1, r"environment\.max_context 1: 2 or more is allowed; raise it"),
        ("min_context_left", 0, r"environment\.min_context_left 0: 1 or more is allowed; raise it"),
        ("core_tokens", 0, r"environment\.core_tokens 0: 1 or more is allowed; raise it"),
        ("shown_entries", -1, r"environment\.shown_entries -1: 0 or more is allowed; raise it"),
        ("shown_by", "oldest", r"environment\.shown_by 'oldest': newest, matching are allowed\."),
        ("schema", "ninepart", r"environment\.schema 'ninepart': .* are allowed\. Did you mean 'nine_part'\?"),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(ScriptedEngine([]), **{"renderer": tags(), option: value})


async def test_the_core_paragraph_has_a_limit_of_tokens() -> None:
    def core(text: str) -> str:
        return f'<memory_update>{{"memory_type": "core", "new_content": "{text}"}}</memory_update>{EOS}'

    played = await play(core("x" * 9), core("x" * 10), schema="three_part", core_tokens=10)
    assert played.episode.metrics_by_turn["executed"] == (1.0, 0.0)
    assert played.texts == ["x" * 9], "a space and nine letters"


def test_every_text_is_counted_as_it_stands_in_the_prompt() -> None:
    agent = make(ScriptedEngine([]))
    counts: Sequence[int] = [made_of(agent).count_tokens(text) for text in ("", "ab", "<|im_end|>")]
    assert counts == [1, 3, 11]
