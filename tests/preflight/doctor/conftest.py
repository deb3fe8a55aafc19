"""A toy run for the doctor: a random model in a folder, questions in a file, and presets of parts with faults."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import main
from agentgrpo.config import registry
from agentgrpo.preflight.doctor import examination
from tests.engines.tiny import model, tokenizer

PLANTED = "tests.preflight.doctor.planted"
ENVIRONMENTS = {"steps": "StepsEnvironments", "crashes": "CrashingEnvironments"}
JUDGES = {"slow": "SlowJudge", "gullible": "Gullible", "dead": "DeadJudge"}
ENGINES = {"stale": "Stale", "moody": "Moody", "swallows": "SwallowsStops"}


@dataclass(frozen=True)
class Toy:
    """Where its model, its data and its presets are."""

    model: Path
    questions: Path
    presets: Path

    @property
    def settings(self) -> list[str]:
        return [
            f"--config-dir={self.presets}",
            *("experiment=none", "model=path", f"model.path='{self.model}'", "model.describe_tools=false"),
            *("environment=steps", "reward=toy"),
            *("rollout.tasks_per_step=3", "rollout.group_size=3", "rollout.max_tokens=32"),
            *("hardware.threads=1", "run.eval_every=0", "run.final_eval=false", "run.max_steps=20"),
        ]


@dataclass(frozen=True)
class Diagnosis:
    """What `agentgrpo doctor --json` prints."""

    code: int
    json: dict[str, Any]

    def check(self, name: str) -> dict[str, Any]:
        [found] = [check for check in self.json["checks"] if check["name"] == name]
        return dict(found)

    @property
    def problems(self) -> dict[str, list[str]]:
        """Name of a check -> what it says are problems."""
        found = {
            check["name"]: [f["what"] for f in check["findings"] if f["level"] == "problem"]
            for check in self.json["checks"]
        }
        return {name: whats for name, whats in found.items() if whats}


Diagnose = Callable[..., Diagnosis]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    root = tmp_path_factory.mktemp("toy")
    policy = model("qwen2")
    policy.save_pretrained(root / "model")
    tokenizer().save_pretrained(root / "model")
    rows = [
        {"id": f"q{i}", "question": f"What is {i} and {i * i}?", "answers": [f"Velmor{i}"], "split": split}
        for i, split in enumerate(["train"] * 12 + ["dev"] * 3 + ["test"] * 4)
    ]
    write_rows(root / "questions.jsonl", rows)
    for group, names in (("judge", JUDGES), ("engine", ENGINES)):
        for name, cls in names.items():
            preset(root / "presets", group, name, {"name": f"{PLANTED}:{cls}"})
    for name in ENVIRONMENTS:
        preset(root / "presets", "environment", name, {"name": name})
    preset(root / "presets", "task", "leaky", {"name": f"{PLANTED}:Leaky"})
    preset(root / "presets", "tools", "unplugged", {"unplugged": {"name": f"{PLANTED}:Unplugged"}})
    terms = {"correctness": {"weight": 1.0}, "evenness": {"name": f"{PLANTED}:Evenness", "weight": 1.0}}
    preset(root / "presets", "reward", "toy", {"name": "weighted", "terms": terms})
    return Toy(root / "model", root / "questions.jsonl", root / "presets")


def preset(root: Path, group: str, name: str, node: dict[str, Any]) -> None:
    (root / group).mkdir(parents=True, exist_ok=True)
    (root / group / f"{name}.yaml").write_text(yaml.safe_dump(node))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's environments have names, as those of the house have."""
    known = registry.REGISTRY["environment"]
    assert isinstance(known, dict)
    for name, cls in ENVIRONMENTS.items():
        monkeypatch.setitem(known, name, f"{PLANTED}:{cls}")


@pytest.fixture
def diagnose(toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Diagnose:
    """diagnose(*overrides, only=names of checks) -> what is found of the toy; the parts are always built."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*overrides: str, only: tuple[str, ...] = (), settings: list[str] | None = None) -> Diagnosis:
        if only:
            chosen = tuple(c for c in examination.CHECKS if c.name in ("parts", *only))
            assert len(chosen) == len({"parts", *only})
            monkeypatch.setattr(examination, "CHECKS", chosen)
        given = toy.settings if settings is None else settings
        if settings is None and not any(o.startswith("task") for o in overrides):
            given = [*given, f"task.questions='{toy.questions}'"]
        code = main(["doctor", "--json", *given, *overrides])
        printed = capsys.readouterr()
        assert list(Path().iterdir()) == [], printed.err
        return Diagnosis(code, json.loads(printed.out) if printed.out else {})

    return run


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
