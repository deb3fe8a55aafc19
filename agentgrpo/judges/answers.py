"""Judges that compare an answer with the task's references, word by word; the best reference counts."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from string import ascii_lowercase

from agentgrpo.core.errors import ConfigError, DataError, JudgeError
from agentgrpo.core.types import Task
from agentgrpo.judges.base import Grade

# --- Answers as judges compare them: the normalisation of SQuAD's evaluation (Rajpurkar et al. 2016, arXiv 1606.05250).

_ARTICLES = frozenset({"a", "an", "the"})
MAX_CHARS = 50_000
"""Maximum characters of a text that are compared, so that a huge text does not block anything else."""


class _Plain(dict[int, int | None]):
    """A character -> itself, or None for punctuation; filled as characters occur."""

    def __missing__(self, character: int) -> int | None:
        letter = chr(character)
        is_punctuation = letter in string.punctuation or unicodedata.category(letter)[0] == "P"
        self[character] = None if is_punctuation else character
        return self[character]


_PLAIN = _Plain()
_THOUSANDS = ",\u00a0\u2009\u202f"
_CURRENCY = "$€£¥₹"
_GROUPED = re.compile(
    rf"(?<![\d.,])(?:\d{{1,3}}(?:([{_THOUSANDS}，'’_])\d{{3}}(?:\1\d{{3}})*|(?:\.\d{{3}}){{2,}})|\d\d?(?:,\d\d)+,\d{{3}})(?!,?\d)"
)
"""A number with thousands separators: 1,200 and 1.200.000 and 12,34,567."""
_RAISED = re.compile(r"(?<=\d)(?=[²³¹⁰-₉¼-¾⅐-⅞])")
"""Before a power, an index or a fraction that would become digits of the number: "10²" is not 102."""
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?!\.?\d)")
_DASH = "‐‒–—−-"
_MINUS = rf"(?<![\w)\]{_DASH}])(?<!\d\s)[{_DASH}](?=[{_CURRENCY}]?\.?\d)(?!0+(?![\d.]))"
"""A minus sign touches its number, and nothing that it could subtract from: not in "3-5", "covid-19", "- 5 apples"."""
_MARK = re.compile(
    rf"(?P<minus>{_MINUS}|(?<=\de)[{_DASH}](?=\d))|(?P<point>(?<=\d)\.(?=\d))|(?P<bar>(?<=\d)\s?[/⁄∕]\s?(?=\d))"
    rf"|(?P<gap>(?<=\d)(?:[^\w\s]|_)+?(?=\d|{_MINUS}))|[^\w\s]|_"
)
_MEANINGS = {"minus": "-", "point": ".", "bar": "/", "gap": " "}


def words(text: str) -> list[str]:
    """The words of `text` (of its first MAX_CHARS characters), in lower case, without punctuation and articles; [] if
    nothing is left.

    Beyond SQuAD: punctuation of every script is removed, full-width and other compatibility forms equal the plain ones,
    and articles stay if nothing else is left, so that option "A" of a multiple choice can be right.
    A number is one word with its sign, point and fraction bar: "-5", "3.5", "1/2". Its notation makes no difference:
    "1,200.0", "$1200" and "+1200" are equal. No other mark joins two numbers: "3-5" and "10:30" are two words.
    """
    ungrouped = _GROUPED.sub(_without_separators, text[:MAX_CHARS])
    plain = unicodedata.normalize("NFKC", _RAISED.sub(" ", ungrouped))[:MAX_CHARS].lower()
    found = _MARK.sub(_meaning, _DECIMAL.sub(_shortest, plain)).split()
    return [w for w in found if w not in _ARTICLES] or found


def _without_separators(number: re.Match[str]) -> str:
    return "".join(filter(str.isdecimal, number[0]))


def _shortest(number: re.Match[str]) -> str:
    """72.0 -> 72, 3.50 -> 3.5, .5 -> 0.5"""
    whole, part = number[1] or "0", number[2].rstrip("0")
    return f"{whole}.{part}" if part else whole


def _meaning(mark: re.Match[str]) -> str:
    kind = mark.lastgroup
    return _MEANINGS[kind] if kind else mark[0].translate(_PLAIN)


def normalise(text: str) -> str:
    """`words`, joined by single spaces; "" when nothing is left."""
    return " ".join(words(text))


def f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """2·overlap / (words + words), words counted as often as they occur."""
    overlap = (Counter(answer) & Counter(reference)).total()
    return 2 * overlap / (len(answer) + len(reference))


def contains(answer: Sequence[str], reference: Sequence[str]) -> bool:
    """Whether the reference's words occur in the answer side by side, as whole words: "art" is not in "party"."""
    n = len(reference)
    return any(list(answer[i : i + n]) == list(reference) for i in range(len(answer) - n + 1))


