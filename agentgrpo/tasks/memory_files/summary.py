"""Texts to be summarised, such as BookSum's chapters, graded by the keywords that an answer contains (Mem-alpha).

    {"text": "...", "keywords": ["...", ...], "summary"?: "...", "title"?: "...", "group"?: "...", "id"?, "split"?}

in a .json list or as JSON lines. `keywords` may be one text with commas, as in Mem-alpha; without keywords the answer
is compared with the `summary` (token_f1), a text or BookSum's list of {"text": ...}. Chapters of one book share the
group: "group", else "book_title", "bid" or "book_id". A document is a row.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.memory_files.jsonl import digest_of
from agentgrpo.tasks.records import Node, read_records

_GROUPS = ("group", "book_title", "bid", "book_id")


def read(source: DocumentSource) -> Iterator[Document]:
    for row in read_records(source.path):
        text = row.text("text")
        title = row.optional_text("title") or row.optional_text("book_title")
        group = next((g for key in _GROUPS if (g := row.optional_text(key))), "")
        yield Document(
            id=row.optional_text("id") or f"text-{digest_of([text])}",
            where=row.where,
            units=(DocumentUnit(text=text),),
            questions=(_question(row, title, source),),
            source="summary",
            split=row.split(source.split),
            keys=(f"text:{digest_of([text])}", *([f"group:{group}"] if group else [])),
            metadata={"title": title} if title else {},
        )


def _question(row: Node, title: str, source: DocumentSource) -> Question:
    text = row.optional_text("question") or (
        "Summarize " + (f"what was read of {title}." if title else "what was read.")
    )
    if row.has("keywords"):
        return Question(
            text=text, answers=keywords_of(row, "keywords"), kind="summary", metric=source.metric_or("keywords")
        )
    if not row.has("summary"):
        row.refuse("neither 'keywords' nor 'summary'; give one to grade answers with")
    written = row.get("summary")
    if isinstance(written.value, list):
        summaries = tuple(s.text("text") if isinstance(s.value, dict) else s.string() for s in written.elements())
    else:
        summaries = (written.string(),)
    if not summaries:
        written.refuse("an empty list; at least one summary is needed")
    return Question(text=text, answers=summaries, kind="summary", metric=source.metric_or("token_f1"))


def keywords_of(node: Node, key: str, separator: str = ",") -> tuple[str, ...]:
    """Keywords from a list of texts, or from one text with separators; each once."""
    given = node.answers(key)
    words = [part.strip() for text in given for part in (text.split(separator) if len(given) == 1 else [text])]
    found: dict[str, str] = {}
    for word in filter(None, words):
        found.setdefault(word.casefold(), word)
    if not found:
        node.refuse(f"'{key}' holds separators only; give at least one word")
    return tuple(found.values())
