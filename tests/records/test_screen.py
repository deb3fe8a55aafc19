"""The screen on terminals, on none, and with hostile text."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from agentgrpo.errors import ConfigError
from agentgrpo.records.screen import Screen, sanitize

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\rgone\x08\x9b31m\u202egnp.exe\u2066 [red]x[/red] [link=http://e] :smile: \ud800\x7f\u2028"
)
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def console(width: int = 80, height: int = 25, *, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width, height=height, force_terminal=terminal, highlight=False), file


def a_run(screen: Screen, steps: int = 12) -> None:
    screen.stage("warm start", 2)
    screen.metrics(0, {"sft/loss": 2.5, "sft/accuracy": 0.125})
    screen.advance()
    screen.metrics(1, {"sft/loss": 1.25, "sft/accuracy": 0.5})
    screen.advance()
    screen.stage("training", steps)
    for step in range(steps):
        tags = {"reward/mean": step / 10, "reward/std": 9.9, "policy/kl": 0.0002, "tokens/sampled": 12345.0}
        screen.metrics(step, {"skipped": 1.0} if step == 3 else tags | ({"failures/timeout": 2.0} if step == 5 else {}))
        screen.advance()
    screen.trajectory(HOSTILE)
    screen.line(HOSTILE)
    screen.table("[b]Held out[/b]", ["metric", "trained"], [["[b]correct[/b]", "0.81"], ["a " * 60, "-0.30"]])


def test_plain_output_is_lines_that_never_change() -> None:
    of, file = console()
    with Screen(console=of) as screen:
        a_run(screen)
    name = ("a " * 60).rstrip()
    assert file.getvalue().splitlines() == [
        "warm start: 2 to do",
        "warm start step 0/2  sft/loss 2.500  sft/accuracy 0.125",
        "warm start step 1/2  sft/loss 1.250  sft/accuracy 0.500",
        "training: 12 to do",
        "training step 0/12  reward 0.000  kl 2.0e-04  tokens 12,345",
        "training step 10/12  reward 1.000  kl 2.0e-04  tokens 12,345  skipped 1  failures 2",
        "training step 11/12  reward 1.100  kl 2.0e-04  tokens 12,345  skipped 1  failures 2",
        "[2J]0;ownedgone31mgnp.exe [red]x[/red] [link=http://e] :smile: ",
        "[b]Held out[/b]".ljust(len(name) + 15),
        "┏" + "━" * (len(name) + 3) + "┳" + "━" * 9 + "┓",
        "┃ " + "metric".ljust(len(name) + 1) + " ┃ trained ┃",
        "┡" + "━" * (len(name) + 3) + "╇" + "━" * 9 + "┩",
        "│ " + "[b]correct[/b]".ljust(len(name) + 1) + " │    0.81 │",
        "│ " + name + "  │   -0.30 │",
        "└" + "─" * (len(name) + 3) + "┴" + "─" * 9 + "┘",
    ]


def test_quiet_prints_lines_and_tables_only() -> None:
    of, file = console()
    with Screen("quiet", of) as screen:
        screen.stage("training", 3)
        screen.metrics(0, {"reward/mean": 1.0})
        screen.advance()
        screen.trajectory("text")
        screen.line("saved")
        screen.table("t", ["a"], [["1"]])
    assert file.getvalue().splitlines() == ["saved", "t    ", "┏━━━┓", "┃ a ┃", "┡━━━┩", "│ 1 │", "└───┘"]


def test_a_long_line_is_not_broken_where_it_goes_to_a_file() -> None:
    of, file = console(width=20)
    with Screen("plain", of) as screen:
        screen.line("x" * 50 + " " + "y" * 50)
    assert file.getvalue() == "x" * 50 + " " + "y" * 50 + "\n"


def last_frame(output: str) -> list[str]:
    """The text of what stays on the terminal, styles removed."""
    return [Text.from_ansi(line).plain.rstrip() for line in output.split("\x1b[2K")[-1].splitlines()]


def test_the_live_screen_shows_progress_trends_and_the_last_episode() -> None:
    of, file = console(width=60, terminal=True)
    with Screen("live", of) as screen:
        screen.stage("training", 12)
        for step in range(12):
            screen.metrics(step, {"reward/mean": step / 10, "gradients/norm": 2000.0, "failures/timeout": 1.0})
            screen.advance()
        screen.trajectory("".join(f"line {i}\n" for i in range(14)) + HOSTILE)
    frame = last_frame(file.getvalue())
    assert frame[0].startswith("training ━")
    assert "12/12" in frame[0]
    # start: mean of 0 … 0.4, now: mean of 0.7 … 1.1
    assert [line.split() for line in frame[1:5]] == [
        ["now", "start", "change"],
        ["reward", "0.900", "0.200", "+0.700"],
        ["grad", "norm", "2,000", "2,000", "0.000"],
        ["failures", "12"],
    ]
    assert [line.strip("│ ") for line in frame[5:-1]] == [
        "╭─ last episode " + "─" * 43 + "╮",
        "...",
        *(f"line {i}" for i in range(3, 14)),
        "[2J]0;ownedgone31mgnp.exe [red]x[/red] [link=http://e] …",
        "╰" + "─" * 58 + "╯",
    ]


def test_a_stage_that_comes_back_keeps_its_trends() -> None:
    of, file = console(terminal=True)
    with Screen("live", of) as screen:
        screen.stage("training", 2)
        screen.metrics(0, {"reward/mean": 1.0})
        screen.stage("dev", 1)
        screen.metrics(0, {"reward/mean": 5.0})
        screen.stage("training", 2)
        screen.metrics(1, {"reward/mean": 2.0})
    assert last_frame(file.getvalue())[2].split() == ["reward", "1.500", "1.500", "0.000"]


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_the_terminal_is_given_back_when_the_run_breaks(error: BaseException) -> None:
    of, file = console(terminal=True)
    before = sys.stdout, sys.stderr
    screen = Screen("auto", of)
    with pytest.raises(type(error)), screen:
        raise error
    assert file.getvalue().startswith(HIDE)
    assert file.getvalue().rindex(SHOW) > file.getvalue().rindex(HIDE)
    assert (sys.stdout, sys.stderr) == before
    written = file.getvalue()
    screen.close()
    assert file.getvalue() == written


PROGRAM = """
import time
from agentgrpo.records.screen import Screen
with Screen() as screen:
    screen.stage("training", 10)
    screen.line("ready")
    time.sleep(60)
