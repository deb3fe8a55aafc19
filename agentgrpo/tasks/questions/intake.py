"""One source of a mixture: its files read, its questions filtered, named and dealt to splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Literal

from agentgrpo.core.errors import ConfigError, DataError, did_you_mean
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.questions.columns import Columns
from agentgrpo.tasks.questions.formats import (
    FORMATS,
    QuestionEntry,
    QuestionFormat,
    format_of,
    id_of,
    nearly_same,
    plain,
    same_question,
    source_of,
)
from agentgrpo.tasks.questions.splitting import Asked, Shares, limited
from agentgrpo.tasks.records import Node, read_passages, read_records, read_thesaurus, rows_of
from agentgrpo.tasks.tables import is_stored, stored_parts

# --- The nodes `task.sources.NAME` and `task.sources.NAME.filter`: the files of a source, and the choice of its rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which questions are used. It counts characters, so that it knows no language."""

    has_answer: bool = True
    """Only with an answer: test sets are published without, and some questions have none."""
    max_question_chars: int | None = None
    max_answer_chars: int | None = None
    """Of the shortest acceptable answer."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Metadata key, or data_source -> the value that is used, or a list of them."""

    def reason_against(self, entry: QuestionEntry) -> str | None:
        """Why it is left out, in a few words; None where it is used."""
        if self.has_answer and not entry.answers:
            return "no answer"
        if self.max_question_chars is not None and len(entry.question) > self.max_question_chars:
            return "question too long"
        if self.max_answer_chars is not None and min(map(len, entry.answers), default=0) > self.max_answer_chars:
            return "answer too long"
        for key, wanted in self.where.items():
            given = entry.data_source if key == "data_source" else entry.metadata.get(key)
            if given not in (wanted if isinstance(wanted, list | tuple) else [wanted]):
                return f"another {key}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSource:
    """Questions of one kind. Raises ConfigError for what cannot be meant."""

    path: str
    """A file (.jsonl, .json, .parquet, .csv, .tsv), a folder as datasets.save_to_disk writes it, or a name of the hub
    (from the local cache); PATH#PART for one part of those two."""
    format: str = "auto"
    """auto = as the first record looks."""
    subset: str | None = None
    """The configuration of a name of the hub."""
    split: Literal["train", "dev", "test"] | None = None
    """Where all of `path` goes; null = where its rows or parts say, the others by chance."""
    dev_path: str | None = None
    """What is wholly dev; nothing of `path` then goes there by chance."""
    test_path: str | None = None
    weight: float | None = None
    """Share of training among the sources; 0 = only for evaluation; null for all of them = every question equally
    often."""
    limit: int | None = None
    """Questions of each split at most, the same ones when the file grows."""
    filter: Filter = field(default_factory=Filter)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of format plain: what id, question and answers are called there."""

    def __post_init__(self) -> None:
        if self.format not in ("auto", *FORMATS):
            raise ConfigError(
                f"format={self.format}; auto, {', '.join(FORMATS)} are allowed.{did_you_mean(self.format, FORMATS)}"
            )
        if self.keys and self.format not in ("auto", "plain"):
            raise ConfigError(f"keys={dict(self.keys)} with format={self.format}; only plain has keys to rename")
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError(f"weight={self.weight}; a finite number >= 0 is allowed, or null")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit={self.limit}; 1 or more is allowed, or null")


# --- From the name of a file or data set to its questions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Records that belong together: a file, or a part of a data set."""

    name: str
    split: str | None
    """Where the data set says that it belongs."""
    records: Callable[[Collection[str], Malformed], Iterator[Node]]
    """Columns that are not read, and what takes rows that cannot be read -> the records, from the first one on."""


