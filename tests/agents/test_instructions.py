"""What a policy is told that has not learned to search: it must be so, under whatever names and limits."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from agentgrpo.agents.search import SearchAgent, options
from agentgrpo.agents.search.actions import AnswerAction, FetchAction, Query, RerankAction, SearchAction
from agentgrpo.agents.search.tags import Tags
from agentgrpo.engines.base import SamplingParams
from agentgrpo.errors import ConfigError
from tests import builders
from tests.agents.scripted import (
    ANSWER,
    HOP_1,
    PROMPT,
    ROWS,
    ReversingReranker,
    ScriptedEngine,
    ScriptedFetcher,
    ScriptedJudge,
    ScriptedRetriever,
    play,
    renderer,
)


def agent(**options: Any) -> SearchAgent:
    vdb = ScriptedRetriever(ROWS)
    parts: dict[str, Any] = {
        "engine": ScriptedEngine([HOP_1, ANSWER]),
        "renderer": renderer(),
        "retrievers": {"vdb": vdb, "web": vdb},
        "evidence": ScriptedJudge(),
        "reranker": ReversingReranker(),
        "fetcher": ScriptedFetcher({}),
    }
    return SearchAgent(**(parts | options))


def told(**options: Any) -> str:
    text = agent(**options).system_message
    assert text is not None
    return text


def listed(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("tags", [None, {"search": "find", "answer": "final", "think": "reasoning", "fetch": "open"}])
def test_what_it_is_told_to_write_is_what_is_read(tags: dict[str, str] | None) -> None:
    made = agent(tags=tags)
    parse = made.planner.parse
    assert made.system_message is not None
    search, web, rerank, fetch, answer = [line.split(";")[0] for line in listed(made.system_message)]
    assert parse(search).action == SearchAction(queries=(Query(text="query"),))
    assert parse(web).action == SearchAction(queries=(Query(text="query", retriever="web"),))
    assert parse(rerank).action == SearchAction(queries=(Query(text="query", rerank=True),))
    several = made.system_message.partition("a line of its own:")[2].partition("Do not repeat")[0]
    assert parse(several).action == SearchAction(queries=(Query(text="first query"), Query(text="second query")))
    assert parse(fetch).action == FetchAction(urls=("URL",))
    assert parse(answer).action == AnswerAction(text="answer [R1Q1D1]")
    assert (
        parse(next(line for line in listed(made.system_message) if ";" in line).split(";")[1]).action == RerankAction()
    )
    example = parse(made.system_message.partition("For example:")[2])
    assert example.action == SearchAction(queries=(Query(text="founder of Acme"),))
    decided = re.search(r"then write (\S+) before the answer", made.system_message)
    assert decided is not None
    assert parse(decided[1]).decision == "answer"


def test_every_tag_in_it_has_the_name_that_it_was_given() -> None:
    names = {field.name: f"x-{field.name}" for field in fields(Tags)}
    written = set(re.findall(r"</?([A-Za-z_-]+)", told(tags=names)))
    assert written <= set(names.values())
    assert len(written) > 8


def test_nothing_is_offered_that_is_not_there() -> None:
    assert [("web" in told()), ("rerank" in told()), ("<fetch>" in told())] == [True] * 3
    bare = told(retrievers={"vdb": ScriptedRetriever({})}, reranker=None, fetcher=None, show_search_evaluation=False)
    assert not [word for word in ("web", "rerank", "fetch", "search_evaluation") if word in bare]
    assert len(listed(bare)) == 2


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("direct", [True, False])
async def test_what_it_says_of_answers_is_what_the_gate_does(gate: bool, direct: bool) -> None:
    rules = {"require_sufficient_evidence_before_answer": gate, "allow_internal_knowledge_answer": direct}
    text = told(**rules)
    offered = ["<search_decision>answer</search_decision><answer>Roka</answer>"]
    played = await play(*offered, *([] if direct or not gate else [HOP_1, ANSWER]), **rules)
    first = played.episode.metrics["answer_rejections"] == 0
    assert ("unless you are certain" in text) == direct
    assert ("is rejected while" in text) == gate
    assert first == (direct or not gate)


def test_a_template_without_a_system_role_has_it_before_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    made = agent()
    plain = renderer().decode(made.opening(builders.task()))
    monkeypatch.setattr(options, "takes_system", lambda _: False)
    assert plain == f"{made.system_message}\nQuestion: {builders.task().question}\n"
    assert renderer().decode(made.opening(builders.task())) == (
        f"{made.system_message}\n\nQuestion: {builders.task().question}\n"
    )


def test_the_limits_are_those_of_the_agent() -> None:
    assert "You have 7 turns and 3 queries." in told(max_turns=7, max_search_limit=3)
    assert "You have 5 turns and 5 queries." in told()


async def test_it_stands_before_the_question_and_one_line_does_for_a_policy_that_has_learned_it() -> None:
    made = agent()
    await made.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    [first, _] = made.engine.contexts  # type: ignore[attr-defined]
    assert first == f"{made.system_message}\nQuestion: {builders.task().question}\n"
    learned = await play(HOP_1, ANSWER)
    assert learned.engine.contexts[0] == PROMPT
    assert (agent(system_prompt=None).system_message, agent(system_prompt="Look.").system_message) == (None, "Look.")


def test_a_question_that_leaves_no_room_for_a_turn_is_refused_before_any_episode() -> None:
    task = builders.task()
    taken = len(agent().opening(task))
    agent(engine=ScriptedEngine([], max_context=taken + 1)).rehearse(task)
    with pytest.raises(ConfigError, match=rf"task {task.id} opens with {taken} tokens, and the engine holds {taken}: "):
        agent(engine=ScriptedEngine([], max_context=taken)).rehearse(task)
