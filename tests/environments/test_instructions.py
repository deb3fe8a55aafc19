"""What a policy is told that has not learned to search: it must be so, under whatever names and limits."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search import instructions, options
from agentgrpo.environments.search import observations as say
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.environments.search.grammar import AnswerAction, FetchAction, Query, RerankAction, SearchAction, Tags
from agentgrpo.environments.search.instructions import examples_for
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.environments.scripted import (
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
from tests.renderers.families import renderer as chat_renderer
from tests.renderers.families import tokenizer as chat_tokenizer
from tests.runners import search_runner


def runner(**options: Any) -> PolicyRunner:
    vdb = ScriptedRetriever(ROWS)
    parts: dict[str, Any] = {
        "engine": ScriptedEngine([HOP_1, ANSWER]),
        "renderer": renderer(),
        "retrievers": {"vdb": vdb, "web": vdb},
        "evidence": ScriptedJudge(),
        "reranker": ReversingReranker(),
        "fetcher": ScriptedFetcher({}),
    }
    return search_runner(**(parts | options))


def made_of(runner: PolicyRunner) -> SearchEnvironments:
    assert isinstance(runner.environment, SearchEnvironments)
    return runner.environment


def environment(**options: Any) -> SearchEnvironments:
    return made_of(runner(**options))


def opening(made: SearchEnvironments) -> tuple[int, ...]:
    """As the loop opens a context with it."""
    return tuple(renderer().open(made.opening(builders.task())))


def told(**options: Any) -> str:
    text = environment(**options).system_message
    assert text is not None
    return text


def listed(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("tags", [None, {"search": "find", "answer": "final", "think": "reasoning", "fetch": "open"}])
def test_what_it_is_told_to_write_is_what_is_read(tags: dict[str, str] | None) -> None:
    made = environment(tags=tags)
    parse = made.planner.parse
    assert made.system_message is not None
    search, web, rerank, fetch, answer = [line.split(";")[0] for line in listed(made.system_message)]
    assert parse(search).action == SearchAction(queries=(Query(text="query"),))
    assert parse(web).action == SearchAction(queries=(Query(text="query", retriever="web"),))
    assert parse(rerank).action == SearchAction(queries=(Query(text="query", rerank=True),))
    several, _, plan = made.system_message.partition("a line of its own:")[2].partition("A question of several parts")
    assert parse(plan.partition("Do not repeat")[0]).subquestions == (("T1", "first part"), ("T2", "second part"))
    assert parse(several).action == SearchAction(queries=(Query(text="first query"), Query(text="second query")))
    assert parse(fetch).action == FetchAction(urls=("URL",))
    assert parse(answer).action == AnswerAction(text="answer [R1Q1D1]")
    assert (
        parse(next(line for line in listed(made.system_message) if ";" in line).split(";")[1]).action == RerankAction()
    )
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
    made = environment(examples=False)
    monkeypatch.setattr(options, "takes_system", lambda _: False)
    assert renderer().decode(opening(made)) == (f"{made.system_message}\n\nQuestion: {builders.task().question}\n")


def test_the_limits_are_its_own() -> None:
    assert "You have 7 turns and 3 queries." in told(max_turns=7, max_search_limit=3)
    assert "You have 5 turns and 5 queries." in told()


async def test_it_stands_before_the_question_and_one_line_does_for_a_policy_that_has_learned_it() -> None:
    made = runner()
    await made.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    [first, _] = made.engine.contexts  # type: ignore[attr-defined]
    examples = [m.content for m in examples_for(Tags(), evaluates=True, in_turns=False)]
    assert first == "\n".join([f"{made_of(made).system_message}", *examples, f"Question: {builders.task().question}\n"])
    learned = await play(HOP_1, ANSWER)
    assert learned.engine.contexts[0] == PROMPT
    assert [environment(system_prompt=text).system_message for text in (None, "Look.")] == [None, "Look."]


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("example", instructions.EXAMPLES)
async def test_an_example_is_what_the_environment_makes_of_its_turns(
    example: instructions.ExampleEpisode, evaluates: bool, in_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instructions, "EXAMPLES", (example,))
    asked, *said = examples_for(Tags(), evaluates=evaluates, in_turns=in_turns)
    found = [pair for queries in example.rounds for pair in queries]
    spoken = examples_for(Tags(), evaluates=evaluates, in_turns=True)
    policy = [message.content for message in spoken if message.role == "assistant"]
    played = await play(
        *policy,
        question=example.question,
        vdb={query: [Passage(id=text, text=text) for text in texts] for query, texts in found},
        verdicts=[(True, 0.5)] * len(example.rounds),
        show_search_evaluation=evaluates,
    )
    assert asked.content == f"Question: {example.question}"
    assert played.episode.answer == example.answer.partition(" [")[0]
    assert len(played.episode.citations) == len(found) - len(example.rounds) + 1
    assert played.episode.metrics["active_subquestions"] == len(example.plan)
    assert played.episode.metrics["subquestion_coverage_ratio"] == 1.0
    turns = [s.text.strip() for s in played.episode.branches[0].segments[1:]]
    assert [m.content for m in said] == (turns if in_turns else ["\n".join(turns)])
    roles = [("user" if i % 2 else "assistant") for i in range(len(turns))] if in_turns else ["assistant"]
    assert [m.role for m in said] == roles


def test_examples_have_the_names_of_the_tags_and_none_is_shown_to_whom_is_told_nothing() -> None:
    names = {field.name: f"x-{field.name}" for field in fields(Tags)}
    shown = "".join(m.content for m in examples_for(Tags.named(names), evaluates=True, in_turns=True))
    assert set(re.findall(r"</?([A-Za-z_-]+)", shown)) <= set(names.values())
    asked = instructions.EXAMPLES[0].question
    unlike: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"examples": False}, False),
        ({"describe_tools": False}, False),
        ({"system_prompt": "Look."}, False),
        ({"system_prompt": None}, False),
    ]
    for changes, is_shown in unlike:
        assert (asked in renderer().decode(opening(environment(**changes)))) == is_shown, changes


@pytest.mark.parametrize("tags", [None, {"search": "find", "answer": "final"}])
async def test_what_is_asked_for_is_spelled_out_for_a_policy_that_has_not_learned_it(
    tags: dict[str, str] | None,
) -> None:
    """And what is spelled out is parsed as just that."""
    known = Tags.named(tags or {})
    search, answer = f"<{known.search}>query</{known.search}>", f"<{known.answer}>answer</{known.answer}>"
    asks = {
        say.NO_ACTION: [search, answer],
        **{sentence: [search] for sentence in (say.SEARCH_NOW, say.SEARCH_FIRST, say.INSUFFICIENT)},
        **{sentence: [answer] for sentence in (say.ANSWER_NOW, say.PLATEAU, say.LAST_CHANCE)},
    }
    for sentence, forms in asks.items():
        assert environment(tags=tags).spelled(sentence) == f"{sentence} Write {' or '.join(forms)}."
        assert environment(tags=tags, describe_tools=False).spelled(sentence) == sentence
    assert environment(tags=tags).spelled(say.NO_FETCHER) == say.NO_FETCHER
    parse = environment(tags=tags).planner.parse
    assert parse(search).action == SearchAction(queries=(Query(text="query"),))
    assert parse(answer).action == AnswerAction(text="answer")
    for told, feedback in ((True, environment(tags=tags).spelled(say.NO_ACTION)), (False, say.NO_ACTION)):
        played = await play(
            "Hm.", search, answer, describe_tools=told, tags=tags, vdb={"query": [Passage(id="a", text="b")]}
        )
        assert played.told[0].splitlines()[2] == feedback


async def test_in_the_turns_of_a_chat_model_what_is_found_is_a_users_message() -> None:
    """One that the template would have written, too."""
    speaks = chat_renderer("chatml")
    engine = ScriptedEngine([HOP_1, f"{ANSWER}<|im_end|>"], speaks=speaks)
    made = runner(renderer=speaks, engine=engine, examples=False)
    episode = await made.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=500))
    opening, first, found, answer = [s.text for s in episode.branches[0].segments]
    told = found.removeprefix("<|im_end|>\n<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    assert told.startswith("<information>")
    assert told.endswith("</search_evaluation>")
    turns = [
        {"role": "system", "content": made_of(made).system_message},
        {"role": "user", "content": f"Question: {builders.task().question}"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": told},
        {"role": "assistant", "content": ANSWER},
    ]
    rendered = chat_tokenizer("chatml").apply_chat_template(turns, tokenize=False)
    assert opening + first + found + answer == str(rendered).removesuffix("\n")


def test_a_question_that_leaves_no_room_for_a_turn_is_refused_before_any_episode() -> None:
    task = builders.task()
    taken = len(opening(environment()))
    runner(engine=ScriptedEngine([], max_context=taken + 1)).rehearse(task)
    with pytest.raises(ConfigError, match=rf"task {task.id} opens with {taken} tokens, and the engine holds {taken}: "):
        runner(engine=ScriptedEngine([], max_context=taken)).rehearse(task)