def within(answer: Sequence[str], reference: Sequence[str], extra: int) -> bool:
    """Whether the answer contains the reference and has at most `extra` further words, so that a dump of passages or a
    list of candidates does not count."""
    return len(answer) <= len(reference) + extra and contains(answer, reference)


# --- Texts that deny a value or leave it open.

DENIALS = frozenset(
    {
        *("not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot", "except"),
        *("excluding", "unlike", "wrong", "incorrect", "false", "untrue"),
        *("nicht", "kein", "keine", "nie", "falsch", "pas", "jamais", "faux", "nunca", "falso", "incorrecto"),
        *("não", "non", "niet", "geen", "не", "нет", "никогда", "ليس", "لا"),
    }
)
_DENIES = re.compile(
    rf"\b(?:{'|'.join(sorted(DENIALS))})\b|n['’]t\b|\b(?:anything|everything|all|any) but\b|\b(?:other|rather) than\b"
    r"|\b(?:instead of|opposite of|far from|nowhere near|doubt|hardly|barely|unlikely)\b|不是|ではない|じゃない|아니",
    re.IGNORECASE,
)
_LEAVES_OPEN = re.compile(
    r"\b(?:or|either|else|otherwise|maybe|perhaps|possibly|between|might|could|one of|oder|ou|или)\b"
    r"|\b(?:at least|at most|up to)\b"
    r"|\b(?:less|fewer|smaller|lower|more|greater|larger|higher|bigger) than(?=\W{0,3}\d)",
    re.IGNORECASE,
)
_ASKS = re.compile(r"[?？]\W{0,9}\Z")
_RELATES = re.compile(
    r"[≠¬≤≥\u0334-\u0338\u20d2\u20d3\u20e5]|[!~]\s?=|=\s?/\s?=|~~|(?<![-=])[<>]|(?:^|\s)!(?=\s?[\w\\({-])"
    r"|\\(?:neq?|neg|not|lnot|leq?|geq?|lt|gt|leqslant|geqslant)(?![a-z])"
)
"""Signs of a relation other than equality; the combining marks strike a character out."""
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,100}>")


def denies(text: str) -> bool:
    """Whether a word of the text denies something: "not 4", "4 is wrong", "anything but 4"."""
    return _DENIES.search(text) is not None


def leaves_open(text: str) -> bool:
    """Whether the text gives alternatives or a bound, or asks: "4 or 5", "at most 4", "4?"."""
    return _LEAVES_OPEN.search(text) is not None or _ASKS.search(text[-10:]) is not None


def relates(text: str) -> bool:
    """Whether the text has the sign of a relation other than equality: "x ≠ 4", "< 4"."""
    return _RELATES.search(_TAG.sub(" ", text)) is not None


def comparable(task: Task) -> list[list[str]]:
    """The task's references as words. Raises JudgeError if no reference has words."""
    references = [found for r in task.references if (found := words(r))]
    if not references:
        raise JudgeError(
            f"task {task.id}: references {list(task.references)} hold nothing to compare an answer with; "
            "give at least one with a letter or digit, or choose a judge that needs none",
            kind="no_reference",
        )
    return references


def refuse_unanswered(task: Task) -> None:
    """Raise DataError for a task without references."""
    if not task.references:
        raise DataError(
            f"task {task.id}, '{task.question[:60]}', has no answers for the judge to compare with; add answers, "
            "choose a judge that needs none, or use the reward of your own environment: reward=environment"
        )


