"""The one loop, over environments whose every word is written here: a token is a letter, its id the letter's code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, EngineError, ToolError
from agentgrpo.core.messages import ParsedTurn, ToolCall, ToolReply, ToolSpec
from agentgrpo.core.types import (
    Branch,
    Citation,
    Episode,
    Exit,
    Message,
    Outcome,
    Piece,
    Segment,
    Task,
    ToolRecord,
)
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.rollout.groups import run_episode
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.environments.scripted import ScriptedEngine

EPISODE = ("train/3", "t0", 2)
LOOK = ToolCall(name="look", arguments={})
SPEC = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
Said = Observation | Exception | Callable[[], Coroutine[Any, Any, Observation]]


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


class Letters:
    """A ToolRenderer: an opening ends with a line, what is told stands in [], replies in {}. "!look" calls look, "=x"
    answers x."""

    stop_token_ids = (0,)
    stop_strings = ("~",)
    in_turns, longest_token = False, 1

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return ids("".join(m.content for m in messages) + "\n")

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        return ids("".join(f"<{tool.name}>" for tool in tools)) + self.open(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return ids("".join(piece.text for piece in pieces))

    def tell(self, pieces: Sequence[Piece], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return ids("[") + self.observe(pieces) + ids("]")

    def reply(self, replies: Sequence[ToolReply], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return ids("{" + "|".join(reply.text for reply in replies) + "}")

    def parse(self, token_ids: Sequence[int]) -> ParsedTurn:
        text = self.decode(token_ids)
        calls = tuple(ToolCall(name=name, arguments={}) for name in text.split("!")[1:])
        return ParsedTurn(content=text.partition("!")[0], calls=calls, answer=text[1:] if text[0] == "=" else None)

    def encode_action(self, text: str) -> tuple[int, ...]:
        return ids(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def says(text: str, **more: Any) -> Observation:
    return Observation(messages=[Message(role="user", content=text)], **more)


def ends(exit: Exit = Exit.ANSWERED, **more: Any) -> Observation:
    return Observation(done=exit, **more)


@dataclass(eq=False)
class Lines(EnvironmentDefaults):
    """Environments that say these observations, one after the other; what happens to them is in `log`."""

    said: Sequence[Said]
    scores: Scores | Exception = field(default_factory=dict)
    limits: TurnLimits = field(default_factory=TurnLimits)
    log: list[str] = field(default_factory=list)
    made: list[Attempt] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    scored: list[Episode] = field(default_factory=list)
    name: str = "lines"
    figures = SEARCH_FIGURES

    def make(self, attempt: Attempt) -> Environment:
        self.made.append(attempt)
        return Line(self)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        raise ConfigError(f"{task.id} in {max_context}")


class Line:
    def __init__(self, of: Lines) -> None:
        self.of = of

    async def reset(self, task: Task) -> Observation:
        self.of.log.append("reset")
        return await self._said(0)

    async def step(self, turn: Turn) -> Observation:
        self.of.log.append(f"step {turn.index}")
        self.of.turns.append(turn)
        return await self._said(turn.index + 1)

    async def score(self, episode: Episode) -> Scores:
        self.of.log.append("score")
        self.of.scored.append(episode)
        if isinstance(self.of.scores, Exception):
            raise self.of.scores
        return self.of.scores

    async def close(self) -> None:
        self.of.log.append("close")

    async def _said(self, index: int) -> Observation:
        said = self.of.said[index]
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Observation) else await said()


def runner(lines: Lines, *script: str, max_context: int = 1000) -> tuple[PolicyRunner, ScriptedEngine]:
    engine = ScriptedEngine(script, max_context=max_context, speaks=Letters())
    return PolicyRunner(environment=lines, engine=engine, renderer=Letters()), engine


async def run(made: PolicyRunner, *, attempt: int = 0, max_tokens: int = 100) -> Episode:
    return await made.run(
        builders.task(id="t0"),
        sample_index=2,
        stream="train/3",
        sampling=SamplingParams(max_tokens=max_tokens),
        attempt=attempt,
    )


async def played(lines: Lines, *script: str, max_context: int = 1000) -> Episode:
    """One episode of exactly these turns."""
    made, engine = runner(lines, *script, max_context=max_context)
    episode = await run(made)
    assert len(engine.keys) == len(script)
    return episode


def sampled(text: str) -> Segment:
    """As ScriptedEngine has it: log p of the i-th token is -i/8, the weights' version 3."""
    logprobs = tuple(-i / 8 for i in range(len(text)))
    return Segment(role="assistant", token_ids=ids(text), sampled=True, logprobs=logprobs, policy_version=3, text=text)


