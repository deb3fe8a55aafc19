"""The terms of the tool agent's reward, by hand; and that turns add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Episode, Exit, Outcome, Segment, ToolRecord
from agentgrpo.rewards.registry import TERMS, TurnTerm
from tests.builders import episode, given, group, sampled, task
from tests.environments.tools.scripted import add, answer, play
from tests.rewards.test_presets import build

OK, NO_TOOL, BAD, FAILED = Outcome.SUCCESS, Outcome.TOOL_NOT_FOUND, Outcome.INVALID_ARGS, Outcome.RUNTIME_ERROR
NEEDED = task("What is the cost?", "1276", milestones=["29", "44"])


def record(turn: int, name: str, outcome: Outcome = OK) -> ToolRecord:
    return ToolRecord(name=name, arguments={}, outcome=outcome, turn=turn)


def shown(text: str) -> Segment:
    return replace(given(7, role="tool"), text=text)


def said(text: str) -> Segment:
    return replace(sampled(5), text=text)


def of(records: Sequence[ToolRecord], *texts: str, answer: str | None = "1276", format_errors: float = 0.0) -> Episode:
    """A turn before each of `texts`, then the answer's."""
    segments = [given(1)]
    for text in texts:
        segments += [said("a call"), shown(text)]
    exit = Exit.ANSWERED if answer is not None else Exit.FORMAT_ERROR_LIMIT
    made = episode(
        NEEDED, *segments, said("Final Answer"), answer=answer, exit=exit, metrics={"format_error_turns": format_errors}
    )
    return replace(made, tool_records=tuple(records))


FOUND = of([record(0, "lookup", FAILED), record(1, "lookup"), record(2, "calculator")], " error\n", " 44\n", " 1276\n")
"""A look-up that fails, one of two milestones, the sum."""
SPOILT = of(
    [record(0, "calc", NO_TOOL), record(1, "lookup", BAD), record(2, "python")], "", "", " 29 and 44\n", answer="7"
)
SILENT = of([], answer=None, format_errors=1.0)
KNOWN = of([])

TOOL_COST = {"prices": {"lookup": -0.1, "calculator": -0.25, "python": -0.5}, "other": -0.125}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("tool_success", {"weight": 0.6}, [0.4, 0.2, 0.0, 0.6]),
        ("milestones", {"weight": 0.5}, [0.25, 0.5, 0.0, 0.0]),
        ("tool_cost", TOOL_COST, [-0.45, -0.725, 0.0, 0.0]),
        ("invalid_calls", {"weight": -0.1}, [0.0, -0.2, 0.0, 0.0]),
        ("bad_format", {"weight": -0.3}, [0.0, 0.0, -0.3, 0.0]),
    ],
)
def test_values(name: str, arguments: dict[str, object], expected: list[float]) -> None:
    term = TERMS[name](**arguments)
    episodes = [(FOUND, 1.0), (SPOILT, 0.0), (SILENT, 0.0), (KNOWN, 1.0)]
    assert [term(each, right) for each, right in episodes] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("tool_success", {"weight": 0.6}, [0.0, 0.3, 0.1, 0.0]),
        ("milestones", {"weight": 0.5}, [0.0, 0.25, 0.0, 0.0]),
        ("tool_cost", TOOL_COST, [-0.1, -0.1, -0.25, 0.0]),
        ("invalid_calls", {"weight": -0.1}, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_turns(name: str, arguments: dict[str, object], expected: list[float]) -> None:
    term = TERMS[name](**arguments)
    assert isinstance(term, TurnTerm)
    assert list(term.per_turn(FOUND)) == pytest.approx(expected, abs=1e-12)


def test_an_invalid_call_is_charged_to_its_turn() -> None:
    term = TERMS["invalid_calls"](weight=-0.1)
    assert isinstance(term, TurnTerm)
    assert list(term.per_turn(SPOILT)) == [-0.1, -0.1, 0.0, 0.0]


async def test_a_reward_of_search_agents_names_those_that_fit_a_tool_agent(tmp_path: Path) -> None:
    played = (await play(add(2, 3), answer("5"), tmp_path=tmp_path)).episode
    with pytest.raises(ConfigError) as raised:
        await build("shaped").score(group(played))
    advice = "; remove the term, or choose an environment that does, or a reward that fits this one: "
    assert str(raised.value).endswith(
        f"{advice}for environment=memory e.g. reward=memory, for environment=tools e.g. reward=react, tools or "
        "correctness"
    )
    fitting = str(raised.value).rpartition("reward=")[2].replace(" or", ",").split(", ")
    scored = [(await build(name).score(group(played))).rewards[0] for name in fitting]
    assert [(name, r and r.correctness) for name, r in zip(fitting, scored, strict=True)] == [
        *(("react", 1.0), ("tools", 1.0), ("correctness", 1.0))
    ]


def test_without_a_call_only_a_right_answer_counts_as_success() -> None:
    term = TERMS["tool_success"](weight=0.6)
    assert [term(KNOWN, grade) for grade in (1.0, 0.5, 0.0)] == [0.6, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" 44\n", 0.5), ("44", 0.5), ("velmor 44\ndranbet 29\n...", 1.0), (" 144\n", 0.0), (" 44.5", 0.5), ("x44", 0.0)],
)
def test_a_milestone_is_a_word_of_its_own(text: str, expected: float) -> None:
    assert TERMS["milestones"](weight=1.0)(of([record(0, "lookup")], text), 0.0) == expected