def _grade(task: Task, answers: Sequence[str], score: Callable[[list[str], list[str]], float]) -> list[Grade]:
    references = comparable(task)
    # no score is above 0 for an answer without words, since every reference has some
    return [Grade(score=max(score(given, r) for r in references)) for given in map(words, answers)]


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} {value}: a grade lies between 0 and 1; choose one of these")
    return float(value)


class ExactMatch:
    """1 for the same words in the same order, else 0."""

    refuse_task = staticmethod(refuse_unanswered)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return _grade(task, answers, lambda a, r: float(a == r))


class TokenF1:
    """F1 of the words that answer and reference share (SQuAD)."""

    refuse_task = staticmethod(refuse_unanswered)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return _grade(task, answers, f1)


class Contains:
    """1 for an exact match, `contained` if the reference is a part of the answer, else 0.

    An answer with more than max_extra_words beside the reference does not count as containing it. A policy can still
    list a few candidates; prefer ExactMatch for training.
    """

    refuse_task = staticmethod(refuse_unanswered)

    def __init__(self, *, contained: float = 0.7, max_extra_words: int = 15) -> None:
        self._agreement = GoldAgreement(contained=contained, overlap=0.0, max_extra_words=max_extra_words)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return await self._agreement.grade(task, answers)


class GoldAgreement:
    """1 for an exact match, `contained` if the answer is the reference with at most max_extra_words further words, else
    `overlap`·F1."""

    refuse_task = staticmethod(refuse_unanswered)

    def __init__(self, *, contained: float = 0.7, overlap: float = 0.6, max_extra_words: int = 15) -> None:
        self._contained = _share("contained", contained)
        self._overlap = _share("overlap", overlap)
        if max_extra_words < 0:
            raise ConfigError(f"judge.max_extra_words={max_extra_words}; 0 or more is allowed")
        self._max_extra_words = max_extra_words

    def _score(self, answer: list[str], reference: list[str]) -> float:
        if answer == reference:
            return 1.0
        if within(answer, reference, self._max_extra_words):
            return self._contained
        return self._overlap * f1(answer, reference)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return _grade(task, answers, self._score)


# --- Multiple choice.

OPTIONS = "options"
"""Key of a task's metadata: the texts of the options in the order A, B, ..., with or without their letters."""
_LEAD = re.compile(
    r"(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*(?:option\s+)?",
    re.IGNORECASE,
)
_LETTER = re.compile(r"\(?([a-z])(?:[).:]+\s*|\s+|$)(.*)", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"\(?([a-z])[).:]+\s*(.+)", re.IGNORECASE | re.DOTALL)


class Choice:
    """1 if the answer is the right option, by its letter ("C", "(c)", "The answer is C."), by its text, or by both
    ("C) a boat"); else 0. The letter must be the answer: a letter that merely occurs in it ("A friend of C", "B or C")
    names no option. References are letters or texts; the letter of an option is read as a letter, not as a text.
    Without metadata.options answers and references are compared as texts.

    Raises JudgeError if no reference is one of the options.
    """

    def refuse_task(self, task: Task) -> None:
        """Raise DataError for a task without a right option."""
        try:
            _right(task, _options(task))
        except JudgeError as e:
            raise DataError(str(e)) from e

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        options = _options(task)
        right = _right(task, options)
        return [Grade(score=float(not right.isdisjoint(_named(answer, options)))) for answer in answers]


def _options(task: Task) -> list[str]:
    return [_unlabelled(i, str(text)) for i, text in enumerate(task.metadata.get(OPTIONS) or ())]


def _right(task: Task, options: Sequence[str]) -> set[str]:
    """Letters of the right options."""
    right = {name for reference in task.references for name in _named(reference, options)}
    if not right:
        raise JudgeError(
            f"task {task.id}: references {list(task.references)} name none of the options {list(options)}; give the "
            "letter or the text of one",
            kind="no_reference",
        )
    return right