def given(text: str, role: str = "tool") -> Segment:
    return Segment(role=role, token_ids=ids(text), sampled=False, text=text)  # type: ignore[arg-type]


def exits(exit: Exit) -> dict[str, float]:
    return {f"exit_{e.value}": float(e is exit) for e in Exit}


# --- tokens, masks, figures


async def test_an_episode_by_hand() -> None:
    call = ToolRecord(name="look", arguments={}, outcome=Outcome.SUCCESS, turn=0)
    cited = Citation(doc_id="d", marker="[R1Q1D1]", text="x")
    lines = Lines(
        [
            says("Q", metrics={"level": 7.0}),
            says("x", reward=0.25, metrics={"level": 1.0, "hits": (1.0,)}, calls=[call], shown=["d"], notes=[{"n": 1}]),
            ends(answer="b", reward=0.5, metrics={"level": 2.0, "hits": (1.0, 0.5)}, citations=[cited]),
        ],
        scores={"reward": 1.0, "tests": (0.0, 2.0)},
    )
    made, engine = runner(lines, "ab", "c")
    episode = await run(made)
    segments = (given("Q\n", "user"), sampled("ab"), given("[x]"), sampled("c"))
    assert segments[1].token_ids == (97, 98)
    assert episode == Episode(
        task=builders.task(id="t0"),
        sample_index=2,
        branches=(Branch(segments=segments),),
        answer="b",
        exit=Exit.ANSWERED,
        metrics={"level": 2.0, "hits": 1.5, "reward": 0.25 + 0.5 + 1.0, "tests": 2.0, **exits(Exit.ANSWERED)},
        metrics_by_turn={"hits": (1.0, 0.5), "tests": (0.0, 2.0), "reward": (0.25, 0.5 + 1.0)},
        citations=(cited,),
        retrieved_ids=("d",),
        tool_records=(call,),
        memory=({"n": 1},),
        environment="lines",
        turn_rewards=(0.25, 0.5),
        outcome={"reward": 1.0, "tests": (0.0, 2.0)},
        timings=episode.timings,
    )
    assert [int(m) for m in episode.branches[0].loss_mask] == [0, 0, 1, 1, 0, 0, 0, 1]
    assert engine.contexts == ["Q\n", "Q\nab[x]"]
    assert engine.keys == [SeedKey("train/3", "t0", 2, 0), SeedKey("train/3", "t0", 2, 1)]
    assert (episode.timings["time_generate"], episode.timings["time_queue"]) == (1.0, 0.5)
    assert [(t.index, t.text, t.token_ids, t.content, t.calls) for t in lines.turns] == [
        (0, "ab", (97, 98), "ab", ()),
        (1, "c", (99,), "c", ()),
    ]
    assert lines.made == [
        Attempt(task=builders.task(id="t0"), sample_index=2, stream="train/3", number=0, max_context=1000)
    ]


async def test_the_content_of_a_turn_is_without_the_token_that_ends_it() -> None:
    lines = Lines([says("Q"), says("x"), ends()])
    await played(lines, "ab\0", "\0c")
    assert [(t.text, t.content) for t in lines.turns] == [("ab\0", "ab"), ("\0c", "\0c")]


async def test_where_nothing_is_paid_there_is_no_reward() -> None:
    episode = await played(Lines([says("Q"), ends()]), "a")
    assert (episode.turn_rewards, episode.outcome, dict(episode.metrics)) == ((), {}, exits(Exit.ANSWERED))
    scored = await played(Lines([says("Q"), ends()], scores={"reward": 0.5}), "a")
    assert (scored.turn_rewards, scored.metrics["reward"], scored.metrics_by_turn) == ((), 0.5, {})


