"""What a configuration of a run directory may not decide alone: databases and folders."""

from __future__ import annotations

from typing import Any

import pytest

from agentgrpo.config.admission import needed_overrides, refuse_bare_addresses, refuse_unnamed
from agentgrpo.core.errors import ConfigError

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
            refuse_unnamed(config, config, given)
    refuse_unnamed(config, config, needed)
    assert [text.strip("'").partition("=")[0] for text in needed_overrides(config, ())] == [*needed]


def test_a_dsn_that_holds_a_variable_is_named_with_it() -> None:
    raw = {"retriever": {"name": "pgvector", "dsn": f"{AT}?application_name=${{oc.env:HOME}}"}}
    with pytest.raises(ConfigError) as e:
        refuse_unnamed({"retriever": {"name": "pgvector", "dsn": f"{AT}?application_name=mine"}}, raw, {})
    assert str(e.value).startswith(f"retriever.dsn={AT}?application_name=${{oc.env:HOME}} lets a run directory choose")


def test_what_is_only_read_needs_no_word() -> None:
    for node in ({"name": "faiss_index", "path": "x"}, {"name": "qdrant", "path": None, "url": "http://localhost"}):
        refuse_unnamed({"retriever": node}, {"retriever": node}, {})
        assert needed_overrides({"retriever": node}, ()) == []


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
    refuse_bare_addresses({"a": {"url": url, "urls": [url], "max_url_fetch": "a.b", "dsn": "localhost:1"}})
