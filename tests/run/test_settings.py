"""A configuration is read once, into settings, and looked up by nobody after that."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import agentgrpo
from agentgrpo.cli.main import main
from agentgrpo.config.build import PartNode
from agentgrpo.config.registry import ROOT
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.run.settings import Settings, settings_of

JOBS: list[dict[str, Any]] = []
EQUIPMENT = {"retriever", "tools"}
"""Groups that run.equipment reads."""


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append(config)
    return VerbResult()


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(VERBS, "train", replace(VERBS["train"], entry=f"{__name__}:keep"))
    assert main(["train", "run.dir=r", "run.max_steps=7"]) == 0
    return JOBS.pop()


def test_every_group_is_a_field() -> None:
    assert {field.name for field in fields(Settings)} == {*ROOT, "tree"} - EQUIPMENT


def test_what_is_plain_is_typed_and_a_part_is_a_node(config: dict[str, Any]) -> None:
    settings = settings_of(config)
    assert (settings.run.dir, settings.run.max_steps) == ("r", 7)
    assert settings.environment == PartNode("environment", config["environment"])
    assert settings.environment.takes("retrievers")
    assert not settings.environment.takes("tools")
    assert settings.task.build().split("train")


def test_what_does_not_fit_is_refused_in_one_line(config: dict[str, Any]) -> None:
    for group, key, meant in (("run", "max_step", "max_steps"), ("algorithm", "los", "loss")):
        with pytest.raises(ConfigError, match=f"^unknown key {group}.{key}; allowed are .* Did you mean '{meant}'"):
            settings_of({**config, group: {**config[group], key: 1}})


def test_an_engine_says_beforehand_that_it_is_not_trained() -> None:
    assert PartNode("engine", {"name": "scripted"}).says("trainable") is False
    assert PartNode("engine", {"name": "hf"}).says("trainable") is not False


def test_nobody_looks_a_key_up_in_it_afterwards() -> None:
    package = Path(agentgrpo.__file__).parent
    files = [*(package / "run").glob("*.py"), package / "cli" / "verbs.py"]
    looking = {file.stem: re.findall(r'config\["(\w+)"\]', file.read_text()) for file in files}
    assert set(looking.pop("settings")) == {*ROOT} - EQUIPMENT
    looking.pop("equipment")
    assert {name: keys for name, keys in looking.items() if keys} == {"verbs": ["hardware"]}
