"""Replay with the environment itself: what has changed around it is located."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentgrpo.core.types import Passage
from agentgrpo.environments.factory import Runner
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import Divergence
from agentgrpo.reports.replay.live import Live
from agentgrpo.reports.replay.reciting import Reciting
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    CHATTER,
    HOP_1,
    HOP_2,
    ROWS,
    VELMOR,
    ScriptedJudge,
    ScriptedRetriever,
    renderer,
)
from tests.environments.scripted import ScriptedEngine as Script
from tests.reports.replay.parts import REWARD, TASK, given, recorded
from tests.runners import search_runner


def searcher(rows: Mapping[str, Sequence[Passage] | Exception], *script: str) -> PolicyRunner:
    return search_runner(
        engine=Script(script or (HOP_1, HOP_2, ANSWER)),
        renderer=renderer(),
        retrievers={"vdb": ScriptedRetriever(rows), "web": ScriptedRetriever(rows)},
        evidence=ScriptedJudge(),
        describe_tools=False,
        show_search_evaluation=False,
    )


async def live(record: TrajectoryRecord, runner: Runner, *, reward: Reward = REWARD) -> Divergence | None:
    [found] = await Live(runner, reward, [TASK], tolerance=0.0, decode=renderer().decode, **given()).replay([record])
    return found


async def test_a_search_repeats_itself(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    assert record.answer == "Roka"
    assert await live(record, searcher(ROWS)) is None


async def test_a_changed_document_is_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    other = replace(VELMOR, text="Velmor was bought by Castin.")
    found = await live(record, searcher({**ROWS, "founded Velmor": (other, CHATTER)}))
    call = {"name": "search", "arguments": record.agent["tools"][0]["arguments"]}
    shown = "\n<information>\n[R1Q1D1] (Title: Velmor) Velmor was "
    assert found == Divergence(
        episode="v/0",
        kind="tool",
        branch=0,
        turn=0,
        token=1 + len("[R1Q1D1] (Title: Velmor) Velmor was "),  # the opening tag is one token
        character=len(shown),
        expected_text=f"{shown}founded by Castin. URL: http://x.test/velmor#history\n[R1Q1D2...",
        found_text=f"{shown}bought by Castin. URL: http://x.test/velmor#history\n[R1Q1D2]...",
        call=call,
        calls=[call],
    )
    assert call["arguments"]["query"] == "founded Velmor"


async def test_of_several_calls_the_one_that_found_others_is_named(tmp_path: Path) -> None:
    both = "<search> founded Velmor</search><search> born Castin</search>"
    record = await recorded(searcher(ROWS, both, ANSWER), tmp_path / "t.jsonl")
    calls = [{"name": "search", "arguments": call["arguments"]} for call in record.agent["tools"]]
    assert [call["arguments"]["query"] for call in calls] == ["founded Velmor", "born Castin"]
    fewer = {**ROWS, "born Castin": ()}
    found = await live(record, searcher(fewer, both, ANSWER))
    assert found is not None
    assert (found.kind, found.turn, found.call, found.calls) == ("tool", 0, calls[1], calls)
    worded = {**ROWS, "born Castin": (builders.passage("c1", "Castin was born in Doka."), CHATTER)}
    found = await live(record, searcher(worded, both, ANSWER))
    assert found is not None
    assert (found.kind, found.turn, found.call, found.calls) == ("tool", 0, None, calls), "their records are the same"


async def test_a_call_that_found_others_of_the_same_text_is_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    first, *rest = record.agent["tools"]
    other = {**first, "result_ids": [*first["result_ids"], "x"]}
    found = await live(replace(record, agent={**record.agent, "tools": [other, *rest]}), searcher(ROWS))
    assert found is not None
    assert (found.kind, found.turn, found.call) == ("tool", 0, {k: first[k] for k in ("name", "arguments")})
    assert (found.expected["result_ids"], found.found["result_ids"]) == (other["result_ids"], first["result_ids"])
    found = await live(replace(record, agent={**record.agent, "tools": rest}), searcher(ROWS))
    assert found is not None
    assert (found.kind, found.turn) == ("tool", 1), "the second stands in the place of the first"


async def test_another_end_and_another_answer_are_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    found = await live(replace(record, answer="Doka"), searcher(ROWS))
    assert found == Divergence(
        episode="v/0",
        kind="answer",
        character=0,
        expected="Doka",
        found="Roka",
        expected_text="Doka",
        found_text="Roka",
    )
    found = await live(replace(record, agent={**record.agent, "exit": "max_turns"}), searcher(ROWS))
    assert found == Divergence(episode="v/0", kind="exit", expected="max_turns", found="answered")


async def test_another_reward_is_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    dearer = Reward(judge=ExactMatch(), terms={"correctness": Correctness(weight=3.0)})
    found = await live(record, searcher(ROWS), reward=dearer)
    assert found == Divergence(episode="v/0", kind="reward", term="correctness", expected=2.0, found=3.0)
    assert await live(replace(record, reward=None), searcher(ROWS), reward=dearer) is None, "its judge had failed"


async def test_a_text_that_was_edited_beside_its_tokens_is_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    [branch] = record.branches
    for index, kind, turn in ((0, "prompt", 0), (1, "token", 0), (2, "tool", 0)):
        segments = [replace(s, text=f"{s.text}!") if i == index else s for i, s in enumerate(branch.segments)]
        found = await live(replace(record, branches=(replace(branch, segments=tuple(segments)),)), searcher(ROWS))
        assert found is not None
        assert (found.kind, found.turn, found.token) == (kind, turn, None)
        assert found.character == len(branch.segments[index].text)


async def test_another_reward_of_a_branch_is_located(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    found = await live(replace(record, reward_branches=[0.5]), searcher(ROWS))
    assert found == Divergence(episode="v/0", kind="reward", term="by branch", expected=[0.5], found=[])


async def test_a_retriever_that_fails_is_told(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    found = await live(record, searcher({**ROWS, "born Castin": OSError("gone")}, *2 * [HOP_1, HOP_2]))
    assert found == Divergence(
        episode="v/0",
        kind="exit",
        expected="answered",
        found="error",
        found_text="RetrieverError in RetrieverError: retriever vdb: OSError: gone (scripted.py:101 in search)",
    )


async def test_a_turn_that_goes_on_where_the_record_ends(tmp_path: Path) -> None:
    """One document more leaves no room for the next turn: it is the reply that is missing."""
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    short = searcher(ROWS)
    short.engine.max_context = sum(len(s.token_ids) for s in record.branches[0].segments[:2]) + 5
    found = await live(record, short)
    assert found is not None
    assert (found.kind, found.turn, found.character, found.found_text) == ("tool", 0, 0, "")


async def test_recorded_turns_take_the_place_of_an_engine(tmp_path: Path) -> None:
    record = await recorded(searcher(ROWS), tmp_path / "t.jsonl")
    runner = searcher(ROWS, "never asked")
    reciting = Reciting([record], runner.engine)
    assert await live(record, replace(runner, engine=reciting)) is None
    nothing = {"vdb": ScriptedRetriever({}), "web": ScriptedRetriever({})}
    assert isinstance(runner.environment, SearchEnvironments)
    other = replace(runner.environment, retrievers=nothing)
    found = await live(record, replace(runner, environment=other, engine=reciting))
    assert found is not None
    assert (found.kind, found.turn) == ("tool", 0)
