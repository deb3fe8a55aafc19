"""Whether two texts say the same in mathematics: runs in a worker process, where an answer may compute without end.

math-verify's own timeouts are alarms by the wall clock, on which a slow machine would turn a right answer into a wrong
one. They are off; what bounds a comparison is its CPU time, by two clocks of the kernel. The first raises an error. A
computation deep in C hears of no error, so the second one, a second later, ends the process.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from math_verify import parse, verify

Verdict = Literal["right", "wrong", "late", "no_gold"]
MAX_CHARS = 4096
"""Of an answer; of a longer one the end, where the result stands."""
_SPARE_S = 1.0


class _Late(BaseException):
    """No Exception, which libraries catch."""


def compare(references: list[str], answer: str, timeout_s: float) -> Verdict:
    """right: the answer equals one of the references; late: that took too long; no_gold: no reference can be read."""
    try:
        with _clocks(timeout_s):
            given = read(answer)
            golds = [gold for gold in map(read, references) if gold]
            if not golds:
                return "no_gold"
            return "right" if any(verify(gold, given, timeout_seconds=None) for gold in golds) else "wrong"
    except _Late:
        return "late"


@contextmanager
def _clocks(timeout_s: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGVTALRM, late)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, timeout_s)
        signal.setitimer(signal.ITIMER_PROF, timeout_s + _SPARE_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


# --- What a text gives as its result, as math-verify reads it.

_PLAIN = {
    "−": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\leq ",
    "≥": r"\geq ",
    "≠": r"\neq ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "²": "^{2}",
    "³": "^{3}",
    "°": r"^\circ ",
}
_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp", "min", "max")
_NAMES = ("pi", "infty", "cup", "cap", "pm", "leq", "geq", *_FUNCTIONS)
_REWRITTEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]{1,200})\)"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*\(([^()]{1,200})\)"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*(\w+)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])(?:inf|infinity|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(rf"(?<![\\A-Za-z])({'|'.join(_NAMES)})(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<=\d)e([+-]?\d{1,3})\b", re.IGNORECASE), r"\\times 10^{\1}"),
    (re.compile(r"\^\(([^()]{1,200})\)"), r"^{\1}"),
)
"""How a keyboard writes it -> LaTeX."""
_BOXED = re.compile(r"\\f?boxed\s*\{")
_DELIMITED = re.compile(r"\$|\\\(|\\\[")
_PERCENT = re.compile(r"(-?[\d.,]+)\s*\\?(?:%|percent)", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
"""In LaTeX that is none: a sentence."""


def read(text: str) -> list[Any]:
    """What math-verify makes of the result in `text`: what is in its one \\boxed{}, or after ####, or all of it. Of a
    sentence it finds the result itself. [] where there is none."""
    text = text.rpartition("####")[2][-MAX_CHARS:].replace("\\$", "").strip()
    boxed = list(_BOXED.finditer(text))
    if len(boxed) > 1:
        return _parsed(text)
    if boxed:
        text = _balanced(text, boxed[0].end())
    inner = text[1:-1] if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1] else text
    percent = _PERCENT.fullmatch(inner.strip(" ."))
    if percent:
        return _parsed(f"{percent[1]}%")
    if _DELIMITED.search(inner):
        return _parsed(text)
    if inner.isalpha() and len(inner) > 1:
        return _parsed(f"\\boxed{{\\text{{{inner}}}}}")
    latex = _latex(inner)
    if not boxed and _WORD.search(latex):
        return _parsed(text)
    return _parsed(f"\\boxed{{{latex}}}")


def _parsed(text: str) -> list[Any]:
    found: list[Any] = parse(text, parsing_timeout=None)
    return found


def _balanced(text: str, at: int) -> str:
    depth = 1
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[at:end]
    return text[at:]


def _latex(text: str) -> str:
    for pattern, meaning in _REWRITTEN:
        text = pattern.sub(meaning, text)
    return "".join(_PLAIN.get(c, c) for c in text).strip().rstrip(".")