def test_only_what_tools_show_is_a_milestone() -> None:
    opening = replace(given(1), text="29 44")
    assert TERMS["milestones"](weight=1.0)(episode(NEEDED, opening, said("29 44")), 1.0) == 0.0


def test_what_no_call_found_is_no_milestone() -> None:
    """An error quotes the guess; a program prints its own numbers; only the last episode looks anything up."""
    term = TERMS["milestones"](weight=1.0)
    quoted = of([record(0, "lookup", FAILED)], " error: unknown key 44\n")
    printed = episode(NEEDED, given(1), said("print(29, 44)"), shown(" 29 44\n"), said("Final Answer"))
    guessed = [replace(printed, tool_records=(record(0, "python"),)), quoted]
    assert [term(each, 1.0) for each in guessed] == [0.0, 0.0]
    found = episode(NEEDED, given(1), said("lookup"), shown(" 29\n"), said("29*2"), shown(" 58 44\n"), said("so"))
    assert term(replace(found, tool_records=(record(0, "lookup"), record(1, "calculator"))), 1.0) == 1.0


@pytest.mark.parametrize("name", ["milestones", "tool_success"])
@pytest.mark.parametrize("answer", [None, "", "\u200b", "\u3164\u2800", "\ufe0f\U000e0041"])
def test_calls_are_made_to_answer_from(name: str, answer: str | None) -> None:
    """Without an answer that can be seen nothing is paid for what they find."""
    term = TERMS[name](weight=1.0)
    silent = of([record(0, "lookup")], " 29 44\n", answer=answer)
    assert isinstance(term, TurnTerm)
    assert (term(silent, 0.0), list(term.per_turn(silent))) == (0.0, [0.0, 0.0])
    assert term(replace(silent, answer="?"), 0.0) == 1.0


def test_a_task_without_milestones_has_none_to_reach() -> None:
    assert TERMS["milestones"](weight=1.0)(episode(task(), said("a"), shown("b")), 1.0) == 0.0


@pytest.mark.parametrize("milestones", ["44", [44], [""]])
def test_refused_milestones(milestones: object) -> None:
    bad = episode(task("q", "a", milestones=milestones), said("a"))
    with pytest.raises(DataError, match=r"metadata.milestones=.*; a list of texts is needed"):
        TERMS["milestones"](weight=1.0)(bad, 1.0)


@pytest.mark.parametrize("price", [0.1, float("nan"), float("-inf"), "cheap", True])
def test_refused_prices(price: object) -> None:
    with pytest.raises(ConfigError, match=r"ToolCost lookup=.*: a price is a finite number, 0 or less"):
        TERMS["tool_cost"](prices={"lookup": price}, other=0.0)


async def totals(preset: str) -> list[float]:
    scored = await build(preset).score(group(FOUND, SPOILT, SILENT, KNOWN))
    rewards = [r for r in scored.rewards if r is not None]
    assert [sum(r.turns) for r in rewards] == pytest.approx([r.total for r in rewards], abs=1e-12)
    return [r.total for r in rewards]


async def test_the_presets_by_hand() -> None:
    """tools: 1 + .2 * 2/3 + .5 * 1/2 - (.1 + .1 + .1); 0 + .2 * 1/3 + .5 - 2 * .1, costs waived; -.3; 1 + .2.
    react: 1; -2 * .1; -.3; 1. artist: 2 where it is right, and the share of calls that succeed; these turns hold no
    tags."""
    assert await totals("tools") == pytest.approx([1 + 0.4 / 3 + 0.25 - 0.3, 0.2 / 3 + 0.5 - 0.2, -0.3, 1.2])
    assert await totals("react") == pytest.approx([1.0, -0.2, -0.3, 1.0])
    assert await totals("artist") == pytest.approx([2 + 2 / 3, 1 / 3, 0.0, 2.0])
