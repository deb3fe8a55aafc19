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
from sympy import Basic, Set
from sympy.core.relational import Relational

from agentgrpo.judges.answers import denies, leaves_open, relates

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


# --- What an answer states.

_BREAK = re.compile(
    r"(?<=[\w)}\]$%])[.!?]\s|(?<!:)\n(?=.*[^\W\d_]{2})"
    r"|[,;]\s+(?:and\s+)?(?:so|then|thus|hence|therefore|the|we|it|this|that)\b",
    re.IGNORECASE,
)
"""Where a sentence ends, or a part of it: "Since 5 is not prime, the answer is 4"."""
_RESULT = re.compile(r"[\d$\\]|(?<![A-Za-z])[a-zA-Z](?![A-Za-z])")
_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_LIST = re.compile(r"\d\s*(?:[;|]|,\s|\band\b|\bto\b|\s)\s*(?:and\s|to\s)?[-+]?\d++(?!\s*[^\W\d_])")


def stated(answer: str) -> list[Any]:
    """What `read` makes of an answer that stands by it, else []: a denial states nothing ("not 4", "4 is wrong"), nor
    do alternatives and bounds of which a single value was read ("either 3 or 4", "one of 1, 2, 3, 4", "< 4"). The words
    that count are those from the beginning of the sentence that has the result to the end of the answer."""
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
