"""What a configuration of a run directory may not decide alone: databases and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgrpo.config.admission import needed_overrides, refuse_bare_addresses, refuse_unnamed
from agentgrpo.core.errors import ConfigError

RUN = Path("runs/x")
AT = "postgresql://u@evil/db"
NAMED = [
    ({"name": "qdrant", "path": "evil"}, {"retriever.path": "evil"}),
    ({"name": "qdrant", "path": ""}, {"retriever.path": ""}),
    ({"name": "pgvector", "dsn": AT}, {"retriever.dsn": AT}),
    ({"name": "pgvector", "dsn": ""}, {"retriever.dsn": ""}),
    ({"name": "pgvector", "dsn": None, "dsn_env": "HOME"}, {"retriever.dsn_env": "HOME"}),
    (
        {"name": "qdrant", "url": "http://evil", "api_key_env": "HOME"},
        {"retriever.url": "http://evil", "retriever.api_key_env": "HOME"},
    ),
]


@pytest.mark.parametrize(("node", "needed"), NAMED)
def test_databases_and_their_folders_are_named_on_the_command_line(
    node: dict[str, Any], needed: dict[str, str]
) -> None:
    config = {"retriever": node}
    for left_out in needed:
        given = {key: value for key, value in needed.items() if key != left_out}
        with pytest.raises(ConfigError, match=f"^{left_out}=.* lets a run directory choose .*: .*{left_out}="):
            refuse_unnamed(config, config, given, RUN)
    refuse_unnamed(config, config, needed, RUN)
    assert [text.strip("'").partition("=")[0] for text in needed_overrides(config, (), RUN)] == [*needed]


def test_a_dsn_that_holds_a_variable_is_named_with_it() -> None:
    raw = {"retriever": {"name": "pgvector", "dsn": f"{AT}?application_name=${{oc.env:HOME}}"}}
    with pytest.raises(ConfigError) as e:
        refuse_unnamed({"retriever": {"name": "pgvector", "dsn": f"{AT}?application_name=mine"}}, raw, {}, RUN)
    assert str(e.value).startswith(f"retriever.dsn={AT}?application_name=${{oc.env:HOME}} lets a run directory choose")


def test_what_is_only_read_needs_no_word() -> None:
    for node in ({"name": "faiss_index", "path": "x"}, {"name": "qdrant", "path": None, "url": None}):
        refuse_unnamed({"retriever": node}, {"retriever": node}, {}, RUN)
        assert needed_overrides({"retriever": node}, (), RUN) == []


CONNECTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"retriever": {"name": "http", "url": "http://evil"}}, ["retriever.url=http://evil"]),
    ({"retriever": {"name": "qdrant", "path": None, "url": "http://localhost"}}, ["retriever.url=http://localhost"]),
    ({"retriever": {"name": "embedded", "web": {"name": "tavily"}}}, ["retriever.web.name=tavily"]),
    ({"engine": {"name": "vllm", "urls": ["http://evil"]}}, ["'engine.urls=[http://evil]'"]),
    ({"engine": {"name": "openai"}}, ["engine.name=openai"]),
    (
        {"judge": {"routes": {"x": {"completer": {"base_url": "http://e"}}}}},
        ["judge.routes.x.completer.base_url=http://e"],
    ),
    ({"environment": {"fetcher": {"name": "pages"}}}, ["environment.fetcher.name=pages"]),
    ({"tools": {"fetch": {}}}, ["tools.fetch.name=fetch"]),
    ({"tools": {"x": {"name": "fetch", "allow_hosts": ["wiki"]}}}, ["'tools.x.allow_hosts=[wiki]'"]),
    ({"run": {"log_with": ["tensorboard", "wandb"]}}, ["'run.log_with=[tensorboard,wandb]'"]),
]


def test_the_command_of_an_environment_is_named_on_the_command_line() -> None:
    config = {"environment": {"name": "program", "command": "touch pwned", "function": None}}
    with pytest.raises(ConfigError, match=r"^environment.command=touch pwned lets a run directory start programs"):
        refuse_unnamed(config, config, {}, RUN)
    refuse_unnamed(config, config, {"environment.command": "touch pwned"}, RUN)
    assert needed_overrides(config, (), RUN) == ["'environment.command='\"'\"'touch pwned'\"'\"''"]
    tests = {"environment": {"name": "tools", "tests": {"name": "sandbox", "sandbox": "unsafe_subprocess"}}}
    with pytest.raises(ConfigError, match=r"^environment.tests.sandbox=unsafe_subprocess lets a run directory start"):
        refuse_unnamed(tests, tests, {}, RUN)
    none = {"environment": {"name": "program", "command": None, "function": "my_agent:run", "sandbox": False}}
    refuse_unnamed(none, none, {}, RUN)
    assert needed_overrides(none, {"my_agent:run"}, RUN) == ["environment.function=my_agent:run"]
    game = {"environment": {"name": "textarena", "opponent": "mine:plays"}}
    assert needed_overrides(game, {"mine:plays"}, RUN) == ["environment.opponent=mine:plays"]


@pytest.mark.parametrize(("config", "needed"), CONNECTIONS, ids=lambda value: str(value)[:40])
def test_whom_a_run_connects_to_is_named_on_the_command_line(config: dict[str, Any], needed: list[str]) -> None:
    with pytest.raises(ConfigError) as e:
        refuse_unnamed(config, config, {}, RUN)
    why = "lets a run directory choose whom this process connects to; to allow it, add to this command line: "
    assert str(e.value).endswith(why + " ".join(needed))
    refuse_unnamed(config, config, {key.strip("'").partition("=")[0]: 1 for key in needed}, RUN)
    assert needed_overrides(config, (), RUN) == needed


def test_a_file_outside_of_the_run_is_written_only_where_the_command_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = tmp_path / "run"
    home.mkdir()
    (home / "away").symlink_to(tmp_path)
    (home / "circle").symlink_to("circle")
    why = r" lets a run directory choose a file outside of it that is written; to allow it, add to this command line: "
    for outside in (
        str(tmp_path / "x"),
        "x",
        f"{home}/../x",
        f"{home}/away/x",
        "~/x",
        f"{home}/circle/x",
        "~nobody-here/x",
        "a\0b",
    ):
        for config, key in (
            ({"judge": {"parts": {"x": {"judge": {"cache": outside}}}}}, "judge.parts.x.judge.cache"),
            ({"cassette": {"mode": "fill", "path": outside}}, "cassette.path"),
        ):
            with pytest.raises(ConfigError) as e:
                refuse_unnamed(config, config, {}, home)
            assert str(e.value).startswith(f"{key}={outside}{why}")
            refuse_unnamed(config, config, {key: outside}, home)
            assert len(needed_overrides(config, (), home)) == 1
    for harmless in (
        {"judge": {"cache": f"{home}/verdicts.sqlite"}},
        {"judge": {"cache": "~/.cache/agentgrpo/verdicts.sqlite"}},
        {"judge": {"cache": None}},
        {"cassette": {"mode": "strict", "path": "x"}},
        {"run": {"log_with": ["tensorboard"]}},
    ):
        refuse_unnamed(harmless, harmless, {}, home)
        assert needed_overrides(harmless, (), home) == []
    warm = {"judge": {"cache": "~/.cache/agentgrpo/warm_start/x"}}
    with pytest.raises(ConfigError, match="outside of it"):
        refuse_unnamed(warm, warm, {}, home)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "localhost", "127.0.0.1:8000", "box:6333", "api.example.org/v1"])
def test_an_address_without_a_scheme_is_refused_with_its_key(url: str) -> None:
    ways = {
        "engine.urls.1": {"engine": {"urls": ["http://a", url]}},
        "judge.completer.base_url": {"judge": {"completer": {"base_url": url}}},
        "retriever.web_url": {"retriever": {"url": "http://a", "web_url": url}},
    }
    for path, tree in ways.items():
        with pytest.raises(ConfigError) as e:
            refuse_bare_addresses(tree)
        asked = f"{path}={url} does not say how to connect; put http:// before it, or https://: http://{url}"
        assert str(e.value) == asked


@pytest.mark.parametrize(
    "url", ["http://localhost:8000", "https://a/b", None, "", ":memory:", "/run/x.sock", "u:k@h:1"]
)
def test_what_may_be_an_address_is_left_to_whom_it_is_given(url: str | None) -> None:
    """And what may hold a secret is not repeated."""
    tree = {"a": {"url": url, "urls": [url], "max_url_fetch": "a.b", "dsn": "localhost:1"}}
    refuse_bare_addresses(tree)
    with pytest.raises(ConfigError, match=r"a\.urls\.1=localhost:1 does not say how to connect"):
        refuse_bare_addresses({"a": tree["a"] | {"urls": [url, "localhost:1"]}})


def test_the_parts_of_a_suites_member_are_named_as_those_of_a_run() -> None:
    member = {
        "environment": {"name": "program", "command": "touch pwned", "function": "my_agent:run"},
        "tools": {"search": {"name": "mcp", "command": "touch this"}, "fetch": {}},
    }
    config = {"suite": {"mine": member}}
    assert needed_overrides(config, {"my_agent:run"}, RUN) == [
        "suite.mine.environment.function=my_agent:run",
        "'suite.mine.tools.search.command='\"'\"'touch this'\"'\"''",
        "'suite.mine.environment.command='\"'\"'touch pwned'\"'\"''",
        "suite.mine.tools.fetch.name=fetch",
    ]
    given = {"suite.mine.environment.command": "touch pwned", "suite.mine.tools.search.command": "touch this"}
    with pytest.raises(ConfigError, match=r"^suite.mine.tools.search.command=touch this lets a run directory start"):
        refuse_unnamed(config, config, {}, RUN)
    with pytest.raises(ConfigError, match=r"^suite.mine.tools.fetch.name=fetch lets a run directory choose whom"):
        refuse_unnamed(config, config, given, RUN)
    refuse_unnamed(config, config, given | {"suite.mine.tools.fetch.name": "fetch"}, RUN)


@pytest.mark.parametrize("id", ["mine:Env-v0", ["FrozenLake-v1", "mine:Env-v0"]])
def test_a_module_that_registers_an_environment_is_named(id: object) -> None:
    config = {"environment": {"name": "gymnasium", "id": id}, "task": {"name": "gymnasium"}}
    with pytest.raises(ConfigError, match=r"^environment.id=.*mine:Env-v0.* lets a run directory start programs"):
        refuse_unnamed(config, config, {}, RUN)
    refuse_unnamed(config, config, {"environment.id": id}, RUN)
    plain = {"environment": {"name": "gymnasium", "id": ["FrozenLake-v1", "ALE/Pong-v5"]}}
    refuse_unnamed(plain, plain, {}, RUN)


def test_a_package_that_an_environment_loads_is_named_once_for_its_tasks_too() -> None:
    node = {"name": "verifiers", "id": "package", "python": None}
    config = {"environment": node, "task": node}
    own = {"environment": node, "task": {**node, "id": "${environment.id}"}}
    with pytest.raises(ConfigError, match=r"^environment.id=package lets a run directory start programs"):
        refuse_unnamed(config, own, {}, RUN)
    refuse_unnamed(config, own, {"environment.id": "package"}, RUN)
    with pytest.raises(ConfigError, match=r"^task.id=package lets a run directory start programs"):
        refuse_unnamed(config, config, {"environment.id": "package"}, RUN)
