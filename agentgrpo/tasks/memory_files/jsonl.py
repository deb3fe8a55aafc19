"""A user's own conversations or documents with questions about them, as JSON lines or a JSON list.

    {"chunks": ["...", ...], "questions": [{"question": "...", "answers": ["..."]}, ...]}
    {"messages": [{"role": "user", "content": "..."}, ...], "questions": [...]}

Further keys of a row: "id", "split" (train, dev, test), "group" (rows of one group, such as a user or a continued chat,
go to one split), "data_source", "facts" (agentgrpo.tasks.dialogue; only with "chunks"); others become the task's
metadata.
Keys of a question: "answer" or "answers", "kind", "metric", "options". Keys of a message: "name", "speaker", "from" or
"role"; "content", "text" or "value"; "time", "timestamp" or "date".
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from agentgrpo.tasks.dialogue import Fact, Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.records import Node, read_records, shown

_OWN = frozenset({"id", "split", "group", "data_source", "facts", "chunks", "messages", "questions"})
_SPEAKERS, _CONTENTS, _TIMES = (
    ("name", "speaker", "from", "role"),
    ("content", "text", "value"),
    ("time", "timestamp", "date"),
)


def read(source: DocumentSource) -> Iterator[Document]:
    lines: dict[str, str] = {}
    for row in read_records(source.path):
        document = _document(row, source)
        if row.has("id"):
            if document.id in lines:
                row.refuse(f"id '{document.id}' was used in {lines[document.id]} already; ids must be unique")
            lines[document.id] = row.at
        yield document


def _document(row: Node, source: DocumentSource) -> Document:
    is_chat = row.has("messages")
    if is_chat == row.has("chunks"):
        row.refuse("give it 'chunks', a list of texts, or 'messages', a list of chat turns, and not both")
    units = tuple(messages(row.get("messages"))) if is_chat else tuple(_chunks(row))
    if not units:
        row.refuse("nothing to read: none of its chunks or messages has a text")
    questions = tuple(question(q, source.metric_or("token_f1")) for q in row.list("questions"))
    if not questions:
        row.refuse("'questions' is empty; at least one is needed, or take the row out")
    texts = digest_of([unit.text for unit in units])
    group = row.optional_text("group")
    return Document(
        id=row.optional_text("id") or f"row-{texts}",
        where=row.where,
        units=units,
        questions=questions,
        source=row.optional_text("data_source") or source.path.stem,
        split=row.split(source.split),
        keys=(f"text:{texts}", *([f"group:{group}"] if group else [])),
        is_chunked=not is_chat,
        is_chat=is_chat,
        facts=_facts(row, len(units)) if row.has("facts") else None,
        metadata={key: value for key, value in row.object().items() if key not in _OWN},
    )


def digest_of(texts: list[str]) -> str:
    return blake2b(repr(texts).encode(), digest_size=6).hexdigest()


def _chunks(row: Node) -> Iterator[DocumentUnit]:
    for chunk in row.list("chunks"):
        yield DocumentUnit(text=chunk.string())


def messages(node: Node) -> Iterator[DocumentUnit]:
    """Yield chat turns as "speaker: text"; a turn without text, such as a bare tool call, is skipped."""
    for message in node.elements():
        if text := _content(message):
            speaker = next((s for key in _SPEAKERS if (s := message.optional_text(key))), "")
            if not speaker:
                message.refuse(f"no speaker; give one of {', '.join(_SPEAKERS)}")
            time = next((t for key in _TIMES if (t := message.optional_text(key))), "")
            said = text if text.lower().startswith(f"{speaker.lower()}:") else f"{speaker}: {text}"
            yield DocumentUnit(text=f"[{time}] {said}" if time else said)


def _content(message: Node) -> str:
    key = next((key for key in _CONTENTS if key in message.object()), None)
    if key is None:
        message.refuse(f"no text; give one of {', '.join(_CONTENTS)}")
    if isinstance(message.object()[key], list):  # content parts as in OpenAI's API; images have no text
        return "\n".join(text for part in message.list(key) if (text := part.optional_text("text")))
    return message.optional_text(key)


def question(node: Node, metric: str) -> Question:
    options = tuple(option.string() for option in node.list("options")) if node.has("options") else ()
    return Question(
        text=node.text("question"),
        answers=node.answers("answers", "answer"),
        kind=node.optional_text("kind"),
        metric=node.optional_text("metric") or ("choice" if options else metric),
        options=options,
    )


def _facts(row: Node, num_chunks: int) -> tuple[tuple[Fact, ...], ...]:
    facts = tuple(tuple(_fact(fact) for fact in chunk.elements()) for chunk in row.list("facts"))
    if row.has("messages") or len(facts) != num_chunks:
        row.refuse(f"'facts' has {len(facts)} lists; one for each of 'chunks' is needed, or leave it out")
    return facts


def _fact(node: Node) -> Fact:
    op = node.text("op")
    if op not in ("insert", "update", "delete"):
        node.refuse(f"'op' is {shown(op)}; insert, update, delete are allowed")
    return Fact(op=op, key=node.text("key"), text=node.optional_text("text"))
