"""Compares two texts as mathematics. Runs in a worker process, because the computation of an answer may never end.

math-verify's own timeouts use the wall clock, so that a slow machine would turn a right answer into a wrong one. They
are off; two CPU-time clocks of the kernel bound a comparison instead. The first raises an error. A computation deep in
C never sees that error, so the second clock ends the process a second later.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from math_verify import parse, verify
from sympy import Basic, Set
from sympy.core.relational import Relational

from agentgrpo.judges.answers import denies, leaves_open, relates

Verdict = Literal["right", "wrong", "late", "no_gold"]
MAX_CHARS = 4096
"""Maximum characters of an answer that are read: the last ones, since the result stands at the end."""
_SPARE_S = 1.0


class _Late(BaseException):
    """Derived from BaseException, because libraries catch Exception."""


def compare(references: list[str], answer: str, timeout_s: float) -> Verdict:
    """right: the answer equals one of the references; late: the comparison took too long; no_gold: no reference can
    be read."""
    try:
        with _clocks(timeout_s):
            given = stated(answer)
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


# --- The result in a text, as math-verify reads it.

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
"""Plain-text notation -> LaTeX."""
_BOXED = re.compile(r"\\f?boxed\s*\{")
_DELIMITED = re.compile(r"\$|\\\(|\\\[")
_PERCENT = re.compile(r"(-?[\d.,]+)\s*\\?(?:%|percent)", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
"""A plain word: text that contains one is a sentence, not LaTeX."""


def read(text: str) -> list[Any]:
    """Parse the result in `text` with math-verify: the content of its only \\boxed{}, the text after ####, or the whole
    text. In a sentence math-verify finds the result itself. Returns [] if there is no result."""
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


# --- The result that an answer asserts.

_BREAK = re.compile(
    r"(?<=[\w)}\]$%])[.!?]\s|(?<!:)\n(?=.*[^\W\d_]{2})"
    r"|[,;]\s+(?:and\s+)?(?:so|then|thus|hence|therefore|the|we|it|this|that)\b",
    re.IGNORECASE,
)
"""The end of a sentence or of a clause: "Since 5 is not prime, the answer is 4"."""
_RESULT = re.compile(r"[\d$\\]|(?<![A-Za-z])[a-zA-Z](?![A-Za-z])")
_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_LIST = re.compile(r"\d\s*(?:[;|]|,\s|\band\b|\bto\b|\s)\s*(?:and\s|to\s)?[-+]?\d++(?!\s*[^\W\d_])")


def stated(answer: str) -> list[Any]:
    """Return `read(answer)` if the answer asserts that result, else []. A denial asserts nothing ("not 4", "4 is
    wrong"). Alternatives and bounds assert nothing either if a single value was read from them ("either 3 or 4", "one
    of 1, 2, 3, 4", "< 4"). Only words from the beginning of the result's sentence to the end of the answer count."""
    found = read(answer)
    text = answer.rpartition("####")[2][-MAX_CHARS:]
    places = [match.start() for match in _BOXED.finditer(text)][:1] or [m.start() for m in _RESULT.finditer(text)]
    begin = max((match.end() for match in _BREAK.finditer(text, 0, places[-1])), default=0) if places else 0
    said, result = text[begin:], found[0] if found else None
    if denies(said) or (relates(said) and not (isinstance(result, Basic) and result.has(Relational, Set))):
        return []
    is_list = _WORD.search(said) and _LIST.search(_BRACKETS.sub("", said))
    return [] if (leaves_open(said) or is_list) and not isinstance(result, Set) else found


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
