"""Python files that lie in a model's folder."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentgrpo
from agentgrpo.config.build import ModelPath
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.completer import LocalCompleter
from agentgrpo.models.cross_encoder import CrossEncoder
from agentgrpo.models.encoder import Encoder
from agentgrpo.models.loading import refuse_other_shape
from agentgrpo.preflight.plan.parts import model_of
from agentgrpo.training.policy import load_policy
from agentgrpo.training.remote_code import plain_config, trusted_config
from tests.engines import tiny

COMMIT = "a" * 40
CODE = """
from pathlib import Path
from transformers import LlamaConfig
Path(__file__).with_name("ran").write_text("")
class OddConfig(LlamaConfig):
    model_type = "odd"
"""


def test_no_call_lets_transformers_ask_whether_code_may_run() -> None:
    """Without the keyword it asks on stdin, where somebody may answer."""
    root = Path(agentgrpo.__file__).parent
    calls = [
        (str(file.relative_to(root)), node)
        for file in sorted(root.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
    ]
    assert len(calls) >= 8
    silent = [
        f"{name}:{call.lineno}" for name, call in calls if "trust_remote_code" not in [k.arg for k in call.keywords]
    ]
    assert silent == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose configuration needs its own code; whoever asks whether to run it is told yes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *a: "y")
    folder = tmp_path / "model"
    tiny.model("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    classes = dict.fromkeys(("AutoConfig",), "odd.OddConfig")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "odd", "auto_map": classes}))
    (folder / "odd.py").write_text(CODE)
    return folder


LOADERS: dict[str, Callable[[Path], Any]] = {
    "policy": load_policy,
    "shape": lambda folder: refuse_other_shape(folder, {"vocab_size": 1}),
    "plan": lambda folder: model_of(ModelPath(path=str(folder)), seed=0),
    "config": plain_config,
    "encoder": lambda folder: Encoder(path=str(folder)).embed(["a"]),
    "identity": lambda folder: Encoder(path=str(folder)).identity,
    "reranker": lambda folder: CrossEncoder(path=str(folder))._load(),
    "completer": lambda folder: LocalCompleter(path=str(folder))._parts,
}


@pytest.mark.parametrize("name", LOADERS)
def test_code_that_nobody_trusted_is_a_mistake_of_the_configuration(name: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LOADERS[name](folder)
    assert [*tmp_path.rglob("ran")] == []


def test_code_of_another_repository_is_refused_before_any_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace("odd.OddConfig", "someone/else--odd.OddConfig"))
    asked: list[object] = []
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *a, **k: asked.append(a))
    monkeypatch.setattr("agentgrpo.preflight.plan.parts.local_folder", lambda *a: folder)
    part = ModelPath(path="someone/odd", revision=COMMIT, trust_remote_code=True)
    for load in (
        lambda: trusted_config(folder),
        lambda: refuse_other_shape(folder, {"vocab_size": 1}, trust_remote_code=True),
        lambda: model_of(part, seed=0),
    ):
        with pytest.raises(ConfigError, match="is code of another repository"):
            load()
    assert asked == []
