"""Formats of question-answer files: published data sets, other trainers' files and a user's own. A format reads a
record of a file into questions.

Each format is recognised by the keys of a record; the first that fits is used, so that special formats come first. A
format's entries hold the columns that it reads; id and split are read for every format, and all other columns are
handed on (columns.py)."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Message
from agentgrpo.tasks.files import FILES, problem_of
from agentgrpo.tasks.questions.openings import ASKED, Opening, opening_of
from agentgrpo.tasks.records import Node, is_number, shown
from agentgrpo.tasks.tables import SPLIT_NAMES

# --- A question of a file, before it becomes a task, and the comparison of questions.

_ARTICLES = frozenset({"a", "an", "the"})
_ALIKE = str.maketrans(dict.fromkeys("‐‒–—―−", "-") | dict.fromkeys("⁄∕÷", "/") | dict.fromkeys("×∗⋅", "*"))
"""Variants of a sign -> the sign."""
_INITIALS = re.compile(r"(?<!\w)[^\W\d_](?:\. ?[^\W\d_])+(?!\w)")
_SIGN = re.compile(r"[^\w\s]|_")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionEntry:
    where: str
    """File and place in it, for messages."""
    question: str
    """The question; of `messages`, the user's last one."""
    answers: tuple[str, ...]
    """Acceptable answers; () if the file has none, as in published test sets."""
    id: str = ""
    """The file's own id; "" = it has none."""
    data_source: str = ""
    """The data source that the file names."""
    split: str | None = None
    """The split that the file names."""
    is_published_train: bool = False
    """The file names a training set. Such rows may be dealt to dev and test if no row names these."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    """The opening, if the file has more than a question."""
    row: Node | None = None
    """The node of the question, if it is not the record itself."""
    read: Collection[str] = ()
    """Columns of the row that are in this entry; () = the columns that its format reads."""
    note: str = ""
    """See Opening.note."""


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation, in any script; compatibility forms become the plain ones.

    Signs that can distinguish two questions are separate words: all symbols ("C++", "3 < 4"), "#", "%" and "*" beside a
    word, "/" beside a number and "-" before one. "well-known" is two words, "U.S." and "J. K." are one."""
    plain = " ".join(unicodedata.normalize("NFKC", text).lower().translate(_ALIKE).split())
    return _SIGN.sub(_sign, _INITIALS.sub(_joined, plain)).split()


def _joined(initials: re.Match[str]) -> str:
    return initials[0].replace(".", "").replace(" ", "")


def _sign(match: re.Match[str]) -> str:
    sign, text, at = match[0], match.string, match.start()
    kind = unicodedata.category(sign)
    if kind[0] == "M":  # a vowel sign, or an accent: part of its letter
        return sign
    close, after = text[at - 1 : at], text[at + 1 : at + 3].lstrip()[:1]
    before = text[max(at - 2, 0) : at].rstrip()[-1:]
    if sign in "#%*":
        is_kept = before.isalnum() or after.isalnum() or sign in (before, after)
    elif sign == "/":
        is_kept = before.isdecimal() or after.isdecimal()
    elif sign == "-":
        is_kept = after.isdecimal() and not close.isalpha()  # "covid-19" is also written "covid 19"
    else:
        is_kept = kind in ("Sm", "Sc", "So") or sign == "^"  # other Sk signs are accents, used as quotes
    return f" {sign} " if is_kept else " "


def same_question(entry: QuestionEntry) -> str:
    """A text that is equal for two entries that ask the same: the words of the question or of the whole opening, and
    the files that come with it."""
    asked = "\n".join(m.content for m in entry.messages) or entry.question
    words = " ".join(words_of(asked)) or asked
    files = entry.metadata.get(FILES)
    return f"{words}\n{json.dumps(files, sort_keys=True)}" if files else words


def nearly_same(same: str) -> str:
    """Reduce a text of `same_question`: equal for questions with the same set of words, ignoring order and articles."""
    return " ".join(sorted({*same.split()} - _ARTICLES)) or same


def same_answers(answers: tuple[str, ...]) -> frozenset[str]:
    """Normalise answers, to compare them with another question's."""
    return frozenset(" ".join(w for w in words_of(a) if w not in _ARTICLES) or a for a in answers)


