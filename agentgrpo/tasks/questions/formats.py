"""What published question-answer files look like: a record of the file to what it asks.

Each format says by which keys it is known; the first one that fits is it, so that the special ones stand first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.errors import DataError, did_you_mean
from agentgrpo.tasks.questions.entry import Entry, words_of
from agentgrpo.tasks.questions.multi_hop import hotpotqa, musique
from agentgrpo.tasks.questions.plain import DEFAULT_KEYS, plain
from agentgrpo.tasks.questions.search_r1 import search_r1
from agentgrpo.tasks.records import Node, shown

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    fits: Callable[[Record], bool]
    """Whether a record with these keys is of it."""
    read: Callable[[Node], Iterator[Entry]]
    columns: Callable[[Record], Sequence[str] | None] = lambda record: None
    """What `read` looks at, by the first record; None = everything."""


def _nq(node: Node) -> Iterator[Entry]:
    """NQ-open (Lee et al. 2019, arXiv 1906.00300): {"question": "...", "answer": ["...", ...]}."""
    yield Entry(where=node.where, question=node.text("question"), answers=_given(node, "answer"))


def _gsm8k(node: Node) -> Iterator[Entry]:
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168): {"question": "...", "answer": "reasoning\\n#### 1,200"}."""
    reasoning, mark, result = node.text("answer").rpartition("####")
    if not mark or not result.strip() or not reasoning.strip():
        node.refuse(f"'answer' is {shown(node.get('answer').value)}; a solution that ends in '#### RESULT' is needed")
    yield Entry(where=node.where, question=node.text("question"), answers=(result.strip(),))


def _trivia_qa(node: Node) -> Iterator[Entry]:
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
    yield Entry(
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


def _popqa(node: Node) -> Iterator[Entry]:
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
    yield Entry(
        where=node.where,
        id=node.optional_text("id"),
        question=node.text("question"),
        answers=_distinct(answers),
        metadata=metadata,
    )


def _bamboogle(node: Node) -> Iterator[Entry]:
    """Bamboogle (Press et al. 2022, arXiv 2210.03350): a table with "Question" and "Answer"."""
    yield Entry(where=node.where, question=node.text("Question"), answers=node.answers("Answer"))


def _squad(node: Node) -> Iterator[Entry]:
    """SQuAD 1.1 and 2.0 (arXiv 1606.05250, 1806.03822): {"data": [{"paragraphs": [{"qas": [{"id", "question",
    "answers": [{"text"}, ...]}]}]}]}, or rows of the datasets library, whose answers are {"text": [...]}."""
    if "paragraphs" in node.object():
        for paragraph in node.list("paragraphs"):
            for qa in paragraph.list("qas"):
                texts = [answer.text("text") for answer in qa.list("answers")]
                yield Entry(
                    where=qa.where,
                    id=qa.optional_text("id"),
                    question=qa.text("question"),
                    answers=tuple(dict.fromkeys(texts)),
                )
        return
    yield Entry(
        where=node.where,
        id=node.optional_text("id"),
        question=node.text("question"),
        answers=tuple(dict.fromkeys(text.string() for text in node.get("answers").list("text"))),
    )


def _given(node: Node, key: str) -> tuple[str, ...]:
    """Its answers; none where it has none."""
    return () if node.object().get(key) in (None, "", []) else _distinct(node.answers(key))


def _distinct(answers: Sequence[str]) -> tuple[str, ...]:
    """Without those that another one is, case and punctuation aside."""
    first: dict[str, str] = {}
    for answer in answers:
        first.setdefault(" ".join(words_of(answer)) or answer, answer)
    return tuple(first.values())


def _has(*keys: str) -> Callable[[Record], bool]:
    return lambda record: all(key in record for key in keys)


def _is(record: Record, key: str, kind: type) -> bool:
    return isinstance(record.get(key), kind)


def _only(*columns: str) -> Callable[[Record], Sequence[str]]:
    return lambda record: columns


FORMATS: Mapping[str, Format] = {
    "search_r1": Format(
        fits=lambda r: "golden_answers" in r or "reward_model" in r,
        read=search_r1,
        columns=lambda r: (
            "question" if "question" in r else "prompt",
            *("id", "golden_answers", "data_source", "reward_model.ground_truth"),
            *("extra_info.split", "extra_info.index", "metadata.type", "metadata.level"),
        ),
    ),
    "trivia_qa": Format(
        fits=lambda r: ("QuestionId" in r and "Question" in r) or ("question" in r and _is(r, "answer", dict)),
        read=_trivia_qa,
        columns=lambda r: [own if "Question" in r else other for own, other in list(_TRIVIA_QA.items())[:3]],
    ),
    "squad": Format(
        fits=lambda r: ("paragraphs" in r and "title" in r) or ("question" in r and _is(r, "answers", dict)),
        read=_squad,
        columns=_only("id", "question", "answers.text"),
    ),
    "2wiki": Format(
        fits=_has("question", "evidences"),
        read=hotpotqa,
        columns=_only("_id", "id", "question", "answer", "type", "supporting_facts"),
    ),
    "musique": Format(
        fits=lambda r: "question" in r and ("question_decomposition" in r or "answer_aliases" in r),
        read=musique,
        columns=_only("id", "question", "answer", "answer_aliases", "answerable"),
    ),
    "hotpotqa": Format(
        fits=lambda r: "question" in r and ("supporting_facts" in r or ("_id" in r and "context" in r)),
        read=hotpotqa,
        columns=_only("_id", "id", "question", "answer", "type", "level", "supporting_facts"),
    ),
    "popqa": Format(
        fits=_has("question", "possible_answers"),
        read=_popqa,
        columns=_only("id", "question", "possible_answers", "prop", "s_pop"),
    ),
    "bamboogle": Format(fits=_has("Question", "Answer"), read=_bamboogle, columns=_only("Question", "Answer")),
    "gsm8k": Format(
        fits=lambda r: "question" in r and _is(r, "answer", str) and "\n####" in r["answer"],
        read=_gsm8k,
        columns=_only("question", "answer"),
    ),
    "nq": Format(
        fits=lambda r: {*r} == {"question", "answer"} and _is(r, "answer", list),
        read=_nq,
        columns=_only("question", "answer"),
    ),
    "plain": Format(fits=lambda r: "question" in r, read=plain(DEFAULT_KEYS)),
}
"""By name."""


def format_of(node: Node) -> str:
    """The name of the format that a record is of. Raises DataError where it is none."""
    record = node.object()
    for name, format in FORMATS.items():
        if format.fits(record):
            return name
    keys = ", ".join(map(str, record)) or "none"
    near = did_you_mean("question", [str(key) for key in record])
    raise DataError(
        f"{node.where}: keys {keys[:200]} are of no known format ({', '.join(FORMATS)}); name yours by format, or say "
        f"which keys are question, answers and id by keys.{near}"
    )