def parts_of(name: str, *, subset: str | None = None, what: str = "path") -> list[Part]:
    """What `name` holds. what: the key that says it, for messages. Raises DataError where there is nothing, ConfigError
    for a package that is missing."""
    if is_stored(name):
        return [
            Part(
                name=part.name,
                split=part.split,
                records=lambda without, malformed, part=part: malformed.to_the_end(  # type: ignore[misc]
                    rows_of(Path(part.name), part.table, without)
                ),
            )
            for part in stored_parts(name, subset)
        ]
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"{what}: '{name}' is not a file; give the path of one, or a data set as NAMESPACE/NAME")
    return [Part(name=name, split=None, records=partial(read_records, path))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A part whose format is known."""

    part: Part
    name: str
    """Of the format."""
    format: QuestionFormat
    columns: Columns

    def entries(self, malformed: Malformed, ids: UsedIds) -> Iterator[QuestionEntry]:
        """Those that can be read; an id of the user's own counts once."""

        def read(node: Node) -> list[QuestionEntry]:
            found = [self._whole(entry, (entry.row or node).filled()) for entry in self.format.read(node)]
            for entry in found:
                _refuse_too_long(entry)
                if self.name in _OWN and entry.id:
                    ids.refuse_used(entry)
            return found

        for found in malformed.spare(read, self.part.records(self.columns.unread, malformed)):
            yield from found

    def _whole(self, entry: QuestionEntry, row: Node) -> QuestionEntry:
        """With what rows of every format may say."""
        id, naming = (entry.id, "") if entry.id else id_of(row)
        source = source_of(row)
        read = {*(entry.read or self.format.reads), naming, *(["data_source"] if source else [])}
        self.columns.hear(entry.note)
        return replace(
            entry,
            id=id,
            split=row.split(entry.split),
            data_source=source,
            metadata={**entry.metadata, **self.columns.handed_on(row, read)},
        )

    @property
    def has_more(self) -> bool:
        """Whether there was something in it besides questions, answers, ids and splits; once its entries were read."""
        return any(self.columns.notes())

    @property
    def note(self) -> str:
        """What was made of it; once its entries were read."""
        return "; ".join([f"{self.part.name} is read as {self.name}", *self.columns.notes()])


_OWN = ("plain", "sharegpt", "alpaca", "openrlhf")
"""Formats whose ids are the user's own."""


_LONGEST = 2**22
"""Characters; a context of a million tokens holds about as many."""


def _refuse_too_long(entry: QuestionEntry) -> None:
    """Before it is compared with the others, which takes a second for some million characters."""
    asked = sum(len(message.content) for message in entry.messages) or len(entry.question)
    if (size := asked + sum(map(len, entry.answers))) > _LONGEST:
        raise DataError(
            f"{entry.where}: the question and its answers have {size} characters, and no model's context holds them; "
            f"at most {_LONGEST} are allowed: cut them, or take the row out"
        )


class UsedIds:
    """Of one source."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        """Id -> where it was used."""

    def refuse_used(self, entry: QuestionEntry) -> None:
        """For an id of the user's own. Raises DataError."""
        if entry.id in self._first:
            file, _, place = self._first[entry.id].rpartition(", ")
            used = place if file == entry.where.rpartition(", ")[0] else f"{place} of {file}"
            raise DataError(
                f"{entry.where}: id '{entry.id}' was used in {used} already; ids must be unique in all files of a "
                "source"
            )
        self._first[entry.id] = entry.where

    def numbered(self, wanted: str, where: str) -> str:
        """For one that is published, or made of the question: numbered where it was used before."""
        id, number = wanted, 1
        while id in self._first:
            number += 1
            id = f"{wanted}#{number}"
        self._first[id] = where
        return id


def opened(part: Part, format: str = "auto", keys: Mapping[str, str] | None = None) -> Opened:
    """format: auto = as the first record looks, or the name of the one it is said to be; keys: of plain, what is called
    otherwise. Raises DataError for an empty part, and for records of no known format."""
    malformed = Malformed()
    first = next(part.records((), malformed), None)
    if first is None:
        malformed.refuse()
        raise DataError(f"'{part.name}' has no questions; give a file of at least one record")
    if keys:
        name, found = "plain", QuestionFormat(fits=lambda _: True, read=plain(keys))
    else:
        name = format_of(first) if format == "auto" else format
        found = FORMATS[name]
    return Opened(part=part, name=name, format=found, columns=Columns(found.large, first.object()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assigned:
    """A part, and the split that all of it goes to; None = where its rows say, or by chance."""

    part: Part
    split: str | None


class Intake:
    def __init__(self, name: str, source: QuestionSource, shares: Shares, *, what: str, prefix: str) -> None:
        """what: the key of the source's path, for messages. prefix: of its tasks' ids."""
        self._name, self._source, self._shares = name, source, shares
        self._what, self._prefix = what, prefix
        self._ids = UsedIds()
        self._left_out: Counter[str] = Counter()
        self._files: list[Opened] = []
        self._has_held_out = False
        """Some rows say that they belong to dev or test."""

    def asked(self, malformed: Malformed) -> list[Asked]:
        """Its questions as tasks, each with its split; rows that cannot be read go to `malformed`. Raises DataError,
        also where none is left."""
        assigned = list(self._assigned())
        filled = {one.split for one in assigned if one.split}
        found: list[tuple[Asked, bool]] = []
        for one in assigned:
            file = opened(one.part, self._source.format, self._source.keys)
            self._files.append(file)
            found += self._of(file, one.split, filled, malformed)
        if not found:
            malformed.refuse()
            why = "; ".join(f"{count} {reason}" for reason, count in sorted(self._left_out.items()))
            raise DataError(f"{self._what}: of '{self._source.path}' nothing is used ({why}); change its filter")
        asked = [replace(one, split="train") if is_train and self._has_held_out else one for one, is_train in found]
        return limited(asked, self._source.limit, self._shares.seed)

    def notes(self) -> list[str]:
        """What was read and left out."""
        said = [f"{self._name}: {file.note}" for file in self._files]
        return said + [f"{self._name}: {n} left out: {reason}" for reason, n in sorted(self._left_out.items())]

    def _assigned(self) -> Iterator[_Assigned]:
        source = self._source
        for part in parts_of(source.path, subset=source.subset, what=self._what):
            yield _Assigned(part=part, split=source.split or (part.split if part.split != "train" else None))
        for split, path in (("dev", source.dev_path), ("test", source.test_path)):
            if path is not None:
                what = f"{self._what.removesuffix('path')}{split}_path"
                for part in parts_of(path, subset=source.subset, what=what):
                    yield _Assigned(part=part, split=split)

    def _of(
        self, file: Opened, split: str | None, filled: set[str], malformed: Malformed
    ) -> Iterator[tuple[Asked, bool]]:
        """With whether its row says that it is of a training set, and nothing else assigns it."""
        for entry in file.entries(malformed, self._ids):
            same = same_question(entry)
            has_own = file.name in _OWN and entry.id
            id = entry.id if has_own else self._ids.numbered(entry.id or _short(same), entry.where)
            if reason := self._source.filter.reason_against(entry):
                self._left_out[reason] += 1
                continue
            near = nearly_same(same)
            self._has_held_out |= split is None and entry.split in ("dev", "test")
            task = Task(
                id=self._prefix + id,
                messages=entry.messages or (Message(role="user", content=entry.question),),
                references=entry.answers,
                metadata=entry.metadata,
                data_source=entry.data_source or self._name,
                is_messages=bool(entry.messages),
            )
            assigned = split or entry.split
            asked = Asked(
                task=task,
                source=self._name,
                split=assigned or self._shares.split_of(near, filled),
                same=_short(same),
                near=_short(near),
            )
            yield asked, entry.is_published_train and assigned is None


def _short(text: str) -> str:
    """Instead of the text, of which there may be millions."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


# --- What the questions are answered from, where a retriever does not bring its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    passages: Mapping[str, Sequence[Passage]]
    """By the name of their retriever: vdb, web."""
    thesaurus: Mapping[str, Sequence[str]]
    fingerprint: tuple[str, ...]


def corpora_of(
    corpus: str | None,
    web_corpus: str | None,
    thesaurus: str | None,
    *,
    keys: Mapping[str, str],
    malformed: Malformed,
) -> Corpora:
    """corpus, web_corpus: rows {"id", "text", "title"?, "url"?}, or as `keys` calls these; those that cannot be read go
    to `malformed`. thesaurus: a JSON object {query word: [words that documents use instead]} for the reranker. Raises
    DataError, and ConfigError for a web corpus alone."""
    if corpus is None and web_corpus is not None:
        raise ConfigError(f"task.web_corpus={web_corpus} without task.corpus; give both, or only task.corpus")
    given = {"vdb": corpus, "web": web_corpus}
    passages = {name: read_passages(path, keys, malformed) for name, path in given.items() if path is not None}
    files = {**given, "thesaurus": thesaurus}
    return Corpora(
        passages=passages,
        thesaurus=read_thesaurus(thesaurus) if thesaurus is not None else {},
        fingerprint=tuple(f"{name}={_digest(path)}" for name, path in files.items() if path is not None),
    )


def _digest(path: str) -> str:
    with Path(path).expanduser().open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
