"""Rows of Mem-alpha's data sets (Wang et al. 2025, arXiv 2509.25911; Memalpha and Memalpha-Memoryagentbench), exported
from parquet to JSON lines or a JSON list:

    {"chunks": "[\\"...\\", ...]", "questions_and_answers": "[{\\"question\\": ..., \\"answer\\": ...}, ...]",
     "data_source": "squad", "instance_id": 0, "prompt": "...", "metadata": "{...}", ...}

`chunks` and `questions_and_answers` are lists, or lists written as JSON text, as in the published files. Answers are
graded as in Mem-alpha, by data source: keywords separated by "," (booksum, infbench_sum) or, if there are several, by
";" (perltqa), and numbers of labels (exact_match); any other answer must contain the reference (contains). lme_train,
which Mem-alpha grades by a language model, is compared word by word (token_f1); task.metric=llm uses a judge of that
name instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.memory_files.jsonl import digest_of
from agentgrpo.tasks.memory_files.summary import keywords_of
from agentgrpo.tasks.records import Node, read_records

_SUMMARIES = ("booksum", "infbench_sum")


def read(source: DocumentSource) -> Iterator[Document]:
    for row in read_records(source.path):
        data_source = row.text("data_source")
        units = tuple(DocumentUnit(text=chunk.string()) for chunk in _list(row, "chunks"))
        asked = list(_list(row, "questions_and_answers"))
        if not units or not asked:
            row.refuse(f"{len(units)} chunks and {len(asked)} questions; at least one of each is needed")
        # the name ttl_train, unlike MemoryAgentBench's names, does not tell that answers are labels: labels are numbers
        is_labels = all(_is_number(qa.object().get("answer")) for qa in asked)
        yield Document(
            id=f"{data_source}-{digest_of([u.text for u in units])}",
            where=row.where,
            units=units,
            questions=tuple(_question(qa, data_source, is_labels, source) for qa in asked),
            source=data_source,
            split=row.split(source.split),
            keys=tuple(f"text:{u.text}" for u in units),
            is_chunked=True,
        )


def _is_number(answer: object) -> bool:
    first = answer[0] if isinstance(answer, list) and answer else answer
    return isinstance(first, str | int) and not isinstance(first, bool) and str(first).strip().isdecimal()


def _list(row: Node, key: str) -> Iterator[Node]:
    node = row.get(key)
    if isinstance(node.value, str):
        try:
            node = Node(row.path, node.at, json.loads(node.value))
            json.dumps(node.value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as e:
            node.refuse(f"a text that is not valid JSON ({e}); export the published file again")
    yield from node.elements()


def _question(qa: Node, data_source: str, is_labels: bool, source: DocumentSource) -> Question:
    if data_source.startswith(_SUMMARIES):
        answers, own = keywords_of(qa, "answer"), "keywords"
    elif data_source == "perltqa" and ";" in qa.answers("answer")[0]:
        answers, own = keywords_of(qa, "answer", ";"), "keywords"
    else:
        answers = qa.answers("answer")
        own = "exact_match" if is_labels else "token_f1" if data_source == "lme_train" else "contains"
    return Question(text=qa.text("question"), answers=answers, kind=data_source, metric=source.metric_or(own))
