"""Token for token: a request goes on with what was sampled, or opens a branch; nothing is tokenised again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgrpo.core.types import Branch, Exit
from agentgrpo.engines.base import SamplingParams
from tests.environments.program.played import (
    ADD,
    ADDS,
    END,
    RENDERER,
    Client,
    SpellingEngine,
    assistant,
    play,
    result,
    spelled,
    user,
)

OPENER = "<|im_start|>assistant\n"


def texts(branch: Branch) -> list[tuple[str, bool]]:
    return [(segment.text, segment.sampled) for segment in branch.segments]


def word(text: str) -> str:
    return f"\n<|im_start|>user\n{text}{END}\n{OPENER}"


async def test_an_agent_that_appends_has_one_branch_of_exactly_what_was_sampled() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user(task["question"])]
        called = await client.say(messages, tools=[ADD])
        messages += [called, result(called, "3")]
        messages += [await client.say(messages, tools=[ADD]), user("Sure?")]
        # As frameworks echo it: other spelling of the arguments, parts for texts, empty fields, no null.
        messages[1] = {
            "role": "assistant",
            "content": "",
            "refusal": None,
            "tool_calls": [
                {"id": called["tool_calls"][0]["id"], "function": {"name": "add", "arguments": '{"b":2,"a":1}'}}
            ],
        }
        messages[3] = {"role": "assistant", "content": [{"type": "text", "text": "The tool says 3."}]}
        return len((await client.say(messages, tools=[ADD]))["content"])

    engine = SpellingEngine([ADDS, f"The tool says 3.{END}", f"Yes.{END}"])
    episode = await play(agent, engine)
    [branch] = episode.branches
    first, *rest = texts(branch)
    assert first[0].endswith(f"<|im_start|>user\n1+2?{END}\n{OPENER}")
    assert rest == [
        (ADDS, True),
        (f"\n<|im_start|>user\n<tool_response>\n3\n</tool_response>{END}\n{OPENER}", False),
        (f"The tool says 3.{END}", True),
        (word("Sure?"), False),
        (f"Yes.{END}", True),
    ]
    assert [s.token_ids for s in branch.segments if s.sampled] == engine.answered
    assert engine.answered[1] == spelled(f"The tool says 3.{END}") != RENDERER.encode_action(f"The tool says 3.{END}")
    for context, _, _ in engine.asked:
        assert branch.token_ids[: len(context)] == context
    assert [key.turn for _, _, key in engine.asked] == [0, 1, 2]
    assert {key.stream for _, _, key in engine.asked} == {"train/3"}
    assert (episode.metrics["branches"], episode.metrics["continued_share"]) == (1.0, 1.0)
    assert episode.metrics["unattributed_tokens"] == 0.0
    assert (episode.outcome, episode.answer, episode.exit) == ({"reward": 4.0}, "Yes.", Exit.ANSWERED)


async def test_a_rewritten_history_opens_a_branch_in_which_it_has_no_gradient() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client = Client(base_url)
        await client.say([user("a")])
        await client.say([user("a"), assistant("no such words"), user("b")])
        return 1.0

    engine = SpellingEngine([f"one{END}", f"two{END}"])
    episode = await play(agent, engine)
    assert [texts(branch)[1:] for branch in episode.branches] == [
        [(f"one{END}", True)],
        [(f"no such words{END}", False), (word("b"), False), (f"two{END}", True)],
    ]
    trained = [s.token_ids for branch in episode.branches for s in branch.segments if s.sampled]
    assert trained == engine.answered
    metrics = episode.metrics
    assert (metrics["branches"], metrics["continued_share"]) == (2.0, 0.0)
    assert metrics["unattributed_tokens"] == len(RENDERER.encode_action("no such words"))


async def test_what_is_put_beside_a_sampled_turn_makes_it_another_one() -> None:
    """Two messages of the assistant's in a row are one turn, and nobody has sampled that."""

    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        messages += [await client.say(messages), assistant("and more"), user("b")]
        await client.say(messages)
        return 1.0

    episode = await play(agent, SpellingEngine([f"one{END}", f"two{END}"]))
    assert [texts(branch)[1:] for branch in episode.branches] == [
        [(f"one{END}", True)],
        [(f"one\nand more{END}", False), (word("b"), False), (f"two{END}", True)],
    ]


async def test_a_request_that_goes_back_follows_the_sampled_tokens_and_trains_them_once() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        messages += [await client.say(messages)]
        await client.say([*messages, user("b")])
        await client.say([*messages, user("c")])
        return 1.0

    engine = SpellingEngine([f"one{END}", f"two{END}", f"three{END}"])
    episode = await play(agent, engine)
    first, second = episode.branches
    assert texts(first)[1:] == [(f"one{END}", True), (word("b"), False), (f"two{END}", True)]
    assert texts(second)[1:] == [(f"one{END}", False), (word("c"), False), (f"three{END}", True)]
    assert second.token_ids[: len(engine.asked[2][0])] == engine.asked[2][0]
    assert second.segments[1].token_ids == spelled(f"one{END}")
    assert second.segments[1].logprobs is None
    assert episode.metrics["continued_share"] == 0.5


