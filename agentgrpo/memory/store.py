"""A memory that sampled calls write: what it holds, and how it came to hold it.

    call --request_of--> Request --Memory.apply--> Change, appended to `history`, from which everything else follows

An entry is identified by its kind and text, as no two of one kind have the same; ids are what the policy calls it by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentgrpo.durable import write_atomic
from agentgrpo.errors import DataError
from agentgrpo.memory.base import Applied, Change, Entry
from agentgrpo.memory.kept import VERSION, Unusable, changes_of, read, request_again, schema_of, written
from agentgrpo.memory.request import Refused, Request, request_of, shown
from agentgrpo.memory.schema import CORE, DELETE, INSERT, SKIP, Schema, key_of, prefix_of
from agentgrpo.protocol import AnyCall
from agentgrpo.types import Outcome, Passage


@dataclass(frozen=True, slots=True)
class _Held:
    entry: Entry
    num_tokens: int


class Memory:
    """Equal memories have the same schema and history, and so the same entries and the same next ids."""

    def __init__(
        self,
        schema: Schema,
        count_tokens: Callable[[str], int],
        *,
        core_tokens: int = 512,
        entry_tokens: int | None = None,
    ) -> None:
        """count_tokens: of one text, by the tokenizer that limits and figures are meant in. core_tokens: at most these
        in the core paragraph. entry_tokens: at most these in an entry; None = any number."""
        self.schema = schema
        self.count_tokens = count_tokens
        self.core_tokens, self.entry_tokens = core_tokens, entry_tokens
        self._history: list[Change] = []
        self._held: dict[tuple[str, str], _Held] = {}  # by kind and text, in order of last writing
        self._core: _Held | None = None
        self._num_ids: Counter[str] = Counter()
        self._num_tokens = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Without the core paragraph, in order of last writing: the newest last."""
        return tuple(held.entry for held in self._held.values())

    @property
    def core(self) -> Entry | None:
        """The core paragraph; None until it is written, and of schemas without one."""
        return None if self._core is None else self._core.entry

    @property
    def history(self) -> tuple[Change, ...]:
        """Every change, in order."""
        return tuple(self._history)

    @property
    def num_tokens(self) -> int:
        """Of the texts of all entries and of the core paragraph, each counted alone."""
        return self._num_tokens

    def passages(self) -> tuple[Passage, ...]:
        """What a reader reads: the core paragraph, then the entries in order of last writing. title = kind."""
        documents = (*([self._core.entry] if self._core else ()), *self.entries)
        return tuple(Passage(id=e.id, text=e.text, title=e.kind) for e in documents)

    def apply(self, call: AnyCall, *, chunk: int) -> Applied:
        """Do what the policy asks while it reads `chunk` (from 0). Never raises for what a call holds: see Applied."""
        try:
            request = request_of(self.schema, call)
            if request.op == SKIP:
                return Applied(outcome=Outcome.SUCCESS)
            change = self._change(request, chunk)
            num_tokens = self._checked(change.after)
        except Refused as e:
            return Applied(outcome=e.outcome, detail=str(e))
        self._commit(change, num_tokens)
        return Applied(outcome=Outcome.SUCCESS, change=change)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Memory):
            return NotImplemented
        return self.schema == other.schema and self._history == other._history

    __hash__ = None  # type: ignore[assignment]  # it changes

    def to_json(self) -> dict[str, Any]:
        """{"version", "schema": its name, "core", "entries", "history"}; the last one says it all, the others are for
        whoever looks into the file."""
        return {
            "version": VERSION,
            "schema": self.schema.name,
            "core": None if self.core is None else asdict(self.core),
            "entries": [asdict(entry) for entry in self.entries],
            "history": [asdict(change) for change in self._history],
        }

    @classmethod
    def from_json(
        cls,
        value: Any,
        count_tokens: Callable[[str], int],
        *,
        core_tokens: int = 512,
        entry_tokens: int | None = None,
        source: str = "memory",
    ) -> Memory:
        """What `to_json` wrote, built again change by change. The limits hold for what stands at the end, as texts of
        the past may have been counted by another tokenizer. Raises DataError, which begins with `source`, for anything
        that no calls can have led to."""
        try:
            memory = cls(schema_of(value), count_tokens, core_tokens=core_tokens, entry_tokens=entry_tokens)
            for number, change in enumerate(changes_of(value), start=1):
                memory._redo(number, change)
            memory._require_same(value)
        except Unusable as e:
            raise DataError(f"{source}: {e}") from e
        return memory

    def save(self, path: str | Path) -> None:
        """Atomic and durable: readers see the old file or all of the new one. Raises StorageError."""
        write_atomic(Path(path).expanduser(), written(self.to_json()))

    @classmethod
    def load(
        cls,
        path: str | Path,
        count_tokens: Callable[[str], int],
        *,
        core_tokens: int = 512,
        entry_tokens: int | None = None,
    ) -> Memory:
        """What `save` wrote. Raises DataError with file and reason."""
        value = read(Path(path).expanduser())
        return cls.from_json(
            value, count_tokens, core_tokens=core_tokens, entry_tokens=entry_tokens, source=f"memory '{path}'"
        )

    def _redo(self, number: int, change: Change) -> None:
        """`change`, the number-th of a history, if it follows from those before. Raises Unusable."""
        try:
            again = self._change(request_again(self.schema, change), change.chunk)
        except Refused as e:
            raise Unusable(f"change {number} cannot have happened: {e}") from e
        if again != change:
            raise Unusable(f"change {number} does not follow from those before it")
        self._commit(change, 0 if change.after is None else self.count_tokens(change.after.text))

    def _require_same(self, value: Mapping[str, Any]) -> None:
        """What stands is what the JSON says, and within the limits. Raises Unusable."""
        own = self.to_json()
        for part in ("core", "entries"):
            if value.get(part) != own[part]:
                raise Unusable(f"its {part}, by its history, should be otherwise: the file was changed by hand")
        for entry in (*((self.core,) if self.core else ()), *self.entries):
            try:
                self._checked(entry)
            except Refused as e:
                raise Unusable(f"the entry {entry.id} is over its limit: {e}; or raise the limit") from e

    def _change(self, request: Request, chunk: int) -> Change:
        """What `request` would change. Raises Refused."""
        op, kind, text = request.op, request.kind, request.text
        if op == CORE:
            after = Entry(id=CORE, kind=CORE, text=text, chunk=chunk)
            if self.core is not None and self.core.text == text:
                raise Refused("the core paragraph has exactly this text already")
            return Change(op=op, chunk=chunk, before=self.core, after=after)
        before = None if op == INSERT else self._found(kind, request.id)
        if op == DELETE:
            return Change(op=op, chunk=chunk, before=before, after=None)
        if same := self._held.get((kind, text)):
            raise Refused(f"the entry {shown(same.entry.id)} has exactly this text already; do not repeat it")
        if before is not None:
            return Change(op=op, chunk=chunk, before=before, after=replace(before, text=text, chunk=chunk))
        id = key_of(text) if self.schema.is_keyed else f"{prefix_of(kind)}{self._num_ids[kind] + 1}"
        return Change(op=op, chunk=chunk, before=None, after=Entry(id=id, kind=kind, text=text, chunk=chunk))

    def _found(self, kind: str, id: str) -> Entry:
        """The newest one of that id."""
        of_kind = [held.entry for held in reversed(self._held.values()) if held.entry.kind == kind]
        found = next((e for e in of_kind if e.id == id), None)
        if found is not None:
            return found
        if not of_kind:
            raise Refused(f"there is no entry {shown(id)}: {kind} is empty")
        known = ", ".join(dict.fromkeys(e.id for e in of_kind[:8]))
        what = "no entry that begins with" if self.schema.is_keyed else "no entry"
        raise Refused(f"{kind} has {what} {shown(id)}; the newest there are {known}")

    def _checked(self, entry: Entry | None) -> int:
        """The tokens of what is to be written. Raises Refused where there are too many."""
        if entry is None:
            return 0
        num_tokens, limit = self.count_tokens(entry.text), self.core_tokens if entry.kind == CORE else self.entry_tokens
        if limit is not None and num_tokens > limit:
            what = "the core paragraph" if entry.kind == CORE else "an entry"
            raise Refused(f"the text has {num_tokens} tokens; {what} has at most {limit}: shorten it")
        return num_tokens

    def _commit(self, change: Change, num_tokens: int) -> None:
        """`num_tokens`: of what it writes."""
        if change.op == CORE:
            self._num_tokens -= self._core.num_tokens if self._core else 0
            self._core = None
        elif change.before is not None:
            self._num_tokens -= self._held.pop((change.before.kind, change.before.text)).num_tokens
        if change.after is not None:
            held = _Held(change.after, num_tokens)
            if change.op == CORE:
                self._core = held
            else:
                self._held[change.after.kind, change.after.text] = held
            self._num_tokens += num_tokens
        if change.op == INSERT and change.after is not None:
            self._num_ids[change.after.kind] += 1
        self._history.append(change)
