"""Who does not answer earns nothing, under any preset of the search environment: not by silence, white space or an
echo, for which the environment searches by itself, and not by searching for everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.config.compose import read_preset
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.runners import search_runner

CONFIGS = Path(__file__).parents[2] / "configs"
SAMPLING = SamplingParams(max_tokens=200)
OTHERS = {"environment", "mem_alpha", "memory", "personamem"}
"""Presets of other environments."""
PRESETS = sorted({path.stem for path in (CONFIGS / "reward").glob("*.yaml")} - OTHERS)
IDLE: dict[str, Callable[[Task, int], str]] = {
    "nothing": lambda task, turn: "",
    "white space": lambda task, turn: "  \n ",
    "echo": lambda task, turn: task.question,
    "everything": lambda task, turn: (
        f'<search retriever="{("vdb", "web")[turn % 2]}" rerank="true"> {task.question} {turn}</search>'
    ),
}


@pytest.fixture(scope="module")
def episodes() -> dict[str, list[Episode]]:
    world = Almanac(num_companies=2, dev_companies=1, test_companies=10)
    tasks = {task.id: task for task in world.split("test")[:10]}
    renderer = PlainRenderer(tokenizer=train_tokenizer([t.question for t in tasks.values()], vocab_size=500))
    evidence = LexicalEvidence(corpora=world.corpora(), thesaurus=world.thesaurus())
    found = {}
    for name, says in IDLE.items():
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
    for name, played in episodes.items():
        automatic = {e.metrics["automatic_searches"] for e in played}
        assert automatic == ({0.0} if name == "everything" else {1.0})
        assert any(e.metrics["final_evidence_sufficient"] for e in played)
        assert all(e.exit is not Exit.ANSWERED and not e.answer for e in played)
        assert (sum(e.metrics["evidence_gain_total"] for e in played) > 0) == (name == "everything")


@pytest.mark.parametrize("preset", PRESETS)
async def test_none_is_above_0(preset: str, episodes: dict[str, list[Episode]]) -> None:
    reward = build_node("reward", read_preset(CONFIGS, "reward", preset), judge=ExactMatch())
    for name, played in episodes.items():
        for episode in played:
            [result] = (await reward.score(EpisodeGroup(task=episode.task, episodes=(episode,)))).rewards
            assert result.total <= 0, (name, result.terms)
            assert sum(result.turns) <= 0
