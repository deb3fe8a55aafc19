from pathlib import Path

import pytest

from agentgrpo.core.cache import default_cache, made_once


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "a b"))
    assert default_cache() == tmp_path / "a b"
    monkeypatch.delenv("AGENTGRPO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "agentgrpo"


def test_what_a_killed_process_left_of_another_one_goes_before_one_is_made(tmp_path: Path) -> None:
    """Nobody may ever ask for that one again: a file that has changed since, another version of a library."""
    left = tmp_path / "gguf" / "0123" / ".tmp-0123abcd-model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    made_once(tmp_path / "gguf" / "4567", lambda folder: (folder / "x").touch())
    assert not left.exists()