async def test_turns_are_plain_text_with_the_environments_stops_where_no_tools_are_on_offer() -> None:
    lines = Lines([says("Q"), ends()], limits=TurnLimits(stop=("</a>",)))
    made, engine = runner(lines, "!look")
    await run(made)
    assert [(s.stop, s.stop_token_ids, s.max_tokens) for s in engine.samplings] == [(("</a>",), (0,), 100)]
    assert (lines.turns[0].content, lines.turns[0].calls) == ("!look", ())


async def test_with_tools_on_offer_turns_are_parsed_and_replies_stand_together() -> None:
    replies = [ToolReply(call=LOOK, text=text) for text in "12"]
    lines = Lines(
        [
            says("Q", tools=[SPEC]),
            Observation(messages=[*replies, Message(role="user", content="x")]),
            ends(answer="z"),
        ]
    )
    made, engine = runner(lines, "a!look!look", "=z")
    episode = await run(made)
    assert [s.text for s in episode.branches[0].segments] == ["<look>Q\n", "a!look!look", "{1|2}", "[x]", "=z"]
    assert [s.stop for s in engine.samplings] == [("~",)] * 2
    assert [(t.content, t.calls, t.answer) for t in lines.turns] == [("a", (LOOK, LOOK), None), ("=z", (), "z")]


async def test_what_is_said_at_the_end_is_told_too() -> None:
    """It is never answered, and nothing that is sampled depends on it; but the record is of all that was said."""
    episode = await played(Lines([says("Q"), replace(says("x"), done=Exit.MAX_TURNS, shown=["d"])]), "a")
    assert [s.text for s in episode.branches[0].segments] == ["Q\n", "a", "[x]"]
    assert (episode.exit, episode.retrieved_ids) == (Exit.MAX_TURNS, ("d",))


async def test_an_environment_that_is_over_at_once_samples_nothing() -> None:
    lines = Lines([ends(answer="early", metrics={"n": 1.0})], scores={"reward": 1.0})
    episode = await played(lines)
    assert (episode.branches, episode.answer, episode.metrics["reward"]) == ((), "early", 1.0)
    assert lines.log == ["reset", "score", "close"]


# --- limits


async def test_no_more_turns_than_are_allowed() -> None:
    lines = Lines([says("Q"), says("x"), says("y"), says("z")], limits=TurnLimits(max_turns=2))
    episode = await played(lines, "a", "b")
    assert [s.text for s in episode.branches[0].segments] == ["Q\n", "a", "[x]", "b", "[y]"]
    assert (episode.exit, episode.answer, episode.metrics) == (Exit.MAX_TURNS, None, exits(Exit.MAX_TURNS))
    assert lines.log == ["reset", "step 0", "step 1", "score", "close"]


async def test_what_does_not_fit_is_dropped_whole_and_ends_it() -> None:
    """Room for "Q\\na", "[x]" and one token more; the second message would take three."""
    two = Observation(messages=[Message(role="user", content=text) for text in "xy"], shown=["d"], reward=0.5)
    lines = Lines([says("Q"), two])
    episode = await played(lines, "a", max_context=9)
    assert [s.text for s in episode.branches[0].segments] == ["Q\n", "a", "[x]"]
    assert (episode.exit, episode.turn_rewards) == (Exit.CONTEXT_OVERFLOW, (0.5,))
    assert episode.retrieved_ids == ("d",)
    assert lines.log == ["reset", "step 0", "score", "close"]
    none = await played(Lines([says("Q"), two]), "a", max_context=6)
    assert ([s.text for s in none.branches[0].segments], none.retrieved_ids) == (["Q\n", "a"], ())
    whole = await played(Lines([says("Q"), two, ends()]), "a", "b", max_context=10)
    assert whole.exit is Exit.ANSWERED


@pytest.mark.parametrize(("left", "turns"), [(3, 1), (4, 0)])
async def test_no_turn_begins_with_fewer_tokens_than_are_to_be_left(left: int, turns: int) -> None:
    """The opening takes two of five, so that three are left; the turn is cut where the context ends."""
    lines = Lines([says("Q"), ends()], limits=TurnLimits(max_context=5, min_context_left=left))
    made, engine = runner(lines, "abcdef")
    episode = await run(made)
    assert [s.max_tokens for s in engine.samplings] == [3] * turns
    assert len(episode.turns) == turns
    assert episode.exit is (Exit.ANSWERED if turns else Exit.CONTEXT_OVERFLOW)


