"""SQuAD 1.1 and 2.0 as published (Rajpurkar et al. 2016, arXiv 1606.05250; 2018, arXiv 1806.03822).

    {"version": "...", "data": [{"title": "...", "paragraphs": [{"context": "...", "qas": [
        {"id": "...", "question": "...", "answers": [{"text": "...", "answer_start": 0}, ...],
         "is_impossible": false}]}]}]}

A document is an article. An unanswerable question (2.0) is left out, or expects the answer `unanswerable`.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.records import Node, read_json


def read(source: DocumentSource) -> Iterator[Document]:
    for article in read_json(source.path).list("data"):
        title = article.text("title")
        units = tuple(_paragraph(p, source) for p in article.list("paragraphs"))
        yield Document(
            id=title,
            where=article.where,
            units=units,
            source="squad",
            split=source.split,
            keys=(f"title:{title}", *(f"text:{u.text}" for u in units)),
        )


def _paragraph(node: Node, source: DocumentSource) -> DocumentUnit:
    questions = [q for qa in node.list("qas") if (q := _question(qa, source)) is not None]
    return DocumentUnit(text=node.text("context"), questions=tuple(questions))


def _question(qa: Node, source: DocumentSource) -> Question | None:
    metric = source.metric_or("token_f1")
    texts = tuple(dict.fromkeys(answer.text("text") for answer in qa.list("answers")))
    if texts:
        return Question(text=qa.text("question"), answers=texts, metric=metric)
    if qa.object().get("is_impossible") is not True:
        qa.refuse("'answers' is empty, and 'is_impossible' is not true; give an answer or set it")
    if source.unanswerable is None:
        source.left_out["has no answer"] += 1
        return None
    return Question(text=qa.text("question"), answers=(source.unanswerable,), kind="unanswerable", metric=metric)