# --- Rows of a user and of other trainers: {"question": "...", "answers"?: ["...", ...] or "...", "id"?,
#     "split"?, ...}, or with another column for the question (openings.py) or the answers:
#
#     TRL, prime-rl   {"prompt": "..." or [{"role": "user", "content": "..."}, ...], "answer": "..."}
#     Search-R1       {"question", "golden_answers": ["...", ...], "data_source": "nq", "id": "train_0", "prompt": ...}
#     verl            {"prompt": [...], "data_source", "reward_model": {"ground_truth": "..." or {"target": [...]}},
#                     "extra_info": {"split": "train", "index": 0}}
#     SkyRL           the same with "reward_spec" in the place of "reward_model"
#     ShareGPT        {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
#     Alpaca          {"instruction": "...", "input": "...", "output": "..."}
#     OpenRLHF        {"input": "..." or [...], "label": "..."}
#
# `extra_info.split` counts if it is dev or test; training rows may be dealt to these if no row names them.

_NAMES = ("id", "question", "answers")
_GRADED = ("reward_model", "reward_spec")
DEFAULT_KEYS: Mapping[str, str] = {}
Answers = Callable[[Node, Opening], tuple[tuple[str, ...], str]]
"""A row -> its answers, and the column that holds only them ("" = they are a part of a column)."""


def plain(keys: Mapping[str, str]) -> Callable[[Node], Iterator[QuestionEntry]]:
    """Return the reader for records with renamed keys, e.g. {"question": "query"}. A renamed key is required. By
    default the first of ASKED holds the question, "answers" may be called "answer" or be missing, and "id" may be
    missing. All other keys are metadata ("files": {name: text} are the files in the workspace of a tool agent). Raises
    ConfigError for a key that cannot be renamed."""
    for name in keys:
        if name not in _NAMES:
            raise ConfigError(f"keys.{name}; {', '.join(_NAMES)} can be renamed.{did_you_mean(name, _NAMES)}")

    def answers(node: Node, said: Opening) -> tuple[tuple[str, ...], str]:
        record = node.object()
        default = "answer" if "answers" not in record and "answer" in record else "answers"
        key = keys.get("answers", default)
        if "answers" in keys or record.get(key, "") != "":
            return node.answers(key), key
        return ((said.answer,) if said.answer else _truth(node, "ground_truth")), key

    return _rows(answers, keys)


def _rows(
    answers: Answers, keys: Mapping[str, str] = DEFAULT_KEYS, *, by_source: bool = False
) -> Callable[[Node], Iterator[QuestionEntry]]:
    """by_source: ids are unique only within a data source, whose name is put before them."""

    def read(node: Node) -> Iterator[QuestionEntry]:
        node = node.filled()
        if problem := problem_of(node.object().get(FILES)):
            node.refuse(problem)
        said = opening_of(node, keys.get("question"), "task.question_key")
        right, answering = answers(node, said)
        id, naming = id_of(node, keys.get("id"))
        extra = node.get("extra_info") if by_source and isinstance(node.object().get("extra_info"), dict) else None
        if by_source and (id := id or (extra.optional_text("index") if extra else "")) and (source := source_of(node)):
            id = f"{source}-{id}"
        split = SPLIT_NAMES.get(extra.optional_text("split")) if extra else None
        yield QuestionEntry(
            where=node.where,
            id=id,
            question=said.question,
            answers=right,
            split=None if split == "train" else split,
            is_published_train=split == "train",
            metadata=_kind(node),
            messages=said.messages,
            read=(naming, answering, *said.read),
            note=said.note,
        )

    return read


def id_of(node: Node, key: str | None = None) -> tuple[str, str]:
    """Return a row's own id and its column, or ("", "") if it has none. key: the user's name for the column."""
    if key is not None or node.object().get("id") not in (None, ""):
        return node.id(key or "id", "task.id_key"), key or "id"
    other = node.object().get("_id")
    return (node.id("_id"), "_id") if isinstance(other, str | int) and other != "" else ("", "")


def source_of(node: Node) -> str:
    """The data source that a row names."""
    given = node.object().get("data_source")
    return given.strip() if isinstance(given, str) else ""


def _golden(node: Node, said: Opening) -> tuple[tuple[str, ...], str]:
    return (node.answers("golden_answers"), "") if node.object().get("golden_answers") else _graded(node, said)


def _graded(node: Node, said: Opening) -> tuple[tuple[str, ...], str]:
    """The ground truth of a computed reward."""
    rewards = [node.get(key) for key in _GRADED if isinstance(node.object().get(key), dict)]
    return next((_truth(reward, "ground_truth") for reward in rewards), ()), ""


