"""counterfactual=...: over a run's own settings, around every retriever that the policy searches, and in the drift."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import main
from agentgrpo.config.build import build_node
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.run.drift import refuse_drift
from agentgrpo.run.equipment import Equipment
from tests import builders

CORPORA = {name: [Passage(id=f"{name}1", text=f"Velmor was founded by {name}.")] for name in ("vdb", "web")}
TASKS = [builders.task("who?", "Castin"), builders.task("where?", "Roka")]
JOBS: list[tuple[str, dict[str, Any]]] = []


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append((command.snapshot, config))
    return VerbResult()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run of other settings than the default."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "resume", "eval"):
        monkeypatch.setitem(VERBS, name, replace(VERBS[name], entry="tests.test_counterfactual:keep"))
    JOBS.clear()
    assert main(["train", "run.dir=run", "environment.top_k=7", "reward=shaped"]) == 0
    snapshot, _ = JOBS.pop()
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(snapshot)
    return tmp_path / "run"


def evaluated(*overrides: str, code: int = 0) -> dict[str, Any]:
    assert main(["eval", "--ckpt", "run/checkpoints/step-000001", "run.dir=out", *overrides]) == code
    return JOBS.pop()[1]


def of_run(config: dict[str, Any]) -> tuple[str, int, bool]:
    """The counterfactual, and two settings of the run."""
    return (
        config["counterfactual"]["name"],
        config["environment"]["top_k"],
        "retriever_cost" in config["reward"]["terms"],
    )


@pytest.mark.slow
def test_a_run_is_evaluated_with_one_and_is_otherwise_what_it_was(run: Path) -> None:
    assert of_run(evaluated()) == ("none", 7, False)
    assert of_run(evaluated("counterfactual=swapped")) == ("swapped", 7, False)
    assert of_run(evaluated("counterfactual=blank", "environment.top_k=3")) == ("blank", 3, False)
    assert of_run(evaluated("counterfactual=blank", "reward=retriever_aware")) == ("blank", 7, True)


@pytest.mark.slow
def test_a_run_that_was_trained_with_one_is_evaluated_with_it(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "counterfactual": {"name": "blank"}}))
    assert of_run(evaluated()) == ("blank", 7, False)
    assert of_run(evaluated("counterfactual=none")) == ("none", 7, False)


def test_a_run_from_before_there_were_any(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["counterfactual"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert of_run(evaluated("counterfactual=shuffled")) == ("shuffled", 7, False)
    assert main(["resume", "run"]) == 0
    assert of_run(JOBS.pop()[1]) == ("none", 7, False)


def test_what_is_no_preset_and_what_resumes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--ckpt", "run/checkpoints/step-000001", "counterfactual=blanc"]) == 2
    assert "presets are blank, none, shuffled, swapped" in capsys.readouterr().err
    assert main(["resume", "run", "counterfactual=blank"]) == 2
    assert "a resumed run keeps its presets" in capsys.readouterr().err


# --- what searches


def config(environment: str = "search", name: str = "blank", **more: Any) -> dict[str, Any]:
    return {
        "task": {"name": "almanac"},
        "environment": {"name": environment},
        "retriever": {"name": "embedded"},
        "tools": {},
        "counterfactual": {"name": name},
        **more,
    }


def equipment(given: dict[str, Any]) -> Equipment:
    counterfactual = build_node("counterfactual", given["counterfactual"], tasks=TASKS)
    return Equipment(given, CORPORA, counterfactual=counterfactual)


def texts(injected: Any, query: str = "Velmor founded by") -> dict[str, list[str]]:
    found = {name: asyncio.run(r.search(query, top_k=1)) for name, r in injected["retrievers"].items()}
    return {name: [p.text for p in passages] for name, passages in found.items()}


def test_every_retriever_is_behind_it_but_demonstrations_are_not() -> None:
    made = equipment(config())
    assert texts(made.for_environment) == {"vdb": [""], "web": [""]}
    assert texts(made.over(CORPORA)) == {name: [CORPORA[name][0].text] for name in CORPORA}
    assert texts(equipment(config(name="none")).for_environment) == texts(made.over(CORPORA))
    assert made.closing == tuple(made.retrievers.values())


def test_tools_search_behind_it_too() -> None:
    made = equipment(config("tools", tools={"search": {}}))
    [tool] = made.for_environment["tools"].values()
    assert [*tool._retrievers.values()] == [*made.retrievers.values()]


def test_the_fingerprint_differs() -> None:
    found = [equipment(config(name=name)).fingerprints for name in ("none", "blank", "swapped")]
    assert found == [{}, {"counterfactual": "{'name': 'blank'}"}, {"counterfactual": "{'name': 'swapped'}"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config("tools"), "counterfactual=blank, and nothing searches here; use counterfactual=none"),
        (
            config("search") | {"environment": {"name": "search", "fetcher": {"name": "pages"}}},
            "pages would show what it withholds; add environment.fetcher.name=none",
        ),
    ],
)
def test_where_it_would_change_nothing_or_not_enough(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        equipment(given)


def test_a_run_does_not_go_on_with_another_one() -> None:
    def state(**config: Any) -> dict[str, Any]:
        return {"config": config, "fingerprints": {}, "versions": {}}

    none, blank = {"counterfactual": {"name": "none"}}, {"counterfactual": {"name": "blank"}}
    assert refuse_drift(state(), state(**none)) == []
    for before, now in ((state(), state(**blank)), (state(**none), state(**blank)), (state(**blank), state(**none))):
        with pytest.raises(CheckpointError, match=r"counterfactual\.name was"):
            refuse_drift(before, now)