def _named(text: str, options: Sequence[str]) -> set[str]:
    """Letters of the options that `text` names; without options, the normalised text itself."""
    plain = unicodedata.normalize("NFKC", text[:MAX_CHARS]).strip(" \t\r\n*`\"'")
    lead = _LEAD.match(plain)
    candidates = [plain, plain[lead.end() :]] if lead else [plain]
    if not options:
        return {name for name in map(normalise, candidates) if name}
    return next((found for candidate in candidates if (found := _chosen(candidate, options))), set())


def _chosen(text: str, options: Sequence[str]) -> set[str]:
    by_letter = dict(zip(ascii_lowercase, options, strict=False))
    written = _LETTER.fullmatch(text)
    if written and (letter := written[1].lower()) in by_letter:
        if normalise(written[2]) in ("", normalise(by_letter[letter])):
            return {letter}
        if _LABEL.fullmatch(text):  # a letter with another option's text, or a text that begins like "A. Smith"
            return {other for other, option in by_letter.items() if text.casefold() == option.casefold()}
    wanted = normalise(text)
    return {letter for letter, option in by_letter.items() if wanted and normalise(option) == wanted}


def _unlabelled(number: int, option: str) -> str:
    """The option without its own letter: "(b) a boat" as the second option is "a boat"."""
    label = _LABEL.fullmatch(option.strip())
    return label[2] if label and ascii_lowercase.find(label[1].lower()) == number else option


# --- How much of the required content a text holds.


class Keywords:
    """The share of the references that the answer holds, each as whole words side by side; for summaries, where every
    reference is a keyword. A longer answer is never worse, so limit its length elsewhere."""

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        wanted = comparable(task)
        return [
            Grade(score=sum(contains(given, keyword) for keyword in wanted) / len(wanted))
            for given in map(words, answers)
        ]


# --- Answers that are numbers.

_RESULT = "####"
"""The mark before the result in GSM8K's solutions."""
_OPERATORS = "√∛∜×÷·∙∗⋅±∓≠¬"
_LONGEST = 10_000
"""Maximum characters of a text from which a number is read."""
_REACH = 24
"""Characters on either side of a number that decide whether it stands alone."""
_NUMBER = re.compile(
    r"(?<![\w.^])(?<!\d,)"
    rf"(?P<digits>(?:\d{{1,3}}(?:[{_THOUSANDS}]\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?P<power>e[-+]?\d{1,3})?(?:\s?/\s?(?P<under>\d+))?(?![.,]?\d)",
    re.IGNORECASE,
)
_BEFORE = re.compile(rf"(?P<sign>[-+]\s?)?(?P<currency>[{_CURRENCY}]\s?)?(?P<inner>[-+]\s?)?$")
_OPERATED = re.compile(r"(?:[-+*/^]\s?|[!{}_\\])$")
"""Before a number that is a part of something else."""
_STARTS = re.compile(r"(?:^\s?|\n|[=:(\[]\s?|[\"'“‘`>])$")
"""Before any sign."""
_SAYS = re.compile(r"(?:[^\W\d_]{2}|[.,;!?])\s$")
"""Before a sign that touches its number. "it is -5" matches; "x - 5" and "x -5" do not."""
_NAME = re.compile(r"[^\W\d_]{2}$")
"""Before a hyphen: "covid-19" is no number."""
_AFTER = re.compile(
    r"\s?[*+^]|[!_{}\\]|[:']\d|\)?\([-\d]|\s?/(?!\s?[^\W\d_])|\s?-\s?(?:$|[\d(.$]|[^\W\d_]\b)|\s\d+\s?/\s?\d"
    r"|\s?(?:x|mod|times|plus|over|divided by)\s?[-(\d.$]",
    re.IGNORECASE,
)
"""Text after a number that makes it a part of something else."""
_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"\{-\}"), "-"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,;:!]"), ""),
    (re.compile(r"\\(?:boxed|text|mathrm|mathbf)\s?\{([^{}]{0,200})\}"), r"\1"),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"^\s?\*\s", re.MULTILINE), ""),
    (re.compile(r"(?<![\w*)}])(\*{1,3}|_{1,3})(?=[^\s*_])([^\n*_]{0,200})(?<!\s)\1(?![\w*_({])"), r"\2"),
    (re.compile(r"(?<=[^\W\d_])\^\{?-?\d*\}?"), ""),  # m^2
    (re.compile(rf"\b(?:minus|negative)\s(?=[{_CURRENCY}.\d])", re.IGNORECASE), "-"),
)
"""LaTeX, Markdown and words -> plain notation."""


