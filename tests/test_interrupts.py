"""Signals before anything is under way: one line and the exit code, whatever is being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentgrpo
from agentgrpo.cli.jobs import report
from agentgrpo.core.interrupts import is_of_interrupt

ROOT = Path(agentgrpo.__file__).parents[1]
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    import time; time.sleep(60)
except BaseException:  # as some libraries have it
    raise ModuleNotFoundError("something else")
"""


def test_while_a_library_is_imported(tmp_path: Path) -> None:
    """It is interrupted in the middle of its import, which makes another error of KeyboardInterrupt."""
    (tmp_path / "argparse.py").write_text(SWALLOWS)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from agentgrpo.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "agentgrpo: interrupted\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_job_that_must_leave_can_go_on_from_its_first_second(tmp_path: Path, name: str) -> None:
    (tmp_path / "argparse.py").write_text(SWALLOWS.replace("SIGINT", name))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from agentgrpo.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"agentgrpo: stopped by {name} before its first step; the same command begins it again\n"
    assert (done.returncode, done.stdout, done.stderr) == (75, "", told)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_job_that_is_asked_what_it_is_at_while_it_starts_goes_on(tmp_path: Path, name: str) -> None:
    asks = f"import os, signal; os.kill(os.getpid(), signal.{name}); raise SystemExit(3)"
    (tmp_path / "argparse.py").write_text(asks)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from agentgrpo.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_nohup_holds(tmp_path: Path) -> None:
    """What ignores SIGHUP goes on ignoring it."""
    asks = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); raise SystemExit(3)"
    (tmp_path / "argparse.py").write_text(asks)
    program = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        f"sys.path.insert(0, {str(tmp_path)!r}); from agentgrpo.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_what_a_library_makes_of_it_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    errors: list[BaseException] = []
    for turned in (ImportError, ValueError):
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as e:
                raise turned("cannot be imported") from (e if turned is ImportError else None)
        except turned as e:
            errors.append(e)
    assert [report(error) for error in errors] == [130, 130]
    assert capsys.readouterr().err == "agentgrpo: interrupted\n" * 2
    assert not is_of_interrupt(ValueError("mine"))