async def test_an_engine_that_holds_less_than_is_allowed_is_the_limit() -> None:
    lines = Lines([says("Q"), ends()], limits=TurnLimits(max_context=500))
    made, engine = runner(lines, "abcdef", max_context=4)
    await run(made)
    assert [s.max_tokens for s in engine.samplings] == [2]


class Unread(Letters):
    """Reads no long text."""

    def open(self, messages: Sequence[Message]) -> tuple[int, ...]:
        assert all(len(message.content) <= 100 for message in messages)
        return super().open(messages)

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        assert all(len(piece.text) <= 100 for piece in pieces)
        return super().observe(pieces)


@pytest.mark.parametrize(
    ("said", "branches"),
    [
        ([says("x" * 20_000)], []),
        ([says("Q"), says("x" * 20_000)], [["Q\n", "a"]]),
        ([says("Q"), Observation(messages=[Message.of_pieces([Piece("x" * 20_000, True)])])], [["Q\n", "a"]]),
        ([says("Q"), says("x" * 20_000, fresh_context=True)], [["Q\n", "a"]]),
        ([says("Q"), says("R", fresh_context=True, then=[Message(role="user", content="x" * 20_000)])], ["Qa", "R"]),
    ],
)
async def test_a_text_that_cannot_fit_is_not_even_read(said: Sequence[Said], branches: Sequence[Sequence[str]]) -> None:
    lines = Lines(said)
    made, _ = runner(lines, "a", max_context=100)
    episode = await run(replace(made, renderer=Unread()))
    assert episode.exit is Exit.CONTEXT_OVERFLOW
    told = [[s.text.strip() for s in branch.segments] for branch in episode.branches]
    assert ["".join(texts) for texts in told] == ["".join(texts).replace("\n", "") for texts in branches]
    assert lines.log[-2:] == ["score", "close"]


async def test_an_opening_that_does_not_fit_is_no_branch() -> None:
    made, _ = runner(Lines([says("x" * 99)]), max_context=99)
    assert (await run(made)).branches == ()


# --- contexts


async def test_a_fresh_context_is_a_branch_of_its_own() -> None:
    def opened(text: str, **more: Any) -> Observation:
        return says(text, fresh_context=True, shared_opening=1, **more)

    lines = Lines([opened("Q1"), opened("Q2", metrics={"n": (1.0,)}), ends(metrics={"n": (1.0, 2.0)})])
    made, engine = runner(lines, "a", "b")
    episode = await run(made)
    assert episode.branches == (
        Branch(segments=(given("Q1\n", "user"), sampled("a"))),
        Branch(segments=(given("Q2\n", "user"), sampled("b"))),
    )
    assert engine.contexts == ["Q1\n", "Q2\n"]
    assert [key.turn for key in engine.keys] == [0, 1]
    assert [s.opening for s in engine.samplings] == [1, 1]
    assert [turn.index for turn in lines.turns] == [0, 1]
    assert (episode.metrics["n"], episode.metrics_by_turn["n"]) == (3.0, (1.0, 2.0))
    assert (episode.timings["time_generate"], engine.released) == (1.0, [EPISODE])


# --- ends


async def test_it_scores_the_finished_episode_before_it_is_closed_and_after_the_engine_may_forget_it() -> None:
    lines = Lines([says("Q"), ends(answer="b", reward=0.5)], scores={"reward": 1.0})
    made, engine = runner(lines, "a")
    episode = await run(made)
    assert lines.log == ["reset", "step 0", "score", "close"]
    [seen] = lines.scored
    assert (seen.answer, seen.exit, seen.turn_rewards, seen.branches) == ("b", Exit.ANSWERED, (0.5,), episode.branches)
    assert seen.outcome == {}, "it is what is asked for"
    assert engine.released == [EPISODE]


