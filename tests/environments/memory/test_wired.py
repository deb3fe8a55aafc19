"""What a run's builders make of the environment: one reader for the policy and the oracle, none that costs for
demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import main
from agentgrpo.config.build import build_node
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.scripted import ScriptedEngine as Script
from agentgrpo.environments.memory.environment import MemoryEnvironments
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.validity import NoValidity
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.judges.evidence.embedding import EmbeddingEvidence
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.records.screen import Screen
from agentgrpo.retrieval.rerank import LexicalReranker
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.assembly import refuse_unfit
from agentgrpo.run.build import Inputs, Run, _demonstrating, build_environment, load_inputs
from agentgrpo.run.settings import settings_of
from agentgrpo.training.process_group import Alone
from tests.builders import task
from tests.environments.memory.scripted import ScriptedReader, ScriptedValidity, tags
from tests.environments.scripted import ScriptedEngine, renderer
from tests.runners import memory_runner

CONFIGS = Path(__file__).parents[3] / "configs"
JOBS: list[dict[str, Any]] = []


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append(config)
    return VerbResult()


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(VERBS, "train", replace(VERBS["train"], entry=f"{__name__}:keep"))
    yield
    JOBS.clear()


def inputs_of(*overrides: str) -> Inputs:
    assert main(["train", "run.dir=r", *overrides]) == 0
    return load_inputs(settings_of(JOBS.pop()), "{}", Screen("quiet"), Alone())


def test_the_oracle_is_in_the_same_environment_and_loads_no_reader_of_its_own() -> None:
    dataset = build_node("task", yaml.safe_load((CONFIGS / "task/diary.yaml").read_text()))
    runner = memory_runner(
        engine=ScriptedEngine([]), renderer=tags(), reader=ScriptedReader(), validity=ScriptedValidity()
    )
    built: Any = SimpleNamespace(dataset=dataset, runner=runner, renderer=tags())
    oracle = Run.oracle(built)
    assert isinstance(oracle, PolicyRunner)
    assert isinstance(oracle.engine, Script)
    assert oracle.environment is runner.environment


@pytest.mark.slow
def test_demonstrations_are_read_and_judged_by_rules_that_cost_nothing() -> None:
    inputs = inputs_of(
        "experiment=none", "task=diary", "environment=memory_llm", "judge=questions", "reward=memory", "model.path=m"
    )
    runner = _demonstrating(inputs, ScriptedEngine([]), tags("three_part"), {})
    assert isinstance(runner, PolicyRunner)
    assert isinstance(runner.environment, MemoryEnvironments)
    assert (type(runner.environment.reader), type(runner.environment.validity)) == (ClozeReader, NoValidity)
    assert not runner.environment.describe_tools
    node = inputs.settings.environment.tree
    assert (node["reader"]["name"], node["validity"]["name"]) == ("completer", "llm")


@pytest.mark.slow
def test_demonstrations_of_searches_ask_no_reranker_that_is_a_service() -> None:
    inputs = inputs_of("+environment/reranker=http", "environment.reranker.url=http://127.0.0.1:1/rerank")
    runner = _demonstrating(inputs, ScriptedEngine([]), renderer(), inputs.dataset.corpora())
    assert isinstance(runner, PolicyRunner)
    assert isinstance(runner.environment, SearchEnvironments)
    assert isinstance(runner.environment.reranker, LexicalReranker)
    assert inputs.settings.environment.tree["reranker"]["name"] == "http"


@pytest.mark.slow
def test_evidence_is_named_by_itself_and_demonstrations_ask_no_model_for_theirs() -> None:
    inputs = inputs_of("evidence=llm")
    runner = _demonstrating(inputs, ScriptedEngine([]), renderer(), inputs.dataset.corpora())
    assert isinstance(runner, PolicyRunner)
    assert isinstance(runner.environment, SearchEnvironments)
    assert isinstance(runner.environment.evidence, LexicalEvidence)
    assert inputs.settings.environment.tree["evidence"]["name"] == "llm"
    free = _demonstrating(inputs_of("evidence=heuristic"), ScriptedEngine([]), renderer(), inputs.dataset.corpora())
    assert isinstance(free, PolicyRunner)
    assert isinstance(free.environment, SearchEnvironments)
    assert isinstance(free.environment.evidence, HeuristicEvidence)


async def test_evidence_by_an_embedder_knows_the_tasks_corpus() -> None:
    hashing = ("~environment.evidence.embedder", "+environment.evidence.embedder={name:hashing}")
    inputs = inputs_of("evidence=embedding", *hashing, "environment.evidence.slope=9.0")
    equipment = inputs.equipment.for_environment
    environment = build_environment(inputs, renderer(), equipment, describes=False)
    assert isinstance(environment, SearchEnvironments)
    judge = environment.evidence
    assert isinstance(judge, EmbeddingEvidence)
    await environment.probe()
    assert judge._alike.curve[1] == 9.0
    fact = next(p for p in inputs.dataset.corpora()["vdb"] if p.id.startswith("born-"))
    who = fact.text.split()[0]
    graded = [await judge.judge_round(task(question=f"Where was {name} born?"), [], [fact]) for name in (who, "Nobody")]
    assert [g.sufficient for g in graded] == [True, False]


def test_gold_evidence_is_for_evaluation_alone() -> None:
    with pytest.raises(ConfigError, match=r"environment\.evidence\.name=gold knows .* train with evidence=lexical"):
        refuse_unfit(inputs_of("evidence=gold").settings)
    refuse_unfit(inputs_of("evidence=lexical").settings)
    refuse_unfit(inputs_of("experiment=tools").settings)
