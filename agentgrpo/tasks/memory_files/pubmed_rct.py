"""PubMed RCT as published (Dernoncourt and Lee 2017, arXiv 1710.06071): abstracts whose sentences have a label.

    ###24491034
    BACKGROUND<tab>The emergence of ...
    METHODS<tab>...
    <empty line>

A document is an abstract.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.records import Node, read_text


def read(source: DocumentSource) -> Iterator[Document]:
    head: Node | None = None
    units: list[DocumentUnit] = []
    for number, line in enumerate(read_text(source.path).split("\n"), start=1):
        node = Node(source.path, f"line {number}", line.strip())
        if line.startswith("###"):
            yield from _abstract(head, units, source)
            head, units = node, []
        elif node.value:
            label, tab, text = node.value.partition("\t")
            if head is None or not tab or not label.strip() or not text.strip():
                node.refuse(f"{node.value[:60]!r}; '###id', or after one 'LABEL<tab>sentence', is needed")
            units.append(DocumentUnit(text=text.strip(), label=label.strip()))
    yield from _abstract(head, units, source)


def _abstract(head: Node | None, units: list[DocumentUnit], source: DocumentSource) -> Iterator[Document]:
    if head is None:
        return
    name = head.value.removeprefix("###").strip()
    if not name or not units:
        head.refuse("an abstract without an id or without sentences; take it out")
    yield Document(
        id=name,
        where=head.where,
        units=tuple(units),
        source="pubmed-rct",
        split=source.split,
        keys=(name,),
    )
