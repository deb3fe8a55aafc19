"""PersonaMem as published (Jiang et al. 2025, arXiv 2504.14225): questions_32k.csv, and shared_contexts_32k.jsonl
(task.contexts).

    questions: columns question_id, question_type, user_question_or_message (in the first version: question),
               correct_answer "(c)", all_options "['(a) ...', '(b) ...', ...]", shared_context_id,
               end_index_in_shared_context, persona_id; or JSON lines with the same keys
    contexts:  {"<shared_context_id>": [{"role": "user", "content": "..."}, ...]}

A document is the conversation before a question: the messages up to end_index_in_shared_context. All documents about
one persona go to one split.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from string import ascii_lowercase

from agentgrpo.core.errors import ConfigError
from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource
from agentgrpo.tasks.memory_files.jsonl import messages
from agentgrpo.tasks.records import Node, kind_of, read_records, read_table, read_text, shown

_OPTION = re.compile(r"\s*\(([a-zA-Z])\)\s*(\S.*)", re.DOTALL)
_QUESTIONS = ("user_question_or_message", "question")


def read(source: DocumentSource) -> Iterator[Document]:
    if source.contexts is None:
        raise ConfigError("task.format=personamem needs task.contexts, such as shared_contexts_32k.jsonl")
    contexts = {key: node for row in read_records(source.contexts) for key, node in row.members()}
    is_table = kind_of(source.path) == ".csv"
    rows = read_table(source.path, read_text(source.path)) if is_table else read_records(source.path)
    asked: dict[tuple[str, int], list[Node]] = {}
    for row in rows:
        context, end = row.text("shared_context_id"), _end(row)
        if context not in contexts:
            row.refuse(
                f"'shared_context_id' is '{context}', which {source.contexts} does not have; take the contexts of the "
                "same length"
            )
        asked.setdefault((context, end), []).append(row)
    for (context, end), about in asked.items():
        whole = contexts[context]
        if not isinstance(whole.value, list):
            whole.refuse(f"{shown(whole.value)}; a list of messages is needed")
        units = tuple(messages(Node(whole.path, whole.at, whole.value[:end])))
        if not units:
            about[0].refuse(f"no message with a text before {end}; check end_index_in_shared_context")
        yield Document(
            id=f"{context}@{end}",
            where=about[0].where,
            units=units,
            questions=tuple(_question(row, source) for row in about),
            source="personamem",
            split=source.split,
            keys=(f"context:{context}", *(f"persona:{p}" for row in about if (p := row.optional_text("persona_id")))),
            is_chat=True,
        )


def _end(row: Node) -> int:
    text = row.optional_text("end_index_in_shared_context")
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        row.refuse(f"'end_index_in_shared_context' is {shown(text)}; a count of messages above 0 is needed")
    return int(text)


def _question(row: Node, source: DocumentSource) -> Question:
    options = _options(row)
    letter = row.text("correct_answer").strip("() ").lower()
    if letter not in options:
        given = row.object()["correct_answer"]
        row.refuse(f"'correct_answer' is {shown(given)}; {', '.join(f'({known})' for known in options)} are there")
    return Question(
        text=row.text(next((key for key in _QUESTIONS if row.has(key)), _QUESTIONS[0])),
        answers=(options[letter],),
        kind=row.optional_text("question_type"),
        metric=source.metric_or("choice"),
        options=tuple(options.values()),
    )


def _options(row: Node) -> dict[str, str]:
    """Option texts by letter. The CSV has the list in Python syntax."""
    given = row.object().get("all_options")
    if isinstance(given, str):
        try:
            given = ast.literal_eval(given.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            given = row.object()["all_options"]
    matches = [_OPTION.fullmatch(option) if isinstance(option, str) else None for option in given or ()]
    found = {m[1].lower(): m[2].strip() for m in matches if m}
    if not isinstance(given, list) or not found or "".join(found) != ascii_lowercase[: len(given)]:
        row.refuse(f"'all_options' is {shown(given)}; a list such as ['(a) ...', '(b) ...'] is needed, in that order")
    return found
