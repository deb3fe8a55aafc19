"""HotpotQA as published, such as hotpot_dev_distractor_v1.json (Yang et al. 2018, arXiv 1809.09600).

    [{"_id": "...", "question": "...", "answer": "...", "type": "bridge", "level": "hard",
      "supporting_facts": [["title", 0], ...], "context": [["title", ["sentence", ...]], ...]}, ...]

Rows as the datasets library writes them ("id", {"title": [...], "sentences": [...]}) are accepted too, in a .json list
or as JSON lines.
A document is a row; rows may share paragraphs, see building.own_paragraphs.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.questions.formats import pairs, supporting_titles
from agentgrpo.tasks.records import Node, read_records, shown


def read(source: DocumentSource) -> Iterator[Document]:
    for row in read_records(source.path):
        kind = row.optional_text("type")
        question = Question(
            text=row.text("question"),
            answers=row.answers("answer"),
            kind=kind,
            metric=source.metric_or("token_f1"),
        )
        supporting = {*supporting_titles(row)}
        units = tuple(
            DocumentUnit(text=f"{title.value}\n{text}", is_needed=title.value in supporting)
            for title, sentences in pairs(row.get("context"), "title", "sentences")
            if (text := _text(sentences))
        )
        if not units:
            row.get("context").refuse("no paragraphs; use the file of the distractor setting")
        yield Document(
            id=row.text("_id" if row.has("_id") else "id"),
            where=row.where,
            units=units,
            questions=(question,),
            source="hotpotqa",
            split=source.split,
        )


def _text(sentences: Node) -> str:
    """Join the sentences; each after the first begins with its space."""
    texts = list(sentences.elements())
    for node in texts:
        if not isinstance(node.value, str):
            node.refuse(f"{shown(node.value)}; a text is needed")
    return "".join(node.value for node in texts).strip()