"""


def test_ctrl_c_on_a_real_terminal_shows_the_cursor_again() -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "60", "LINES": "20"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as child:
        os.close(theirs)
        seen = b""
        interrupted = False
        while select.select([ours], [], [], 20)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not chunk:
                break
            seen += chunk
            if b"ready" in seen and not interrupted:
                child.send_signal(signal.SIGINT)
                interrupted = True
        assert child.wait(timeout=20) == -signal.SIGINT
    os.close(ours)
    assert seen.rindex(SHOW.encode()) > seen.rindex(HIDE.encode())
    assert b"KeyboardInterrupt" in seen


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 21, 34])
@pytest.mark.parametrize("height", [1, 5])
@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_tiny_terminal_does_no_harm(width: int, height: int, mode: str) -> None:
    of, text = console(width, height, terminal=True)
    with Screen(mode, of) as screen:
        a_run(screen)
    assert text.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("mode", ["auto", "live", "plain"])
def test_an_encoding_without_unicode_gets_question_marks(encoding: str, mode: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    with Screen(mode, Console(file=file, force_terminal=True, width=9, height=5)) as screen:
        a_run(screen)
        screen.line("snow \u2603")
    file.flush()
    assert raw.getvalue().decode(encoding).splitlines()[-1] == "snow ?"
    assert HIDE not in raw.getvalue().decode(encoding)


def test_steps_between_plain_lines_can_be_chosen() -> None:
    of, file = console()
    with Screen("plain", of, plain_every=2) as screen:
        screen.stage("eval", None)
        for step in range(5):
            screen.metrics(step, {"x": 1.0})
    assert file.getvalue().splitlines() == ["eval", *(f"eval step {i}  x 1.000" for i in (0, 2, 4))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("lives",), "screen mode 'lives'; allowed: .* Did you mean 'live'?"), (("auto", None, 0), "plain_every 0")],
)
def test_settings_that_make_no_sense_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Screen(arguments[0], plain_every=10 if len(arguments) < 3 else 0)  # type: ignore[arg-type]


def forbidden(c: str) -> bool:
    bidi = 0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069
    return bidi or (c not in "\n\t" and (ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F)) or unicodedata.category(c) == "Cs"


any_text = st.text(alphabet=st.characters(exclude_categories=()), max_size=60)


@given(any_text)
@example(HOSTILE)
def test_nothing_that_steers_a_terminal_survives(text: str) -> None:
    clean = sanitize(text)
    assert not any(forbidden(c) for c in clean)
    assert sanitize(clean) == clean


@given(any_text)
def test_harmless_text_passes_unchanged(text: str) -> None:
    harmless = "".join(c for c in text if not forbidden(c) and c not in "\u2028\u2029\u061c\u200e\u200f")
    assert sanitize(harmless) == harmless


@settings(max_examples=30, deadline=None)
@given(any_text, any_text)
@example(HOSTILE, "[/]")
def test_no_text_reaches_a_terminal_unsanitised(one: str, other: str) -> None:
    of = Console(file=io.StringIO(), width=30, height=10, force_terminal=False)
    with Screen("plain", of) as screen:
        screen.stage(one, 3)
        screen.metrics(0, {other: 1.0})
        screen.line(other)
        screen.trajectory(one)
        screen.table(one, [other], [[one]])
    assert not any(forbidden(c) for c in of.file.getvalue())  # type: ignore[attr-defined]
    live, file = console(30, 10, terminal=True)
    with Screen("live", live) as screen:
        screen.stage("training", 3)
        screen.metrics(0, {"\x1b[2J" + other: 1.0})
        screen.trajectory("\x1b]0;owned\x07" + one)
    assert "\x1b[2J" not in file.getvalue()
    assert "\x1b]0;" not in file.getvalue()
    assert "\x07" not in file.getvalue()


def test_what_the_agent_does_stands_after_how_it_fares() -> None:
    of, file = console()
    with Screen("plain", of) as screen:
        screen.show({"agent/tool_calls": "calls", "agent/absent": "absent"})
        screen.stage("training", 1)
        screen.metrics(0, {"policy/kl": 0.5, "agent/tool_calls": 3.0, "agent/looping": 1.0, "reward/mean": 0.25})
    assert file.getvalue().splitlines()[1:] == ["training step 0/1  reward 0.250  calls 3.000  kl 0.500"]