class Numeric:
    """1 if the answer is exactly the same number as a reference, else 0. Units, currencies, words around the number and
    its notation do not count: "1,200.0 apples", "$1200" and "1.2e3" are one number, and so are "1/2" and "0.5". A
    percent sign is a unit too: "12%" is 12, not 0.12. After "####" only the text behind it counts. An answer gets 0 if
    it has two different numbers, because it could list many; if its number is a part of an expression that is not read
    ("10^3", "2½", "5!", "x - 5"); or if it denies its number or leaves it open ("not 5", "< 5").

    Raises JudgeError if no reference is a number."""

    refuse_task = staticmethod(refuse_unanswered)

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        wanted = {number for reference in task.references if (number := number_of(reference)) is not None}
        if not wanted:
            raise JudgeError(
                f"task {task.id}: references {list(task.references)} are no numbers; give at least one that is, or "
                "choose another judge for its data source: judge=route",
                kind="no_reference",
            )
        return [Grade(score=float(number_of(answer) in wanted)) for answer in answers]


def number_of(text: str) -> Fraction | None:
    """The one number in a text; None if the text holds no number, an unreadable one, or several that differ. A comma, a
    non-breaking space or a thin space separates thousands; the decimal sign is a point. "-" is a sign at the start,
    after "=", ":", "(" or a currency, and if it touches its number after a word; "minus" and "negative" are signs too.
    """
    said = unicodedata.normalize("NFC", text.rpartition(_RESULT)[2])
    if len(said) > _LONGEST or denies(said) or leaves_open(said) or relates(said):
        return None
    plain = "".join(map(_plain, said))
    for pattern, meaning in _WORDS:
        plain = pattern.sub(meaning, plain)
    plain = plain.strip()
    found = [_value(match) for match in _NUMBER.finditer(plain) if not _is_name(match)]
    return found[0] if found and all(number == found[0] for number in found) else None


def _is_name(match: re.Match[str]) -> bool:
    before = match.string[max(match.start() - _REACH, 0) : match.start()]
    return before.endswith("-") and bool(_NAME.search(before[:-1]))


def _value(match: re.Match[str]) -> Fraction | None:
    if (sign := _sign(match)) is None or _AFTER.match(match.string[match.end() : match.end() + _REACH]):
        return None
    digits = match["digits"].translate(dict.fromkeys(map(ord, _THOUSANDS)))
    try:
        return sign * Fraction(digits + (match["power"] or "")) / int(match["under"] or 1)
    except (ValueError, ZeroDivisionError):  # more digits than Python reads, or a denominator of 0
        return None


def _sign(match: re.Match[str]) -> int | None:
    """1 or -1; None if the text before the number makes it a part of something else."""
    start = max(match.start() - _REACH, 0)
    before = match.string[start : match.start()]
    found = _BEFORE.search(before)
    assert found is not None  # it may be empty
    head, sign, inner = before[: found.start()], found["sign"] or "", found["inner"] or ""
    if _OPERATED.search(head) or (sign and inner):
        return None
    touches = not sign.endswith((" ", "\n"))
    if sign and not (_STARTS.search(head) or (touches and _SAYS.search(head))):
        return None
    return -1 if "-" in sign + inner else 1


def _plain(character: str) -> str:
    """The character in ASCII if it is a digit, a sign or a full-width form; "*" for an operator, and "^" for a raised,
    circled or Roman digit or a fraction."""
    if character < "\x80":
        return character
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    if character in "⁄∕":
        return "/"
    kind = unicodedata.category(character)
    if kind == "Pd" or character == "−":
        return "-"
    if kind in ("No", "Nl"):
        return "^"
    return "*" if character in _OPERATORS else str(unicodedata.decimal(character, character))