def _truth(node: Node, key: str) -> tuple[str, ...]:
    """The answers in a ground truth; () if only a computed reward can read it."""
    truth = node.object().get(key)
    if isinstance(truth, dict):
        truth = truth.get("target")
    texts = truth if isinstance(truth, list) else [truth]
    if truth in ("", []) or not all(isinstance(text, str | bool) or is_number(text) for text in texts):
        return ()
    return Node(node.path, node.at, {key: truth}).answers(key)


def _labelled(*keys: str) -> Answers:
    return lambda node, said: next(((_given(node, key), "") for key in keys if node.has(key)), ((), ""))


def _kind(node: Node) -> dict[str, Any]:
    """The metadata that FlashRAG keeps from HotpotQA and similar data sets."""
    given = node.object().get("metadata")
    return {k: given[k] for k in ("type", "level") if given.get(k) is not None} if isinstance(given, dict) else {}


# --- Questions that take several documents: HotpotQA, 2WikiMultihopQA and MuSiQue.


def pairs(node: Node, *keys: str) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of [[a, b], ...], as published, or of {key: [a, ...], key: [b, ...]}, as in the datasets
    library."""
    if isinstance(node.value, dict):
        columns = [list(node.list(key)) for key in keys]
        if len(columns[0]) != len(columns[1]):
            node.refuse(f"{len(columns[0])} of '{keys[0]}' and {len(columns[1])} of '{keys[1]}'; as many are needed")
        rows = list(zip(*columns, strict=True))
    else:
        rows = [tuple(pair.elements()) for pair in node.elements()]
    for row in rows:
        if len(row) != 2:
            node.refuse(f"a list of {len(row)}; pairs of {' and '.join(keys)} are needed")
        row[0].string()
        yield row[0], row[1]


def supporting_titles(node: Node) -> list[str]:
    """Titles of the documents that the answer needs, each once."""
    return list(dict.fromkeys(title.value for title, _ in pairs(node.get("supporting_facts"), "title", "sent_id")))


def hotpotqa(node: Node) -> Iterator[QuestionEntry]:
    """HotpotQA (Yang et al. 2018, arXiv 1809.09600) and 2WikiMultihopQA (Ho et al. 2020, arXiv 2011.01060): {"_id",
    "question", "answer", "type", "level", "supporting_facts": [["title", 0], ...], "context": [...]}. Test sets have no
    answer. 2Wiki's answer aliases are in a separate file, which is not read."""
    metadata: dict[str, object] = {key: node.text(key) for key in ("type", "level") if node.object().get(key)}
    if node.object().get("supporting_facts"):
        metadata["titles"] = supporting_titles(node)
    yield QuestionEntry(
        where=node.where,
        id=node.optional_text("_id") or node.optional_text("id"),
        question=node.text("question"),
        answers=node.answers("answer") if node.object().get("answer") else (),
        metadata=metadata,
    )


_HOTPOTQA = ("_id", "id", "question", "answer", "type", "level", "supporting_facts")


def musique(node: Node) -> Iterator[QuestionEntry]:
    """MuSiQue (Trivedi et al. 2022, arXiv 2108.00573): {"id": "2hop__...", "question", "answer", "answer_aliases":
    [...], "answerable": true, ...}. Unanswerable questions get no answer."""
    answerable = node.object().get("answerable")
    if answerable not in (None, True, False):
        node.get("answerable").refuse(f"{shown(answerable)}; true or false is needed")
    id = node.optional_text("id")
    answers: tuple[str, ...] = ()
    if answerable is not False and node.object().get("answer"):
        aliases = node.answers("answer_aliases") if node.object().get("answer_aliases") else ()
        answers = tuple(dict.fromkeys((*node.answers("answer"), *aliases)))
    hops = id.partition("hop")[0][:1]
    yield QuestionEntry(
        where=node.where,
        id=id,
        question=node.text("question"),
        answers=answers,
        metadata={"hops": int(hops)} if hops.isdecimal() else {},
    )


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFormat:
    fits: Callable[[Record], bool]
    """Whether a record has this format."""
    read: Callable[[Node], Iterator[QuestionEntry]]
    reads: Collection[str] = ()
    """Columns that `read` uses; () = each entry lists them."""
    large: Collection[str] = ()
    """Large published columns that are of no use here; see columns.Columns."""


def _nq(node: Node) -> Iterator[QuestionEntry]:
    """NQ-open (Lee et al. 2019, arXiv 1906.00300): {"question": "...", "answer": ["...", ...]}."""
    yield QuestionEntry(where=node.where, question=node.text("question"), answers=_given(node, "answer"))


