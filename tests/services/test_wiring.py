"""Which parts are metered, and what a configuration says of it: old ones, resumed ones, wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir, main
from agentgrpo.config.build import PartNode
from agentgrpo.config.registry import REGISTRY
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.judges.llm.completer import CompleterService
from agentgrpo.retrieval.services import FetcherService, RerankerService, RetrieverService
from agentgrpo.run.drift import refuse_drift
from agentgrpo.run.equipment import Equipment, build_part
from agentgrpo.run.services import IN_PROCESS, METERED_TOOLS
from agentgrpo.services.budget import KINDS
from agentgrpo.services.meter import Meter
from tests.services.stand_ins import meter

CORPORA = {"vdb": [Passage(id="v1", text="Velmor was founded by Castin.")]}
URL = "http://127.0.0.1:9/x"


def equipment(m: Meter, retriever: dict[str, Any]) -> Equipment:
    config = {"task": {"name": "t"}, "environment": {"name": "search"}, "retriever": retriever, "tools": {}}
    return Equipment(config, CORPORA, m)


def kind_of(part: Any) -> str:
    return f"{type(part).__name__} {getattr(part, '_kind', '')}".strip()


def test_retrievers_of_services_are_metered_once_and_embedded_ones_are_not(tmp_path: Path) -> None:
    web = {"name": "searxng", "base_url": URL}
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"name": "embedded"}, {"vdb": "Batched"}),
        ({"name": "embedded", "web": web}, {"vdb": "Batched", "web": "RetrieverService web"}),
        ({"name": "http", "url": URL}, {"vdb": "RetrieverService vdb"}),
        ({"name": "http", "url": URL, "web": web}, {"vdb": "RetrieverService vdb", "web": "RetrieverService web"}),
        ({"name": "http", "url": URL, "web_url": URL}, {"vdb": "RetrieverService vdb", "web": "RetrieverService web"}),
    ]
    for node, expected in cases:
        m = meter(tmp_path)
        found = equipment(m, node).retrievers
        assert {name: kind_of(part) for name, part in found.items()} == expected
        assert not any(isinstance(getattr(part, "_part", None), RetrieverService) for part in found.values())
        assert m.in_use == any("Service" in kind for kind in expected.values())
    over = equipment(meter(tmp_path), {"name": "http", "url": URL}).over(CORPORA)
    assert {name: kind_of(part) for name, part in over["retrievers"].items()} == {"vdb": "Batched"}


def test_parts_of_environments_and_judges_are_metered_for_whom_they_work(tmp_path: Path) -> None:
    m = meter(tmp_path)
    assert isinstance(build_part(PartNode("reranker", {"name": "http", "url": URL}), m), RerankerService)
    assert isinstance(build_part(PartNode("fetcher", {"name": "http", "url": URL}), m), FetcherService)
    assert build_part(PartNode("fetcher", {"name": "none"}), m) is None
    assert kind_of(build_part(PartNode("reranker", {"name": "lexical"}), m, thesaurus={})) == "LexicalReranker"
    judge = {"name": "llm", "completer": {"name": "http", "base_url": URL}}
    plain, unmetered = (build_part(PartNode("judge", judge), of)._completer for of in (m, None))
    nested = build_part(PartNode("judge", {"name": "composite", "parts": {"a": {"judge": judge, "weight": 1.0}}}), m)
    assert [kind_of(part) for part in (plain, nested.judges[0]._completer, unmetered)] == [
        "CompleterService judge",
        "CompleterService judge",
        "HttpCompleter",
    ]
    completer = {"completer": {"name": "http", "base_url": URL}}
    reader = build_part(PartNode("reader", {"name": "completer", **completer}), m)
    validity = build_part(PartNode("validity", {"name": "llm", **completer}), m)
    assert [kind_of(part._model._completer) for part in (reader, validity)] == [
        "CompleterService reader",
        "CompleterService validity",
    ]
    assert isinstance(plain, CompleterService)


def test_tools_that_ask_services_are_metered_also_in_demonstrations(tmp_path: Path) -> None:
    m = meter(tmp_path)
    config: dict[str, Any] = {
        "task": {"name": "t"},
        "environment": {"name": "tools"},
        "retriever": {"name": "embedded"},
        "tools": {"calculator": {}, "read": {"name": "fetch", "max_chars": 9}},
    }
    found = Equipment(config, CORPORA, m)
    for tools in (found.for_environment["tools"], found.over(CORPORA)["tools"]):
        assert {name: kind_of(tool) for name, tool in tools.items()} == {
            "calculator": "Calculator",
            "fetch": "ToolService fetch",
        }
    assert m.in_use
    assert set(REGISTRY["tool"]) & set(KINDS) >= METERED_TOOLS


def test_names_that_are_in_process_are_registered() -> None:
    """Whoever renames one of them must not have it metered, nor a service go free."""
    assert [
        (kind, names - set(REGISTRY[kind])) for kind, names in IN_PROCESS.items() if names - set(REGISTRY[kind])
    ] == []


def test_vectors_of_memory_and_of_evidence_are_not_asked_of_a_service_past_cassette_and_budget(tmp_path: Path) -> None:
    node = {"name": "embedding", "embedder": {"name": "openai", "url": URL, "model": "m", "api_key_env": None}}
    for strict in (meter(tmp_path, "fill"), meter(tmp_path, run={"money": 1.0}), meter(tmp_path, prices={"web": 1.0})):
        with pytest.raises(ConfigError, match=r"embedder\.name=openai asks a service that is neither recorded nor"):
            build_part(PartNode("memory_search", node), strict)
        with pytest.raises(ConfigError, match=r"embedder\.name=openai asks a service that is neither recorded nor"):
            build_part(PartNode("evidence", node), strict)
    build_part(PartNode("memory_search", {**node, "embedder": {**node["embedder"], "dimensions": 8}}), meter(tmp_path))
    index = {"name": "faiss_index", "path": "wiki", "embedder": node["embedder"]}
    assert isinstance(build_part(PartNode("retriever", index), meter(tmp_path, "fill"))["vdb"], RetrieverService)


def test_a_strict_replay_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    completer = {"name": "http", "base_url": URL, "api_key_env": "NO_SUCH_KEY"}
    (tmp_path / "tape").touch()
    build_part(PartNode("completer", completer), meter(tmp_path, "strict"))
    for mode in ("live", "fill"):
        with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
            build_part(PartNode("completer", completer), meter(tmp_path, mode))


# --- configurations


JOBS: list[dict[str, Any]] = []


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append(config)
    return VerbResult()


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run from before there was a meter."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "resume", "eval"):
        monkeypatch.setitem(VERBS, name, replace(VERBS[name], entry="tests.services.test_wiring:keep"))
    JOBS.clear()
    assert main(["train", "run.dir=old"]) == 0
    config = JOBS.pop()
    run = {key: value for key, value in config.items() if key not in ("cassette", "budget")}
    (tmp_path / "old" / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "old" / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(run))))
    return tmp_path / "old"


def test_an_old_run_resumes_and_is_evaluated_without_a_budget(old_run: Path) -> None:
    defaults = {
        group: yaml.safe_load((configs_dir() / group / f"{name}.yaml").read_text())
        for group, name in {"cassette": "live", "budget": "none"}.items()
    }
    assert main(["resume", str(old_run)]) == 0
    assert main(["eval", "--ckpt", str(old_run / "checkpoints" / "step-000001"), "run.dir=e"]) == 0
    assert [{group: config[group] for group in defaults} for config in JOBS] == [defaults, defaults]
    assert main(["resume", str(old_run), "budget.per_run.money=10", "budget.per_run.calls.web=5"]) == 0
    assert (JOBS[-1]["budget"]["per_run"]["money"], JOBS[-1]["budget"]["per_run"]["calls"]["web"]) == (10, 5)


def fixed(**groups: Any) -> dict[str, Any]:
    return {"config": {"run": {"seed": 0}, **groups}, "fingerprints": {}, "versions": {}}


def test_limits_of_run_and_step_may_be_raised_and_what_results_depend_on_may_not() -> None:
    none = yaml.safe_load((configs_dir() / "budget" / "none.yaml").read_text())
    raised = {**none, "per_run": {**none["per_run"], "money": 10}, "per_step": {**none["per_step"], "seconds": 9}}
    assert refuse_drift(fixed(budget=none), fixed(budget=raised)) == [
        "budget.per_run.money was None, is now 10",
        "budget.per_step.seconds was None, is now 9",
    ]
    assert refuse_drift(fixed(cassette={"mode": "fill"}), fixed(cassette={"mode": "strict"})) == [
        "cassette.mode was 'fill', is now 'strict'"
    ]
    assert refuse_drift(fixed(), fixed(budget=none)) == []
    for key, value in (("prices", {**none["prices"], "web": 1.0}), ("per_episode", {"money": 1.0})):
        for before in (fixed(), fixed(budget=none)):
            with pytest.raises(CheckpointError, match=rf"budget\.{key}\.\w+ was .*, is now 1\.0"):
                refuse_drift(before, fixed(budget={**none, key: value}))
