"""One source of a mixture: its files read, its questions filtered, named and dealt to splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from agentgrpo.errors import DataError
from agentgrpo.tasks.questions.entry import Entry, nearly_same, same_question
from agentgrpo.tasks.questions.reading import Opened, Part, opened, parts_of
from agentgrpo.tasks.questions.source import Source
from agentgrpo.tasks.questions.splitting import Asked, Shares, limited
from agentgrpo.types import Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assigned:
    """A part, and the split that all of it goes to; None = where its rows say, or by chance."""

    part: Part
    split: str | None


class Intake:
    def __init__(self, name: str, source: Source, shares: Shares, *, what: str, prefix: str) -> None:
        """what: the key of the source's path, for messages. prefix: of its tasks' ids."""
        self._name, self._source, self._shares = name, source, shares
        self._what, self._prefix = what, prefix
        self._first: dict[str, str] = {}
        self._left_out: Counter[str] = Counter()
        self._formats: dict[str, str] = {}

    def asked(self) -> list[Asked]:
        """Its questions as tasks, each with its split. Raises DataError, also where none is left."""
        assigned = list(self._assigned())
        filled = {one.split for one in assigned if one.split}
        found: list[Asked] = []
        for one in assigned:
            file = opened(one.part, self._source.format, self._source.keys)
            self._formats[one.part.name] = file.name
            found += self._of(file, one.split, filled)
        if not found:
            why = "; ".join(f"{count} {reason}" for reason, count in sorted(self._left_out.items()))
            raise DataError(f"{self._what}: of '{self._source.path}' nothing is used ({why}); change its filter")
        return limited(found, self._source.limit, self._shares.seed)

    def notes(self) -> list[str]:
        """What was read and left out."""
        said = [f"{self._name}: {part} is read as {format}" for part, format in self._formats.items()]
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

    def _of(self, file: Opened, split: str | None, filled: set[str]) -> Iterator[Asked]:
        for entry in file.entries():
            same = same_question(entry)
            id = self._id(entry, same, has_own_ids=file.name == "plain")
            if reason := self._source.filter.reason_against(entry):
                self._left_out[reason] += 1
                continue
            near = nearly_same(same)
            task = Task(
                id=self._prefix + id,
                messages=(Message(role="user", content=entry.question),),
                references=entry.answers,
                metadata=entry.metadata,
                data_source=entry.data_source or self._name,
            )
            yield Asked(
                task=task,
                source=self._name,
                split=split or entry.split or self._shares.split_of(near, filled),
                same=_short(same),
                near=_short(near),
            )

    def _id(self, entry: Entry, same: str, *, has_own_ids: bool) -> str:
        """The file's own, else a hash of the question; one that was used before is refused where it is the user's, and
        numbered where it is published."""
        wanted = entry.id or _short(same)
        id, number = wanted, 1
        while id in self._first:
            if has_own_ids and entry.id:
                file, _, place = self._first[id].rpartition(", ")
                used = place if file == entry.where.rpartition(", ")[0] else f"{place} of {file}"
                raise DataError(
                    f"{entry.where}: id '{id}' was used in {used} already; ids must be unique in all files of a source"
                )
            number += 1
            id = f"{wanted}#{number}"
        self._first[id] = entry.where
        return id


def _short(text: str) -> str:
    """Instead of the text, of which there may be millions."""
    return blake2b(text.encode(), digest_size=8).hexdigest()
