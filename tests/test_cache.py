from pathlib import Path

import pytest

from agentgrpo.core.cache import default_cache


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "a b"))
    assert default_cache() == tmp_path / "a b"
    monkeypatch.delenv("AGENTGRPO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "agentgrpo"
