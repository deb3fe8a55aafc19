"""Questions that take several documents: HotpotQA, 2WikiMultihopQA and MuSiQue."""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.tasks.questions.entry import Entry
from agentgrpo.tasks.records import Node, shown


def pairs(node: Node, *keys: str) -> Iterator[tuple[Node, Node]]:
    """[[a, b], ...] as published, or {key: [a, ...], key: [b, ...]} as the datasets library has it."""
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
    """Of the documents that the answer takes, each once."""
    return list(dict.fromkeys(title.value for title, _ in pairs(node.get("supporting_facts"), "title", "sent_id")))


def hotpotqa(node: Node) -> Iterator[Entry]:
    """HotpotQA (Yang et al. 2018, arXiv 1809.09600) and 2WikiMultihopQA (Ho et al. 2020, arXiv 2011.01060): {"_id",
    "question", "answer", "type", "level", "supporting_facts": [["title", 0], ...], "context": [...]}. Test sets have no
    answer. 2Wiki's answers by other names are in a file of their own, which is not read."""
    metadata: dict[str, object] = {key: node.text(key) for key in ("type", "level") if node.object().get(key)}
    if node.object().get("supporting_facts"):
        metadata["titles"] = supporting_titles(node)
    yield Entry(
        where=node.where,
        id=node.optional_text("_id") or node.optional_text("id"),
        question=node.text("question"),
        answers=node.answers("answer") if node.object().get("answer") else (),
        metadata=metadata,
    )


def musique(node: Node) -> Iterator[Entry]:
    """MuSiQue (Trivedi et al. 2022, arXiv 2108.00573): {"id": "2hop__...", "question", "answer", "answer_aliases":
    [...], "answerable": true, ...}. What is not answerable has no answer here."""
    answerable = node.object().get("answerable")
    if answerable not in (None, True, False):
        node.get("answerable").refuse(f"{shown(answerable)}; true or false is needed")
    id = node.optional_text("id")
    answers: tuple[str, ...] = ()
    if answerable is not False and node.object().get("answer"):
        aliases = node.answers("answer_aliases") if node.object().get("answer_aliases") else ()
        answers = tuple(dict.fromkeys((*node.answers("answer"), *aliases)))
    hops = id.partition("hop")[0][:1]
    yield Entry(
        where=node.where,
        id=id,
        question=node.text("question"),
        answers=answers,
        metadata={"hops": int(hops)} if hops.isdecimal() else {},
    )
