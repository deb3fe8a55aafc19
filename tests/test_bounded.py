"""Code that came with data takes little time and memory, whatever it says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agentgrpo.core import bounded as module
from agentgrpo.core.bounded import LENGTH, bounded
from agentgrpo.core.errors import DataError


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are forked from here on."""
    found: list[int] = []
    fork = os.fork

    def forked() -> int:
        found.append(fork())
        return found[-1]

    monkeypatch.setattr(os, "fork", forked)
    return found


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_text_comes_back_whole_and_the_child_leaves_nothing(children: list[int]) -> None:
    descriptors = [*Path("/dev/fd").iterdir()]
    text = "é\ud800\n" * 100_000
    assert bounded(lambda: text, "x") == text
    assert [is_gone(child) for child in children] == [True]
    assert len([*Path("/dev/fd").iterdir()]) <= len(descriptors)


def test_a_child_that_waits_for_what_nobody_lets_go_is_replaced(
    children: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 2.0)

    def work() -> str:
        try:
            (tmp_path / "first").touch(exist_ok=False)
        except FileExistsError:
            return "second"
        time.sleep(1000)
        return "first"

    assert bounded(work, "x") == "second"
    assert [is_gone(child) for child in children] == [True, True]


def test_what_it_raises_is_said() -> None:
    def refuse() -> str:
        raise KeyError("no such role")

    with pytest.raises(ValueError, match=r"^'no such role'$"):
        bounded(refuse, "x")


def recurse(depth: int = 0) -> str:
    return recurse(depth + 1)


def test_endless_recursion_is_an_error_like_any_other() -> None:
    with pytest.raises(ValueError, match="maximum recursion depth"):
        bounded(recurse, "x")


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda: str(9**9**9), id="a product that no signal handler interrupts"),
        pytest.param(lambda: "a" * 10**11, id="memory"),
        pytest.param(lambda: "a" * (LENGTH + 1), id="length"),
        pytest.param(lambda: os._exit(0), id="gone"),
    ],
)
def test_what_takes_too_much_is_refused_in_one_line(work: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_S", 1)
    with pytest.raises(DataError, match=r"^the chat template takes more than 1 seconds, 1024 MiB or .*; give another$"):
        bounded(work, "the chat template")  # type: ignore[arg-type]
