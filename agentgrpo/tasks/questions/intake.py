"""Read one source of a mixture: filter its questions, give them ids and deal them to splits."""

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

# --- The settings `task.sources.NAME` and `task.sources.NAME.filter`: the files of a source, and the choice of its
# rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the questions that are used. Lengths are in characters, which suits every language."""

    has_answer: bool = True
    """Use only questions with an answer: published test sets have no answers, and some questions have none."""
    max_question_chars: int | None = None
    max_answer_chars: int | None = None
    """Limit for the shortest acceptable answer."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Metadata key or data_source -> the value to use, or a list of values."""

    def reason_against(self, entry: QuestionEntry) -> str | None:
        """Say in a few words why the question is left out; None if it is used."""
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
    """Questions of one kind. Raises ConfigError for invalid settings."""

    path: str
    """A file (.jsonl, .json, .parquet, .csv, .tsv), a folder written by datasets.save_to_disk, or a hub name (from the
    local cache); PATH#PART for one part of a folder or hub data set."""
    format: str = "auto"
    """auto = recognised from the first record."""
    subset: str | None = None
    """The configuration of a hub data set."""
    split: Literal["train", "dev", "test"] | None = None
    """The split of all questions in `path`; null = as its rows or parts say, the others at random."""
    dev_path: str | None = None
    """A file or data set that is wholly dev; no question of `path` is then drawn for dev."""
    test_path: str | None = None
    weight: float | None = None
    """Share of training among the sources; 0 = only for evaluation; null for all of them = every question equally
    often."""
    limit: int | None = None
    """Maximum questions of each split; the choice stays the same when the file grows."""
    filter: Filter = field(default_factory=Filter)
    keys: Mapping[str, str] = field(default_factory=dict)
    """For format plain: the file's names for id, question and answers."""

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
    """The split that the data set names."""
    records: Callable[[Collection[str], Malformed], Iterator[Node]]
    """(columns not to read, collector of malformed rows) -> all records, from the first one."""


def parts_of(name: str, *, subset: str | None = None, what: str = "path") -> list[Part]:
    """Return the parts of the file or data set `name`. what: the setting that holds the name, for errors. Raises
    DataError if there is no such file or data set, ConfigError if a package is missing."""
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
    """The name of the format."""
    format: QuestionFormat
    columns: Columns

    def entries(self, malformed: Malformed, ids: UsedIds) -> Iterator[QuestionEntry]:
        """Yield the readable entries; a user's own id may occur only once."""

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
        """Add the fields that rows of every format may have: id, split, data_source and metadata."""
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
        """Whether the part had more than questions, answers, ids and splits; valid once its entries were read."""
        return any(self.columns.notes())

    @property
    def note(self) -> str:
        """How the part was read, for the user; valid once its entries were read."""
        return "; ".join([f"{self.part.name} is read as {self.name}", *self.columns.notes()])


_OWN = ("plain", "sharegpt", "alpaca", "openrlhf")
"""Formats whose ids are the user's own."""


_LONGEST = 2**22
"""Maximum characters of a question with its answers, about as many as a context of a million tokens holds."""


def _refuse_too_long(entry: QuestionEntry) -> None:
    """Raise DataError for an overlong entry before comparing it with others: a comparison takes a second for a few
    million characters."""
    asked = sum(len(message.content) for message in entry.messages) or len(entry.question)
    if (size := asked + sum(map(len, entry.answers))) > _LONGEST:
        raise DataError(
            f"{entry.where}: the question and its answers have {size} characters, and no model's context holds them; "
            f"at most {_LONGEST} are allowed: cut them, or take the row out"
        )


class UsedIds:
    """The ids used so far in one source."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        """Id -> position of its first use."""

    def refuse_used(self, entry: QuestionEntry) -> None:
        """Record a user's own id. Raises DataError if it was used before."""
        if entry.id in self._first:
            file, _, place = self._first[entry.id].rpartition(", ")
            used = place if file == entry.where.rpartition(", ")[0] else f"{place} of {file}"
            raise DataError(
                f"{entry.where}: id '{entry.id}' was used in {used} already; ids must be unique in all files of a "
                "source"
            )
        self._first[entry.id] = entry.where

    def numbered(self, wanted: str, where: str) -> str:
        """Record a published id, or one made from the question, and return it, with a number if it was used before."""
        id, number = wanted, 1
        while id in self._first:
            number += 1
            id = f"{wanted}#{number}"
        self._first[id] = where
        return id


def opened(part: Part, format: str = "auto", keys: Mapping[str, str] | None = None) -> Opened:
    """Open a part. format: its name, or auto = recognised from the first record. keys: renamed keys of format plain.
    Raises DataError for an empty part, and for records of no known format."""
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
    """A part, and the split of all its questions; None = as its rows say, or at random."""

    part: Part
    split: str | None


class Intake:
    def __init__(self, name: str, source: QuestionSource, shares: Shares, *, what: str, prefix: str) -> None:
        """what: the setting of the source's path, for errors. prefix: the beginning of its tasks' ids."""
        self._name, self._source, self._shares = name, source, shares
        self._what, self._prefix = what, prefix
        self._ids = UsedIds()
        self._left_out: Counter[str] = Counter()
        self._files: list[Opened] = []
        self._has_held_out = False
        """Some rows name dev or test as their split."""

    def asked(self, malformed: Malformed) -> list[Asked]:
        """Return the source's questions as tasks with their splits; malformed rows are collected in `malformed`. Raises
        DataError, also if no question is left."""
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
            raise DataError(f"{self._what}: no question of '{self._source.path}' is used ({why}); change its filter")
        asked = [replace(one, split="train") if is_train and self._has_held_out else one for one, is_train in found]
        return limited(asked, self._source.limit, self._shares.seed)

    def notes(self) -> list[str]:
        """Notes on the rows that were read and left out."""
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
        """Yield each question, and whether it is a published training row that nothing else assigns to a split."""
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
    """Hash a text, to save memory: there may be millions of them."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


# --- Corpora for retrievers that do not bring their own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    passages: Mapping[str, Sequence[Passage]]
    """Passages by the name of their retriever: vdb, web."""
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
    """corpus, web_corpus: rows {"id", "text", "title"?, "url"?}, renamed by `keys`; malformed rows are collected in
    `malformed`. thesaurus: a JSON object {query word: [words that documents use instead]} for the reranker. Raises
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
