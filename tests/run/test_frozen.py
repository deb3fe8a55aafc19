"""The policy is not its own reader: not by injection, not by the folder it is loaded from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.config import build
from agentgrpo.config.build import admit_user_code, build_node
from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.base import Engine
from agentgrpo.renderers.base import Renderer
from agentgrpo.run.frozen import refuse_own_endpoint, refuse_own_reader
from tests.engines import tiny


class Base:
    identity = "user"


class AsksForEngine(Base):
    def __init__(self, *, engine: Engine) -> None:
        self.engine = engine


class AsksForPolicy(Base):
    def __init__(self, *, policy: Any = None) -> None:
        self.policy = policy


class AsksForModel(Base):
    def __init__(self, *, model) -> None:  # type: ignore[no-untyped-def]
        self.model = model


class MayHaveEngine(Base):
    def __init__(self, *, engine: Engine | None = None) -> None:
        self.engine = engine


class AsksForRenderer(Base):
    def __init__(self, *, renderer: Renderer) -> None:
        self.renderer = renderer


class MayHaveRenderer(Base):
    def __init__(self, *, renderer: Renderer | None = None) -> None:
        self.renderer = renderer


class NamesModel(Base):
    """A text is no object of the run."""

    def __init__(self, *, model: str) -> None:
        self.model = model


class Inner(Base):
    def __init__(self, *, completer: Any) -> None:
        self.completer = completer


HERE = "tests.run.test_frozen"
NAMES = [f"{HERE}:{c.__name__}" for c in [*Base.__subclasses__()]]


@pytest.fixture(autouse=True)
def admitted() -> Iterator[None]:
    admit_user_code(NAMES)
    yield
    build._admitted.difference_update(NAMES)


INJECTED: dict[str, Any] = {"engine": object(), "policy": object(), "model": object(), "renderer": object()}


@pytest.mark.parametrize("kind", ["reader", "validity"])
@pytest.mark.parametrize(
    ("name", "asked"),
    [("AsksForEngine", "engine"), ("AsksForPolicy", "policy"), ("AsksForModel", "model"), ("MayHaveEngine", "engine")],
)
def test_a_part_that_asks_for_the_policy_is_refused(kind: str, name: str, asked: str) -> None:
    message = f"{kind}: its constructor asks for {asked}, and a {kind} never sees the trained model; give it a model of"
    with pytest.raises(ConfigError, match=message):
        build_node(kind, {"name": f"{HERE}:{name}"}, **INJECTED)


@pytest.mark.parametrize("kind", ["reader", "validity"])
def test_nothing_of_the_run_reaches_a_frozen_part(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"asks for renderer, which a {kind} there does not get"):
        build_node(kind, {"name": f"{HERE}:AsksForRenderer"}, **INJECTED)
    assert build_node(kind, {"name": f"{HERE}:MayHaveRenderer"}, **INJECTED).renderer is None
    assert build_node(kind, {"name": f"{HERE}:NamesModel", "model": "m"}, **INJECTED).model == "m"


@pytest.mark.parametrize("kind", ["reader", "validity"])
def test_nor_a_part_in_it(kind: str) -> None:
    node = {"name": f"{HERE}:Inner", "completer": {"name": f"{HERE}:AsksForEngine"}}
    with pytest.raises(
        ConfigError, match="completer: its constructor asks for engine, which a completer there does not get"
    ):
        build_node(kind, node, **INJECTED)
    node["completer"] = {"name": f"{HERE}:MayHaveEngine"}
    assert build_node(kind, node, **INJECTED).completer.engine is None


# --- folders


def reader(path: object) -> dict[str, Any]:
    return {"name": "memory", "reader": {"name": "completer", "completer": {"name": "local", "path": str(path)}}}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("policy", "frozen", "run/checkpoints/step-1"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(node: dict[str, Any], folders: Path) -> None:
    refuse_own_reader(node, run_dir=Path("run"), policies=[folders / "other", folders / "policy"])


@pytest.mark.parametrize("path", ["policy", "./policy/", "../{}/policy", "link"])
def test_the_folder_of_the_policy_is_refused(folders: Path, path: str) -> None:
    (folders / "link").symlink_to(folders / "policy")
    node = reader(path.format(folders.name))
    with pytest.raises(ConfigError, match=r"environment\.reader\.completer\.path=.*: this folder is the policy's own"):
        refuse(node, folders)
    node["validity"] = node.pop("reader")
    with pytest.raises(ConfigError, match=r"environment\.validity\.completer\.path=.* a validity must be a model"):
        refuse(node, folders)


@pytest.mark.parametrize("path", ["run", "run/checkpoints/step-1"])
def test_a_folder_of_the_run_is_refused(folders: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"this folder is in the directory of this run, run, and a reader must be"):
        refuse(reader(path), folders)


def test_a_reader_of_the_users_is_seen_through(folders: Path) -> None:
    node = {"name": "memory", "reader": {"name": "my.module:Reader", "weights": {"of": "policy"}}}
    with pytest.raises(ConfigError, match=r"environment\.reader\.weights\.of=policy: this folder is the policy's own"):
        refuse(node, folders)


@pytest.mark.parametrize("path", ["frozen", "missing", "run-2", "policy-2"])
def test_any_other_folder_is_allowed(folders: Path, path: str) -> None:
    (folders / "run-2").mkdir()
    refuse(reader(path), folders)
    refuse({"name": "memory", "reader": {"name": "cloze"}, "validity": {"name": "none"}}, folders)
    refuse({"name": "search"}, folders)
    with pytest.raises(ConfigError):
        refuse(reader("policy"), folders)


@pytest.mark.parametrize(("path", "whose"), [("policy", "the policy's own"), ("run/checkpoints/step-1", "in the dir")])
def test_a_run_whose_reader_is_the_policy_does_not_begin(
    folders: Path, path: str, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.model("llama").save_pretrained(folders / "policy")
    tiny.tokenizer().save_pretrained(folders / "policy")
    own = [
        "model=path",
        "model.path=policy",
        "run.dir=run",
        f"+environment.reader.completer={{name: local, path: {path}}}",
    ]
    given = [
        "experiment=none",
        "task=diary",
        "environment=memory_llm",
        "judge=questions",
        "~environment.reader.completer",
        *own,
    ]
    assert main(["train", *given]) == 2
    assert f"this folder is {whose}" in capsys.readouterr().err


# --- servers

URL = "http://127.0.0.1:8000"


def asks(url: str) -> dict[str, dict[str, Any]]:
    return {
        "environment": {"reader": {"completer": {"name": "http", "base_url": url}}},
        "judge": {"name": "exact_match"},
    }


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}/v1",
        "http://localhost:8000/v1",
        "http://0.0.0.0:8000",
        "http://[::1]:8000/v1",
        f"http://{gethostname()}:8000",
    ],
)
def test_the_server_that_the_policy_is_trained_on_is_refused(url: str) -> None:
    engine = {"name": "vllm", "urls": ["http://elsewhere.invalid:8000", URL]}
    says = r"environment\.reader\.completer\.base_url=.*: this server is the engine's .* give its address, or put one"
    with pytest.raises(ConfigError, match=says):
        refuse_own_endpoint(asks(url), engine=engine, adapts=False)
    refuse_own_endpoint(asks(url), engine=engine, adapts=True)  # there the start model stays beside the adapter
    refuse_own_endpoint(asks(url), engine={"name": "hf"}, adapts=False)


def test_a_judge_on_that_server_is_refused() -> None:
    chosen = {"environment": {"name": "search"}, "judge": {"judges": {"a": {"completer": {"base_url": f"{URL}/v1"}}}}}
    with pytest.raises(ConfigError, match=r"judge\.judges\.a\.completer\.base_url=http://127\.0\.0\.1:8000/v1: this"):
        refuse_own_endpoint(chosen, engine={"urls": [URL]}, adapts=False)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8001/v1", "http://elsewhere.invalid:8000/v1", "https://127.0.0.1/v1"]
)
def test_any_other_server_is_allowed(url: str) -> None:
    refuse_own_endpoint(asks(url), engine={"urls": [URL]}, adapts=False)
    with pytest.raises(ConfigError):
        refuse_own_endpoint(asks(url), engine={"urls": [url]}, adapts=False)


@pytest.mark.slow
def test_the_defaults_of_engine_reader_and_judge_do_not_go_together(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All three ask http://127.0.0.1:8000, and whatever is served there would read and grade itself."""
    tiny.model("llama").save_pretrained(folders / "policy")
    tiny.tokenizer().save_pretrained(folders / "policy")
    given = ["train", "experiment=none", "task=diary", "engine=vllm", "model.path=policy", "run.dir=run"]
    for more in (["environment=memory_llm", "judge=questions"], ["environment=memory", "judge=llm"]):
        assert main([*given, *more]) == 2
        assert "this server is the engine's (engine.urls), which serves the policy as it is" in capsys.readouterr().err
