"""A command line that is printed works where it is pasted: in the shell that agentgrpo was called from."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.core.commands import shell_line

AWKWARD = ["runs/ä b=c", "it's", "-x", "$HOME", "a;b", "[1,2]"]


def environment(folder: Path) -> Path:
    """A virtual environment's folder of programs, with agentgrpo in it, as somebody who calls it sees it."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "agentgrpo").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (programs / "agentgrpo").chmod(0o755)
    return programs


@pytest.mark.parametrize(
    ("here", "on_path", "called"),
    [
        (".", True, "agentgrpo"),
        (".", False, ".venv/bin/agentgrpo"),
        (".venv/bin", False, "./agentgrpo"),
        ("else where", False, "{root}/.venv/bin/agentgrpo"),
    ],
)
def test_it_runs_as_it_is(
    here: str, on_path: bool, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a b"
    programs = environment(root)
    (root / "else where").mkdir()
    monkeypatch.chdir(root / here)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin" if on_path else "/usr/bin:/bin")
    line = shell_line("view", *AWKWARD)
    assert shlex.split(line)[0] == called.format(root=root)
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["view", *AWKWARD]


def test_another_installation_on_the_path_is_not_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = environment(tmp_path / "ours"), environment(tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    monkeypatch.setenv("PATH", str(theirs))
    assert shell_line("show", "x") == "ours/.venv/bin/agentgrpo show x"
    monkeypatch.setattr(sys, "argv", [str(theirs / "agentgrpo"), "train"])  # as a user's own script folder is elsewhere
    assert shell_line("show", "x") == "agentgrpo show x"
    monkeypatch.setattr(sys, "argv", ["-c"])
    (ours / "agentgrpo").unlink()  # a copy of the sources on PYTHONPATH
    assert shell_line("show", "x") == "ours/.venv/bin/python -m agentgrpo show x"