def _gsm8k(node: Node) -> Iterator[QuestionEntry]:
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168): {"question": "...", "answer": "reasoning\\n#### 1,200"}."""
    reasoning, mark, result = node.text("answer").rpartition("####")
    if not mark or not result.strip() or not reasoning.strip():
        node.refuse(f"'answer' is {shown(node.get('answer').value)}; a solution that ends in '#### RESULT' is needed")
    yield QuestionEntry(where=node.where, question=node.text("question"), answers=(result.strip(),))


def _trivia_qa(node: Node) -> Iterator[QuestionEntry]:
    """TriviaQA (Joshi et al. 2017, arXiv 1705.03551): {"Data": [{"QuestionId", "Question", "Answer": {"Value",
    "Aliases": [...], "NormalizedAliases": [...]}}, ...]}, or with the names of the datasets library."""
    own = "Question" in node.object()
    key = {n: n if own else s for n, s in _TRIVIA_QA.items()}
    answers: tuple[str, ...] = ()
    if node.has(key["Answer"]):  # test sets have none
        answer = node.get(key["Answer"])
        lists = [answer.answers(k) for n in ("Aliases", "NormalizedAliases") if answer.object().get(k := key[n])]
        value = answer.optional_text(key["Value"])
        answers = _distinct([*([value] if value and value != "<unk>" else []), *(a for one in lists for a in one)])
    yield QuestionEntry(
        where=node.where,
        id=node.optional_text(key["QuestionId"]),
        question=node.text(key["Question"]),
        answers=answers,
    )


_TRIVIA_QA = {
    "QuestionId": "question_id",
    "Question": "question",
    "Answer": "answer",
    "Value": "value",
    "Aliases": "aliases",
    "NormalizedAliases": "normalized_aliases",
}


def _popqa(node: Node) -> Iterator[QuestionEntry]:
    """PopQA (Mallen et al. 2022, arXiv 2212.10511): a table with "id", "prop", "s_pop", "question" and
    "possible_answers", a list written as JSON."""
    given = node.get("possible_answers")
    value = given.value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            given.refuse(f"{shown(value)}; a JSON list of texts is needed")
    answers = Node(node.path, node.at, {**node.object(), "possible_answers": value}).answers("possible_answers")
    metadata: dict[str, Any] = {"prop": node.optional_text("prop")} if node.has("prop") else {}
    if popularity := node.optional_text("s_pop"):
        if not popularity.isdecimal():
            node.get("s_pop").refuse(f"{shown(popularity)}; a whole number is needed")
        metadata["s_pop"] = int(popularity)
    yield QuestionEntry(
        where=node.where,
        id=node.optional_text("id"),
        question=node.text("question"),
        answers=_distinct(answers),
        metadata=metadata,
    )


def _bamboogle(node: Node) -> Iterator[QuestionEntry]:
    """Bamboogle (Press et al. 2022, arXiv 2210.03350): a table with "Question" and "Answer"."""
    yield QuestionEntry(where=node.where, question=node.text("Question"), answers=node.answers("Answer"))


def _squad(node: Node) -> Iterator[QuestionEntry]:
    """SQuAD 1.1 and 2.0 (arXiv 1606.05250, 1806.03822): {"data": [{"paragraphs": [{"qas": [{"id", "question",
    "answers": [{"text"}, ...]}]}]}]}, or rows of the datasets library, whose answers are {"text": [...]}."""
    if "paragraphs" in node.object():
        for paragraph in node.list("paragraphs"):
            for qa in paragraph.list("qas"):
                texts = [answer.text("text") for answer in qa.list("answers")]
                about = {"title": node.object().get("title"), "context": paragraph.object().get("context")}
                yield QuestionEntry(
                    where=qa.where,
                    row=Node(qa.path, qa.at, about | qa.object()),
                    id=qa.optional_text("id"),
                    question=qa.text("question"),
                    answers=tuple(dict.fromkeys(texts)),
                )
        return
    yield QuestionEntry(
        where=node.where,
        id=node.optional_text("id"),
        question=node.text("question"),
        answers=tuple(dict.fromkeys(text.string() for text in node.get("answers").list("text"))),
    )


def _given(node: Node, key: str) -> tuple[str, ...]:
    """The answers under `key`; () if there are none."""
    return () if node.object().get(key) in (None, "", []) else _distinct(node.answers(key))


def _distinct(answers: Sequence[str]) -> tuple[str, ...]:
    """Drop answers that equal an earlier one but for case and punctuation."""
    first: dict[str, str] = {}
    for answer in answers:
        first.setdefault(" ".join(words_of(answer)) or answer, answer)
    return tuple(first.values())


def _has(*keys: str) -> Callable[[Record], bool]:
    return lambda record: all(key in record for key in keys)


def _is(record: Record, key: str, kind: Any) -> bool:
    return isinstance(record.get(key), kind)


_IN_METADATA = ("context", "paragraphs", "evidences", "question_decomposition")
FORMATS: Mapping[str, QuestionFormat] = {
    "search_r1": QuestionFormat(
        fits=lambda r: "golden_answers" in r and ("question" in r or "prompt" in r),
        read=_rows(_golden, by_source=True),
        large=[f"metadata.{part}" for part in _IN_METADATA],
    ),
    "verl": QuestionFormat(
        fits=lambda r: any(key in r for key in _GRADED) and ("question" in r or "prompt" in r),
        read=_rows(_graded, by_source=True),
        large=[f"metadata.{part}" for part in _IN_METADATA],
    ),
    "trivia_qa": QuestionFormat(
        fits=lambda r: ("QuestionId" in r and "Question" in r) or ("question" in r and _is(r, "answer", dict)),
        read=_trivia_qa,
        reads=[name for pair in list(_TRIVIA_QA.items())[:3] for name in pair],
        large=("EntityPages", "SearchResults", "entity_pages", "search_results"),
    ),
    "squad": QuestionFormat(
        fits=lambda r: ("paragraphs" in r and "title" in r) or ("question" in r and _is(r, "answers", dict)),
        read=_squad,
        reads=("id", "question", "answers"),
    ),
    "2wiki": QuestionFormat(
        fits=_has("question", "evidences"),
        read=hotpotqa,
        reads=_HOTPOTQA,
        large=("context", "evidences"),
    ),
    "musique": QuestionFormat(
        fits=lambda r: "question" in r and ("question_decomposition" in r or "answer_aliases" in r),
        read=musique,
        reads=("id", "question", "answer", "answer_aliases", "answerable"),
        large=("paragraphs", "question_decomposition"),
    ),
    "hotpotqa": QuestionFormat(
        fits=lambda r: "question" in r and ("supporting_facts" in r or ("_id" in r and _is(r, "context", list | dict))),
        read=hotpotqa,
        reads=_HOTPOTQA,
        large=("context",),
    ),
    "popqa": QuestionFormat(
        fits=_has("question", "possible_answers"),
        read=_popqa,
        reads=("id", "question", "possible_answers", "prop", "s_pop"),
    ),
    "bamboogle": QuestionFormat(fits=_has("Question", "Answer"), read=_bamboogle, reads=("Question", "Answer")),
    "gsm8k": QuestionFormat(
        fits=lambda r: "question" in r and _is(r, "answer", str) and "\n####" in r["answer"],
        read=_gsm8k,
        reads=("question", "answer"),
    ),
    "nq": QuestionFormat(
        fits=lambda r: {*r} == {"question", "answer"} and _is(r, "answer", list),
        read=_nq,
        reads=("question", "answer"),
    ),
    "plain": QuestionFormat(fits=lambda r: any(key in r for key in ASKED[:4]), read=plain(DEFAULT_KEYS)),
    "sharegpt": QuestionFormat(fits=_has("conversations"), read=plain(DEFAULT_KEYS)),
    "alpaca": QuestionFormat(fits=_has("instruction"), read=_rows(_labelled("output"))),
    "openrlhf": QuestionFormat(
        fits=lambda r: "input" in r and ("label" in r or "output" in r), read=_rows(_labelled("label", "output"))
    ),
}
"""Formats by name, in the order in which they are tried."""


def format_of(node: Node) -> str:
    """The name of a record's format. Raises DataError for a record of no known format."""
    record = node.object()
    for name, format in FORMATS.items():
        if format.fits(record):
            return name
    keys = ", ".join(map(str, record)) or "none"
    near = did_you_mean("question", [str(key) for key in record])
    if {"chunks", "questions"} <= record.keys():
        near = " Rows with chunks and questions are for environment=memory."
    raise DataError(
        f"{node.where}: keys {keys[:200]} are of no known format ({', '.join(FORMATS)}); name the key of the "
        f"question: task.question_key=KEY (data check: --question-key; task=questions: task.sources.NAME.keys).{near}"
    )
