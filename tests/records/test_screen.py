"""The screen on terminals, on none, and with hostile text."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import unicodedata
from typing import Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from agentgrpo.core.errors import ConfigError
from agentgrpo.records.screen import Screen, sanitize
from tests.thorough import examples

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
        screen.line("drawn above the frame")
        above, *frame = last_frame(file.getvalue())
    assert above == "drawn above the frame"
    assert frame[0].startswith("training ━")
    assert "12/12" in frame[0]
    # start: mean of 0 … 0.4, now: mean of 0.7 … 1.1
    assert [line.split() for line in frame[1:5]] == [
        ["now", "start", "change"],
        ["reward", "0.900", "0.200", "+0.700"],
        ["grad", "norm", "2,000", "2,000", "0.000"],
        ["failures", "12"],
    ]
    assert [line.strip("│ ") for line in frame[5:]] == [
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


READY = """
import sys, time
from agentgrpo.records.screen import Screen
with Screen({mode!r}) as screen:
    screen.stage("training", 150)
    screen.metrics(0, {{"reward/mean": 0.5, "gradients/norm": 0.25}})
    screen.advance(37)
    screen.trajectory("what it said " * 20)
    screen.line("ready")
    sys.stdin.readline()
"""


# A typed Ctrl-C is a signal only to those whose controlling terminal it is typed on. The terminal then drops what is on
# its way to the reader: a signal sent by hand could be answered before, and the answer dropped.
CONTROLLED = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Terminal:
    """`with Terminal(program) as terminal`: on a terminal of our own, what it has written, and how it ended."""

    def __init__(self, program: str, *, columns: int = 60, lines: int = 20, **env: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
        given = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}
        self.seen = b""
        self.child = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED + program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=kept | given,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.ours)

    def resize(self, columns: int, lines: int = 20) -> None:
        termios.tcsetwinsize(self.ours, (lines, columns))

    def until(self, text: str, at: int = 0) -> None:
        """Read until `text` is there after the first `at` bytes, or all there is; not for ever."""
        end = time.monotonic() + 60
        while text.encode() not in self.seen[at:] and select.select([self.ours], [], [], end - time.monotonic())[0]:
            try:
                chunk = os.read(self.ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            self.seen += chunk
        self.text = self.seen.decode(errors="ignore")  # a piece may end within a character

    def end(self) -> int:
        self.until("\0")
        return self.child.wait(timeout=60)


def test_ctrl_c_on_a_real_terminal_shows_the_cursor_again() -> None:
    waits = "while True: time.sleep(0.02)"  # a call that waits for good could begin just behind the signal
    with Terminal(READY.format(mode="auto").replace("sys.stdin.readline()", waits)) as terminal:
        terminal.until("ready")
        os.write(terminal.ours, b"\x03")  # as typed: the terminal makes the signal
        assert terminal.end() == -signal.SIGINT
        assert terminal.text.rindex(SHOW) > terminal.text.rindex(HIDE)
        assert "KeyboardInterrupt" in terminal.text


def test_a_terminal_that_becomes_narrower_is_drawn_over_whole() -> None:
    """Each of the 7 lines at 60 columns has more than 30 cells and takes two rows there: the cursor goes up to the
    first of 14."""
    with Terminal(READY.format(mode="auto"), columns=60) as terminal:
        terminal.until("ready")
        terminal.until("╯")
        terminal.resize(30)
        at = len(terminal.seen)
        terminal.until("╯", at)
        os.write(terminal.ours, b"\n")
        frame = terminal.seen[at:].decode()
        assert terminal.end() == 0
        assert frame.split("training")[0].count("\x1b[1A") == 14 - 1
        lines = [Text.from_ansi(line).plain for line in frame.split("\x1b[2K")[-1].splitlines()]
        assert [cell_len(line) <= 30 for line in lines] == [True] * 7
        assert lines[0].startswith("training ━")


@pytest.mark.parametrize(
    ("mode", "env", "is_live", "is_coloured"),
    [
        ("auto", {}, True, True),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("live", {"TERM": "dumb"}, False, False),
        ("plain", {}, False, False),
        ("plain", {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_terminals_without_colour_or_movement(mode: str, env: dict[str, str], is_live: bool, is_coloured: bool) -> None:
    with Terminal(READY.format(mode=mode), **env) as terminal:
        terminal.until("ready")
        os.write(terminal.ours, b"\n")
        assert terminal.end() == 0
        colours = re.findall(r"\x1b\[[0-9;]*(?:3[0-9]|38;[0-9;]+)m", terminal.text)
        assert (HIDE in terminal.text, SHOW in terminal.text, bool(colours)) == (is_live, is_live, is_coloured)
        if not is_live:
            assert "\x1b" not in terminal.text
            assert "training: 150 to do\r\n" in terminal.text


@pytest.mark.parametrize(
    ("mode", "env"), [("auto", {}), ("auto", {"FORCE_COLOR": "1"}), ("plain", {"FORCE_COLOR": "1"})]
)
def test_into_a_pipe_go_whole_lines_at_once(mode: str, env: dict[str, str]) -> None:
    """Before the program goes on; it waits for a word."""
    program = READY.format(mode=mode).replace('"ready"', r'"re\nady\x1b[31m"')
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | env
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3)]
        rest, _ = child.communicate(b"\n", timeout=60)
    assert lines == [
        b"training: 150 to do\n",
        b"training step 0/150  reward 0.500  grad norm 0.250\n",
        b"re\\nady[31m\n",
    ]
    assert (rest, child.returncode) == (b"", 0)


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_on_a_narrow_terminal_nothing_wraps_and_the_figures_stay(width: int) -> None:
    of, file = console(width, terminal=True)
    time = [0.0]
    with Screen("live", of, now=lambda: time[0]) as screen:
        screen.stage("training", 150)
        screen.trajectory("word " * 50)
        for step in range(37):
            time[0] += 4.0
            screen.metrics(step, {"reward/mean": 0.25, "correctness": 0.125, "policy/kl": 0.5})
            screen.advance()
    frame = last_frame(file.getvalue())
    assert max(map(len, frame)) <= width
    heads = {
        20: "training 37/150",
        30: "training 37/150 7:32 left",
        40: "training ━━━ 37/150 7:32 left",
        60: "training ━━━━━━━━ 37/150 7:32 left",
    }
    assert (
        re.sub(r"[━╺╸]+", lambda m: m[0] if len(set(m[0])) < 2 else "━" * round(len(m[0]) * 37 / 150), frame[0])
        == (heads[width])
    )
    assert [line.split() for line in frame[1:5]] == {
        20: [["now"], ["reward", "0.250"], ["correct", "0.125"], ["kl", "0.500"]],
    }.get(width, [["now", "start", "change"]] + [[n, v, v, "0.000"] for n, v in NAMED])


NAMED = (("reward", "0.250"), ("correct", "0.125"), ("kl", "0.500"))


def test_a_long_tag_keeps_its_end_and_its_figures() -> None:
    of, file = console(40, terminal=True)
    with Screen("live", of) as screen:
        screen.stage("x" * 100, 2)
        screen.metrics(0, {"reward/dimension/of_a_very_long_name/citation_support": 0.5})
    assert last_frame(file.getvalue())[:3] == [
        "x" * 35 + "… 0/2",
        "                      now  start  change",
        "…/citation_support  0.500  0.500   0.000",
    ]


def test_a_low_terminal_gives_up_the_episode_first() -> None:
    of, file = console(60, 6, terminal=True)
    with Screen("live", of) as screen:
        screen.stage("training", 2)
        screen.metrics(0, {"reward/mean": 0.5, "correctness": 0.5})
        screen.trajectory("a\nb\nc")
        screen.line("drawn above the frame")
        frame = last_frame(file.getvalue())
    assert [line.split()[0] for line in frame if line][:5] == [
        "drawn",
        "training",
        "now",
        "reward",
        "correct",
    ]
    assert not any("last episode" in line for line in frame)


def test_what_is_printed_after_the_end_stands_last_and_the_episode_goes() -> None:
    of, file = console(60, 24, terminal=True)
    with Screen("live", of) as screen:
        screen.stage("evaluating end", 2)
        screen.advance(2)
        screen.trajectory("an episode, often a wrong one")
        screen.line("drawn above the frame")
        assert "last episode" in file.getvalue()
        screen.close()
        screen.line("verdict: PASS")
    left = last_frame(file.getvalue())
    assert left[0].startswith("evaluating end ━")
    assert left[1:] == ["verdict: PASS"]


def test_long_work_says_in_a_log_how_far_it_is() -> None:
    """Every ten seconds at first, and rarer later: after an hour a few dozen lines."""
    of, file = console()
    time = [0.0]
    with Screen("plain", of, now=lambda: time[0]) as screen:
        screen.stage("warm start", 3600)
        for _ in range(3600):
            time[0] += 1.0
            screen.advance()
    lines = file.getvalue().splitlines()
    assert lines[:4] == [
        "warm start: 3,600 to do",
        "warm start: 10/3,600, 0 %, 59:50 left",
        "warm start: 20/3,600, 0 %, 59:40 left",
        "warm start: 30/3,600, 0 %, 59:30 left",
    ]
    assert lines[20] == "warm start: 200/3,600, 5 %, 56:40 left"
    assert len(lines) == 76


def test_work_of_unknown_size_has_a_count_alone() -> None:
    of, file = console()
    time = [0.0]
    with Screen("plain", of, now=lambda: time[0]) as screen:
        screen.stage("reading", None)
        time[0] = 11.0
        screen.advance(1234)
    assert file.getvalue().splitlines() == ["reading", "reading: 1,234"]


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


@settings(max_examples=examples(30), deadline=None)
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
        screen.line("drawn above the frame")
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
