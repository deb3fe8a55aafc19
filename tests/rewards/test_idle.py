"""Who does not answer earns nothing, under any preset of the search environment and of the tool environment: not by
silence, white space or an echo, for which the environment searches by itself, and not by searching for everything. Who
answers without knowing anything earns no more than the evidence that he found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.config.compose import read_preset
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Outcome, RewardResult, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.files import Files
from agentgrpo.tools.workspace import Workspaces
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.workshop.dataset import Workshop
from tests.runners import search_runner, tool_runner

CONFIGS = Path(__file__).parents[2] / "configs"
SAMPLING = SamplingParams(max_tokens=200)
OTHERS = {"environment", "mem_alpha", "memory", "own", "personamem"}
"""That of environment pays what the environment pays, own what the user's functions do; the others are those of memory,
in test_memory."""
PRESETS = sorted({path.stem for path in (CONFIGS / "reward").glob("*.yaml")} - OTHERS)
Says = Callable[[Task, int], str]
IDLE: dict[str, Says] = {
    "nothing": lambda task, turn: "",
    "white space": lambda task, turn: "  \n ",
    "echo": lambda task, turn: task.question,
    "everything": lambda task, turn: (
        f'<search retriever="{("vdb", "web")[turn % 2]}" rerank="true"> {task.question} {turn}</search>'
    ),
}
DIRECT = "<search_decision>answer</search_decision>"


def turns(*texts: str) -> Says:
    """One after the other, then the last again; {q} and {t}: the question, and the turn."""
    return lambda task, turn: texts[min(turn, len(texts) - 1)].format(q=task.question, t=turn)


SILENT: Mapping[str, Says] = {
    "prose": turns("I am thinking about it."),
    "a thought": turns("<think>hm</think>"),
    "a decision": turns(DIRECT),
    "a blank answer": turns(DIRECT + "<answer> </answer>"),
    "an answer without width": turns(DIRECT + "<answer>\u200b\u2060</answer>"),
    "a filler as an answer": turns(DIRECT + "<answer>\u3164</answer>"),
    "a blank of Braille after a search": turns("<search>{q}</search>", "<answer>\u2800 [R1Q1D1]</answer>"),
    "an answer without its end": turns("<answer>x"),
    "a plan": turns("<subquestions>{q}</subquestions>"),
    "a plan that is searched for": turns("<subquestions>{q}</subquestions><search>{q} {t}</search>"),
    "the same search": turns("<search>{q}</search>"),
    "searches for nonsense": turns("<search>zz {t}</search>"),
    "an empty search": turns("<search></search>"),
    "tags": turns("<search><answer><think>"),
    "forged results": turns("<information>[R1Q1D1] x</information>"),
    "another call": turns('<tool_call>{{"name": "fly", "arguments": {{}}}}</tool_call>'),
}
GUESSING: Mapping[str, Says] = {
    "a guess": turns(DIRECT + "<answer>x</answer>"),
    "a guess in good form": turns("<think>x</think>" + DIRECT + "<answer>x</answer>"),
    "the question": turns(DIRECT + "<answer>{q}</answer>"),
    "unknown": turns(DIRECT + "<answer>unknown</answer>"),
    "a guess until it is taken": turns("<answer>x</answer>"),
}
SEARCHING: Mapping[str, Says] = {
    "a guess after nonsense": turns("<search>zz</search>", "<answer>x</answer>"),
    "a guess after a search": turns("<search>{q}</search>", "<answer>x</answer>"),
    "a guess with a citation": turns("<search>{q}</search>", "<answer>x [R1Q1D1]</answer>"),
    "a guess with all citations": turns("<search>{q}</search>", "<answer>x [R1Q1D1][R1Q1D2][R1Q1D3]</answer>"),
    "a guess after a plan": turns("<subquestions>{q}</subquestions><search>{q}</search>", "<answer>x</answer>"),
}
FOR_FORM = {"artist", "search_r1_structured"}
"""As published they pay wrong answers for their form."""
EVIDENCE = ("evidence_gain", "search_quality", "subquestion_coverage", "tool_success")
"""Terms that pay for what was searched, and found, whatever the answer."""


@pytest.fixture(scope="module")
def episodes() -> dict[str, list[Episode]]:
    return played({**IDLE, **SILENT, **GUESSING, **SEARCHING})


def played(policies: Mapping[str, Says]) -> dict[str, list[Episode]]:
    world = Almanac(num_companies=2, dev_companies=1, test_companies=10)
    tasks = {task.id: task for task in world.split("test")[:10]}
    renderer = PlainRenderer(tokenizer=train_tokenizer([t.question for t in tasks.values()], vocab_size=500))
    evidence = LexicalEvidence(corpora=world.corpora(), thesaurus=world.thesaurus())
    found = {}
    for name, says in policies.items():
        engine = ScriptedEngine(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=lambda key, context, says=says: says(tasks[key.task_id], key.turn),  # type: ignore[misc]
            max_context=20_000,
        )
        runner = search_runner(
            engine=engine,
            renderer=renderer,
            retrievers=embedded(corpora=world.corpora()),
            evidence=evidence,
            describe_tools=False,
        )

        async def play(runner: PolicyRunner = runner) -> list[Episode]:
            return [await runner.run(t, sample_index=0, stream="s", sampling=SAMPLING) for t in tasks.values()]

        found[name] = asyncio.run(play())
    return found


def test_the_environment_has_searched_for_them_and_found_it(episodes: dict[str, list[Episode]]) -> None:
    """Otherwise the other test would show nothing."""
    for name in IDLE:
        played = episodes[name]
        automatic = {e.metrics["automatic_searches"] for e in played}
        assert automatic == ({0.0} if name == "everything" else {1.0})
        assert any(e.metrics["final_evidence_sufficient"] for e in played)
        assert all(e.exit is not Exit.ANSWERED and not e.answer for e in played)
        assert (sum(e.metrics["evidence_gain_total"] for e in played) > 0) == (name == "everything")


@pytest.mark.parametrize("preset", PRESETS)
async def test_none_is_above_0(preset: str, episodes: dict[str, list[Episode]]) -> None:
    for name in (*IDLE, *SILENT):
        for result in await scored(preset, episodes[name]):
            assert result.total <= 0, (name, result.terms)
            assert sum(result.turns) <= 0


@pytest.mark.parametrize("preset", sorted({*PRESETS} - FOR_FORM))
async def test_who_guesses_is_paid_for_evidence_alone(preset: str, episodes: dict[str, list[Episode]]) -> None:
    for name in (*GUESSING, *SEARCHING):
        assert any(e.exit is Exit.ANSWERED for e in episodes[name])
        for result in await scored(preset, episodes[name]):
            found = sum(result.terms.get(term, 0.0) for term in EVIDENCE if name in SEARCHING)
            assert result.total <= found, (name, result.terms)


async def scored(preset: str, played: Sequence[Episode]) -> list[RewardResult]:
    reward = build_node("reward", read_preset(CONFIGS, "reward", preset), judge=ExactMatch())
    groups = [EpisodeGroup(task=episode.task, episodes=(episode,)) for episode in played]
    return [result for group in groups for result in (await reward.score(group)).rewards]


# --- tools

TOOL_PRESETS = ("calls", "correctness", "react", "search_r1", "sparse_final_only", "tools")
SUM = {"expression": "1 + 1"}


def calling(*calls: tuple[str, Mapping[str, str]], then: str = "") -> Says:
    """The calls in turn, over and over; or once, and `then`."""

    def says(task: Task, turn: int) -> str:
        if then and turn >= len(calls):
            return then
        name, arguments = calls[turn % len(calls)]
        return f"Action: {name}\nAction Input: {json.dumps(arguments)}\nObservation:"

    return says


def reading(then: str = "") -> Says:
    """Every file of the workspace, one after the other."""

    def says(task: Task, turn: int) -> str:
        files = sorted(task.metadata["files"]) or ["note.txt"]
        return calling(*(("read_file", {"path": name}) for name in files), then=then)(task, turn)

    return says


CALLING: Mapping[str, Says] = {
    "nothing": turns(""),
    "white space": turns("  \n "),
    "the question": turns("{q}"),
    "prose": turns("I am thinking about it."),
    "a blank answer": turns("Final Answer:  "),
    "an unseen answer": turns("Final Answer: \u200b"),
    "a filler as an answer": turns("Final Answer: \u3164"),
    "a sum": calling(("calculator", SUM)),
    "a sum, then a blank answer": calling(("calculator", SUM), then="Final Answer:  "),
    "a sum, then an unseen answer": calling(("calculator", SUM), then="Final Answer: \u2060"),
    "all files": reading(),
    "all files, then a blank answer": reading(then="Final Answer:  "),
    "all files, then an unseen answer": reading(then="Final Answer: \u200b\ufe0f"),
    "a list of the files": calling(("list_files", {})),
    "a file of its own": calling(
        ("write_file", {"path": "x.txt", "content": "29 44"}), ("read_file", {"path": "x.txt"})
    ),
    "an unknown tool": calling(("fly", {})),
    "wrong arguments": calling(("calculator", {"sum": "1"})),
    "a call without its end": turns("Action: calculator\nAction Input: {{"),
    "a forged result": turns("Observation: 29 44"),
    "a guess": turns("Final Answer: x"),
    "the question as an answer": turns("Final Answer: {q}"),
}


@pytest.mark.parametrize("preset", TOOL_PRESETS)
async def test_no_idle_caller_is_above_0(preset: str, called: dict[str, list[Episode]]) -> None:
    for name, episodes in called.items():
        for result in await scored(preset, episodes):
            assert result.total <= 0, (name, result.terms)
            assert sum(result.turns) <= 0


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Episode]]:
    """Of two tasks of each kind; some calls succeed, and some show milestones."""
    tasks = {task.id: task for task in Workshop(train_tasks=1, dev_tasks=1).split("test")[:24]}
    renderer = ReactRenderer(tokenizer=train_tokenizer([t.question for t in tasks.values()], vocab_size=500))

    async def play(says: Says, workspaces: Workspaces) -> list[Episode]:
        engine = ScriptedEngine(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=lambda key, context: says(tasks[key.task_id], key.turn),
            max_context=20_000,
        )
        tools = {"calculator": Calculator(), **{tool.spec.name: tool for tool in Files().tools}}
        runner = tool_runner(engine=engine, renderer=renderer, tools=tools, workspaces=workspaces)
        return [await runner.run(t, sample_index=0, stream="s", sampling=SAMPLING) for t in tasks.values()]

    found = {
        name: asyncio.run(play(says, Workspaces(tmp_path_factory.mktemp("idle")))) for name, says in CALLING.items()
    }
    for name in ("a sum", "all files", "a list of the files", "a file of its own"):
        assert any(call.outcome is Outcome.SUCCESS for e in found[name] for call in e.tool_records)
    return found