async def test_another_system_prompt_or_other_tools_are_a_conversation_of_its_own() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        messages += [await client.say(messages), user("b")]
        await client.say([{"role": "developer", "content": "Be brief."}, *messages])
        await client.say(messages, tools=[ADD])
        await client.say(messages)
        return 1.0

    engine = SpellingEngine([f"{n}{END}" for n in range(4)])
    episode = await play(agent, engine)
    assert [sum(s.sampled for s in branch.segments) for branch in episode.branches] == [2, 1, 1]
    plain, brief, offered = (texts(branch)[0][0] for branch in episode.branches)
    assert [("Be brief." in text, "<tools>" in text) for text in (plain, brief, offered)] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert episode.metrics["continued_share"] == pytest.approx(1 / 3)


async def test_equal_requests_side_by_side_are_sampled_apart_whatever_their_order() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        messages += [await client.say(messages), user("b")]
        await asyncio.gather(*(client.say(messages) for _ in range(3)))
        return 1.0

    engine = SpellingEngine(lambda context: f"x{END}")
    episode = await play(agent, engine)
    streams = sorted(key.stream for _, _, key in engine.asked)
    assert streams[:2] == ["train/3", "train/3"]
    assert [s.rpartition(".")[2] for s in streams[2:]] == ["0", "1"]
    assert len({s.rpartition(".")[0] for s in streams[2:]}) == 1
    assert len(episode.branches) == 3
    again = SpellingEngine(lambda context: f"x{END}")
    await play(agent, again)
    assert sorted(key for _, _, key in again.asked) == sorted(key for _, _, key in engine.asked)


async def test_replies_and_a_word_of_the_users_after_them_are_turns_of_their_own() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        called = await client.say(messages, tools=[ADD])
        await client.say([*messages, called, result(called, "3"), user("And?")], tools=[ADD])
        return 1.0

    episode = await play(agent, SpellingEngine([ADDS, f"3{END}"]))
    [branch] = episode.branches
    reply = f"\n<|im_start|>user\n<tool_response>\n3\n</tool_response>{END}\n{OPENER}"
    assert texts(branch)[2:] == [(reply, False), (f"{END}{word('And?')}", False), (f"3{END}", True)]


async def test_a_stop_string_ends_a_turn_and_is_not_shown_but_kept() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        said = await client.say(messages, stop="STOP", max_tokens=20)
        assert said["content"] == "so "
        await client.say([*messages, said, user("b")])
        return 1.0

    engine = SpellingEngine(["so STOP", f"x{END}"])
    [branch] = (await play(agent, engine)).branches
    assert engine.asked[0][1].stop == ("STOP",)
    assert engine.asked[0][1].max_tokens == 20
    assert texts(branch)[1:3] == [("so STOP", True), (f"{END}{word('b')}", False)]


async def test_a_call_that_cannot_be_read_is_text_and_goes_on() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        said = await client.say(messages, tools=[ADD])
        assert said == {"role": "assistant", "content": "<tool_call>\n{oops</tool_call>"}
        await client.say([*messages, said, user("b")], tools=[ADD])
        return 1.0

    episode = await play(agent, SpellingEngine([f"<tool_call>\n{{oops</tool_call>{END}", f"x{END}"]))
    assert episode.metrics["continued_share"] == 1.0


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_cancelled_leaves_nothing_and_the_same_again_is_the_same(begun: bool) -> None:
    """A client that gives up is not answered; asked again, its turn is drawn with the same random numbers."""
    is_asked, is_over, is_patient = asyncio.Event(), asyncio.Event(), [True]

    async def wait() -> None:
        is_asked.set()
        try:
            await asyncio.sleep(0 if is_patient[0] else 600)
        finally:
            is_over.set()

    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        if begun:
            messages += [await client.say(messages), user("b")]
        is_patient[0] = False
        is_asked.clear()
        given_up = asyncio.ensure_future(client.say(messages))
        await is_asked.wait()
        is_over.clear()
        given_up.cancel()
        await is_over.wait()
        is_patient[0] = True
        await client.say(messages)
        return 1.0

    engine = SpellingEngine(lambda context: f"x{END}", wait=wait)
    episode = await play(agent, engine)
    assert engine.asked[-1] == engine.asked[-2]
    [branch] = episode.branches
    assert [s.token_ids for s in branch.segments if s.sampled] == engine.answered == [spelled(f"x{END}")] * (1 + begun)
    assert len(branch.segments) == 2 + 2 * begun


async def test_limits_are_said_by_name_and_end_an_episode_whose_program_does_not_cope() -> None:
    async def agent(task: Any, base_url: str) -> float:
        client, messages = Client(base_url), [user("a")]
        for _ in range(9):
            messages += [await client.say(messages), user("b")]
        return 1.0

    engine = SpellingEngine(lambda context: f"x{END}")
    episode = await play(agent, engine, max_requests=2)
    assert (episode.exit, episode.outcome) == (Exit.MAX_TURNS, {"reward": 0.0})
    assert (episode.metrics["requests"], episode.metrics["refused_requests"]) == (2.0, 1.0)
    episode = await play(agent, engine, max_tokens=5)
    assert episode.exit is Exit.MAX_TURNS
    assert [s.token_ids for s in episode.turns] == [*[spelled(f"x{END}")] * 2, spelled("x")]
    episode = await play(agent, engine, max_context=60, sampling=SamplingParams(max_tokens=3))
    assert episode.exit is Exit.CONTEXT_OVERFLOW
    assert sum(len(b.token_ids) for b in episode.branches) <= 60
