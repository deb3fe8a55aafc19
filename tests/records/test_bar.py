"""Progress through much work, on a terminal and elsewhere."""

from __future__ import annotations

import io
import signal
from itertools import pairwise

import pytest
from rich.console import Console

from agentgrpo.records.screen import BAR_PLAIN_EVERY_S, Bar
from tests.records.test_screen import Terminal


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120, color_system=None, highlight=False), text


def test_plain_lines_now_and_then() -> None:
    time = [0.0]
    out, text = console(False)
    with Bar(what="passages", console=out, now=lambda: time[0]) as bar:
        for second in range(41):
            time[0] = float(second)
            bar.reached("stored", 1000 * second, 50 * second, 4000)
        time[0] = 51.0
        bar.reached("embedded", 0, 0, 40_000)  # a speed of its own
        time[0] = 71.0
        bar.reached("embedded", 4000, 4000, 40_000)
        bar.say("[bold]done[/bold]")
    assert BAR_PLAIN_EVERY_S == 10.0
    assert text.getvalue().splitlines() == [
        "stored: 10,000 passages, 12 %, 1,000 passages/s, 1:10 left",
        "stored: 20,000 passages, 25 %, 1,000 passages/s, 1:00 left",
        "stored: 30,000 passages, 37 %, 1,000 passages/s, 0:50 left",
        "stored: 40,000 passages, 50 %, 1,000 passages/s, 0:40 left",
        "embedded: 0 passages, 0 %",
        "embedded: 4,000 passages, 10 %, 200 passages/s, 3:00 left",
        "[bold]done[/bold]",
    ]


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    time = [0.0]
    out, text = console(False)
    with Bar(what="passages", console=out, now=lambda: time[0]) as bar:
        for second, nxt in pairwise(range(0, 200, 5)):
            time[0] = float(second)
            done = 100 * second if second < 100 else 10_000 + 10 * (second - 100)
            bar.reached("stored", done, done, 20_000)
            assert nxt > second
    assert " 100 passages/s" in text.getvalue().splitlines()[5]
    assert " 10 passages/s" in text.getvalue().splitlines()[-1]


def test_a_bar_on_a_terminal_that_leaves_nothing_behind() -> None:
    out, text = console(True)
    time = [0.0]
    with Bar(what="passages", console=out, now=lambda: time[0]) as bar:
        bar.reached("stored", 0, 0, 400)
        time[0] = 2.0
        bar.reached("stored", 100, 100, 400)
        bar.say("a note")
    shown = text.getvalue()
    assert "stored: 100 passages, 25 %, 50 passages/s, 0:06 left" in shown
    assert "a note" in shown
    assert shown.endswith("\x1b[2K")  # its line is wiped


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (56, "stored: 100 passages, 25 %, 50 passages/s, 0:06 left"),
        (40, "stored: 100 passages, 25 %, 0:06 left"),
        (24, "stored: 25 %, 0:06 left"),
        (13, "stored: 25 %"),
        (5, "25 %"),
    ],
)
def test_a_narrow_terminal_gets_a_shorter_line(width: int, shown: str) -> None:
    text = io.StringIO()
    time = [0.0]
    console = Console(file=text, force_terminal=True, width=width, color_system=None)
    with Bar(what="passages", console=console, now=lambda: time[0]) as bar:
        bar.reached("stored", 0, 0, 400)
        time[0] = 2.0
        bar.reached("stored", 100, 100, 400)
        bar.say("note")
    lines = [line.split("\x1b[2K")[-1].rstrip() for line in text.getvalue().replace("\x1b[1A", "").splitlines()]
    assert [shown in lines, max(map(len, lines)) <= max(width, len("\x1b[?25hnote"))] == [True, True]


PROGRAM = """
import time
from agentgrpo.records.screen import Bar
with Bar(what="passages") as bar:
    bar.reached("stored", 100, 100, 400)
    bar.say("ready")
    while True:
        time.sleep(0.02)  # a call that waits for good could begin just behind the signal, and not see it
"""


def test_ctrl_c_shows_the_cursor_again() -> None:
    with Terminal(PROGRAM) as terminal:
        terminal.until("ready")
        terminal.child.send_signal(signal.SIGINT)
        assert terminal.end() == -signal.SIGINT
        assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")