@pytest.mark.parametrize("where", ["reset", "step", "score", "engine"])
async def test_whatever_fails_it_is_closed_and_the_engine_forgets(where: str) -> None:
    down = ToolError("the shop is down")
    lines = Lines(
        [down if where == "reset" else says("Q"), down if where == "step" else ends()],
        scores=down if where == "score" else {},
    )

    class Down(ScriptedEngine):
        async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
            if where == "engine":
                raise ConnectionError("no route")
            return await super().generate(token_ids, sampling, key)

    engine = Down(["a"], speaks=Letters())
    made = PolicyRunner(environment=lines, engine=engine, renderer=Letters())
    with pytest.raises(EngineError if where == "engine" else ToolError):
        await run(made)
    assert (
        lines.log
        == {
            "reset": ["reset", "close"],
            "step": ["reset", "step 0", "close"],
            "score": ["reset", "step 0", "score", "close"],
            "engine": ["reset", "close"],
        }[where]
    )
    assert engine.released == ([] if where == "reset" else [EPISODE])


async def test_a_cancelled_attempt_is_closed_and_nothing_of_it_runs_on() -> None:
    begun = asyncio.Event()

    async def hang() -> Observation:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    lines = Lines([says("Q"), hang])
    made, engine = runner(lines, "a")
    episode = asyncio.create_task(run(made))
    await begun.wait()
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert (lines.log, engine.released) == (["reset", "step 0", "close"], [EPISODE])
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- attempts


class Shops(EnvironmentDefaults):
    """Environments that keep what they are told in themselves; the first attempt fails at its second turn."""

    name = "shops"
    figures = SEARCH_FIGURES
    limits = TurnLimits()

    def __init__(self) -> None:
        self.made: list[Shop] = []

    def make(self, attempt: Attempt) -> Environment:
        self.made.append(Shop(attempt))
        return self.made[-1]


class Shop:
    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.cart: list[str] = []
        self.is_closed = False

    async def reset(self, task: Task) -> Observation:
        return says("Q")

    async def step(self, turn: Turn) -> Observation:
        self.cart.append(turn.text)
        if turn.index == 0:
            return says("x")
        if self.attempt.number == 0:
            raise ToolError("the shop is down")
        return ends(answer=",".join(self.cart))

    async def score(self, episode: Episode) -> Mapping[str, float]:
        return {"items": float(len(self.cart))}

    async def close(self) -> None:
        self.is_closed = True


async def test_a_retry_has_an_environment_of_its_own_and_leaves_no_trace_of_the_first_attempt() -> None:
    shops, engine = Shops(), ScriptedEngine(["a", "b", "a", "b"], speaks=Letters())
    made = PolicyRunner(environment=shops, engine=engine, renderer=Letters())
    sampling = SamplingParams(max_tokens=9)
    task = builders.task(id="t0")
    retried = await run_episode(made, task, sample_index=2, stream="train/3", sampling=sampling, retries=1)
    assert (retried.answer, retried.outcome, retried.failure) == ("a,b", {"items": 2.0}, None)
    assert [(shop.attempt.number, shop.attempt.seed, shop.is_closed) for shop in shops.made] == [
        (0, "train/3|t0|2", True),
        (1, "train/3|t0|2", True),
    ]
    assert engine.keys[:2] == engine.keys[2:]
    engine = ScriptedEngine(["a", "b"], speaks=Letters())
    unharmed = await run(PolicyRunner(environment=Shops(), engine=engine, renderer=Letters()), attempt=1)
    assert replace(unharmed, timings={}) == replace(retried, timings={})


async def test_many_at_once_have_nothing_in_common() -> None:
    lines = Lines([says("Q"), says("x"), ends()])
    made, engine = runner(lines, *["a"] * 10)
    sampling = SamplingParams(max_tokens=9)
    runs = [made.run(builders.task(id=f"t{i}"), sample_index=i, stream="s", sampling=sampling) for i in range(5)]
    episodes = await asyncio.gather(*runs)
    assert [(e.task.id, e.sample_index, len(e.turns)) for e in episodes] == [(f"t{i}", i, 2) for i in range(5)]
    assert sorted(engine.released) == [("s", f"t{i}", i) for i in range(5)]
    assert len(lines.made) == 5


def test_what_could_not_begin_is_refused_for_what_the_engine_holds() -> None:
    made, _ = runner(Lines([says("Q")]), max_context=77)
    with pytest.raises(ConfigError, match=r"^t0 in 77$"):
        made.rehearse(builders.task(id="t0"))
