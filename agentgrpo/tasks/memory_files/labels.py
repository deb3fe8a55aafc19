"""Texts with labels (the label-learning sets of Mem-alpha), by the ending of the file:

    .label, .txt   TREC (Li and Roth 2002): "DESC:manner How did serfdom develop ?"
    .csv, .tsv     a header with text and label, as BANKING77 (text,category) has it; or that of the NLU evaluation data
                   (Liu et al. 2019): userid;answerid;scenario;intent;...;answer_normalised;answer;...
    .json          CLINC150 (Larson et al. 2019): {"train": [["text", "label"], ...], "val", "test", "oos_train", ...}
    .jsonl         {"text": "...", "label": "..."}

A document is an example; equal texts are in the same split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgrpo.core.errors import ConfigError
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.memory_files.jsonl import digest_of
from agentgrpo.tasks.records import Node, kind_of, read_json, read_records, read_table, read_text

_TREC = re.compile(r"([^\s:]+):(\S+)\s+(\S.*)")
_TEXTS, _LABELS = ("text", "sentence", "utterance", "query", "question"), ("label", "category", "intent")
_CLINC_SPLITS = {"train": "train", "val": "dev", "test": "test"}

Example = tuple[Node, str, str, str, str | None]
"""(position, text, label, coarse label or "", split)."""


def read(source: DocumentSource) -> Iterator[Document]:
    by_ending = {".label": _trec, ".txt": _trec, ".csv": _table, ".tsv": _table, ".json": _clinc}
    for node, text, label, coarse, split in by_ending.get(kind_of(source.path), _rows)(source):
        if source.label_level == "coarse" and not coarse:
            raise ConfigError(
                f"task.label_level=coarse, but {node.where} has one label only; TREC and the NLU evaluation data have "
                "two levels: take task.label_level=fine"
            )
        key = " ".join(text.casefold().split())
        yield Document(
            id=f"example-{digest_of([key])}",
            where=node.where,
            units=(DocumentUnit(text=text, label=coarse if source.label_level == "coarse" else label),),
            source="labels",
            split=split or source.split,
            keys=(key,),
        )


def _trec(source: DocumentSource) -> Iterator[Example]:
    # the published training file has a byte that is not UTF-8
    for number, line in enumerate(read_text(source.path, "latin-1").split("\n"), start=1):
        if line.strip():
            node = Node(source.path, f"line {number}", line)
            match = _TREC.match(line.strip())
            if match is None:
                node.refuse(f"{line.strip()[:60]!r}; 'LABEL:fine text' is needed, such as 'NUM:date When was it ?'")
            coarse, fine, text = match.groups()
            yield node, text, f"{coarse}:{fine}", coarse, None


def _table(source: DocumentSource) -> Iterator[Example]:
    for row in read_table(source.path, read_text(source.path)):
        columns = row.object()
        if {"scenario", "intent", "answer"} <= columns.keys():
            text = row.optional_text("answer_normalised") or row.optional_text("answer")
            coarse = row.optional_text("scenario")
            label = f"{coarse}_{row.optional_text('intent')}"
            if not text or not coarse:
                source.left_out["has no text or no label"] += 1
                continue
        else:
            keys = [next((key for key in names if key in columns), None) for names in (_TEXTS, _LABELS)]
            if keys[0] is None or keys[1] is None:
                row.refuse(
                    f"the header has {', '.join(map(str, columns))}; one of {', '.join(_TEXTS)} and one of "
                    f"{', '.join(_LABELS)} are needed: rename the columns"
                )
            text, label, coarse = row.text(keys[0]), row.text(keys[1]), ""
        yield row, text, label, coarse, None


def _clinc(source: DocumentSource) -> Iterator[Example]:
    for name, examples in read_json(source.path).members():
        split = _CLINC_SPLITS.get(name.removeprefix("oos_"))
        if split is None:
            examples.refuse(f"'{name}'; train, val, test and the same with oos_ before it are allowed")
        for node in examples.elements():
            pair = list(node.elements())
            if len(pair) != 2:
                node.refuse(f"a list of {len(pair)}; [text, label] is needed")
            yield node, pair[0].string(), pair[1].string(), "", split


def _rows(source: DocumentSource) -> Iterator[Example]:
    for row in read_records(source.path):
        label = row.optional_text("label") or row.text("label")
        yield row, row.text("text"), label, "", row.split(None)
