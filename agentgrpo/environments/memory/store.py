"""A memory that is written by sampled calls: its contents and its history.

    call --request_of--> Request --Memory.apply--> Change, appended to `history`, from which everything else follows

An entry is identified by its kind and text: texts of one kind differ. The policy addresses an entry by its id."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import DataError, did_you_mean
from agentgrpo.core.messages import AnyCall, MalformedCall
from agentgrpo.core.types import Outcome, Passage
from agentgrpo.core.untrusted import is_blank
from agentgrpo.environments.memory.base import Applied, Change, MemoryEntry
from agentgrpo.environments.memory.schema import (
    CORE,
    DELETE,
    FACT,
    INSERT,
    SCHEMAS,
    SKIP,
    UPDATE,
    Schema,
    key_of,
    prefix_of,
)

# --- Parsing a sampled call into a request to a memory, or into an error.
#
# Common variants with one possible meaning are accepted: numbers for texts, "3", 3, "S3" or "[s3]" for the id s3, a
# type in capitals, null for an omitted argument, any white space, and the arguments `importance` and `category` of
# other memories' tools, which are dropped (`category` gives the type if no type is given). Arguments that are a text
# with JSON in it are refused: the renderers parse JSON, strictly (no repeated key, no NaN), and a call must not have a
# second form that training picks up by accident.

MAX_CHARS = 20_000
"""Maximum characters of a text that is read: a longer text is not a note, and counting its tokens takes long."""
MAX_DETAIL = 300
"""Characters of a detail."""
_ID = re.compile(r"""[\s\[(<#"']*(?:([A-Za-z]+)[ _-]?)?([0-9]{1,9})[\s\])>"'.:,]*""")
_CONTROL = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_UNSEEN = dict.fromkeys((0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF))
"""Direction marks and zero-width marks: texts that differ only in them look the same."""
_BESIDES = ("category", "importance")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    op: str
    """INSERT, UPDATE, DELETE, CORE or SKIP."""
    kind: str = ""
    id: str = ""
    """Id of the entry to change; "" for INSERT, CORE and SKIP."""
    text: str = ""
    """Normalised text to write; "" for DELETE and SKIP, and for a CORE that is to be emptied."""


class CallRefused(ValueError):
    """Its message is one line for the policy, and becomes Applied.detail."""

    def __init__(self, detail: str, outcome: Outcome = Outcome.INVALID_ARGS) -> None:
        valid = detail.encode("utf-8", "backslashreplace").decode()  # records hold no half of a pair
        super().__init__(" ".join(valid.translate(_CONTROL).split())[:MAX_DETAIL] or "the call cannot be read")
        self.outcome = outcome


def request_of(schema: Schema, call: AnyCall) -> MemoryRequest:
    """Parse a call. Raises CallRefused and nothing else, whatever the call holds."""
    if isinstance(call, MalformedCall):
        raise CallRefused(call.problem)
    name: Any = call.name
    if not isinstance(name, str) or name not in schema.operations:
        near = did_you_mean(name[:100], schema.operations) if isinstance(name, str) else ""
        tools = ", ".join(schema.operations)
        raise CallRefused(f"there is no tool {shown(name)}; there are {tools}.{near}", Outcome.TOOL_NOT_FOUND)
    given = _arguments(schema, name, call.arguments)
    op = schema.operations[name]
    if op == SKIP:
        return MemoryRequest(op=op)
    kind = FACT if schema.is_keyed else CORE if op == CORE else given["memory_type"]
    text = "" if op == DELETE else _text(given, "new_content" if "new_content" in given else "content")
    if kind == CORE:
        op = CORE
    return MemoryRequest(op=op, kind=kind, id=_id(schema, op, kind, given, text), text=text)


def normalised(text: str) -> str:
    """Normalise a text to one line: white space and control characters become single spaces, invisible marks are
    dropped. Returns "" if nothing visible is left. Normalising again changes nothing."""
    clean = " ".join(text.translate(_CONTROL | _UNSEEN).split())
    return "" if is_blank(clean) else clean


def is_unicode(text: str) -> bool:
    """Whether a file can hold the text: it has no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A sampled value as shown in a detail: quoted, at most 40 characters."""
    if not isinstance(value, str):
        return _kind_of(value)
    return repr(value if len(value) <= 40 else value[:40] + "...")


def _text(given: Mapping[str, str], name: str) -> str:
    text = given[name]
    if len(text) > MAX_CHARS:
        raise CallRefused(f"{name} has {len(text)} characters; at most {MAX_CHARS} are read: write a short note")
    if not is_unicode(text):
        raise CallRefused(f"{name} is not valid Unicode: it has half a surrogate pair")
    clean = normalised(text)
    if not clean:
        raise CallRefused(f"{name} is empty; write at least one word, or skip")
    return clean


def _arguments(schema: Schema, tool: str, arguments: Any) -> dict[str, str]:
    if not isinstance(arguments, Mapping):
        raise CallRefused(f"the arguments must be a JSON object, not {_kind_of(arguments)}")
    parameters = schema.spec(tool).parameters
    properties, required = parameters["properties"], parameters["required"]
    if schema.operations[tool] in (INSERT, UPDATE):
        arguments = _without_besides(schema, arguments, properties)
    for name in arguments:
        if not isinstance(name, str) or name not in properties:
            raise CallRefused(f"unknown argument {shown(name)}; allowed: {', '.join(properties) or 'none'}")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in required:
        if name not in given:
            raise CallRefused(f"the argument {name} is missing; needed: {', '.join(required)}")
    texts = {name: _argument(name, value) for name, value in given.items()}
    return {
        name: _chosen(schema, name, t, properties[name]) if "enum" in properties[name] else t
        for name, t in texts.items()
    }


def _without_besides(schema: Schema, arguments: Mapping[Any, Any], properties: Mapping[str, Any]) -> dict[Any, Any]:
    """Drop the arguments that only other memories' tools have; `category` gives the type if no other argument does."""
    given = {name: value for name, value in arguments.items() if name in properties or name not in _BESIDES}
    category = arguments.get("category")
    is_kind = isinstance(category, str) and _plain_kind(schema, category) in (*schema.kinds, CORE)
    if is_kind and "memory_type" in properties and given.get("memory_type") is None:
        given["memory_type"] = category
    return given


def _plain_kind(schema: Schema, text: str) -> str:
    """The name of a kind without the suffix that calls use."""
    return text.strip().lower().removesuffix(schema.suffix)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise CallRefused(f"{name} must be a text, not {_kind_of(value)}")
    if value.bit_length() > 64 if isinstance(value, int) else isinstance(value, float) and not math.isfinite(value):
        raise CallRefused(f"{name} must be a text, not a number out of range")
    return str(value)


def _chosen(schema: Schema, name: str, text: str, described: Mapping[str, Any]) -> str:
    allowed: list[str] = described["enum"]
    kind = _plain_kind(schema, text)
    if f"{kind}{schema.suffix}" in allowed:
        return kind
    if kind == CORE and schema.core:
        core = f"{CORE}{schema.suffix}"
        raise CallRefused(f"{name}={core}: the core paragraph can only be replaced, by {schema.core_call}")
    raise CallRefused(
        f"{name} must be one of {', '.join(allowed)}, not {shown(text)}.{did_you_mean(kind[:100], allowed)}"
    )


def _id(schema: Schema, op: str, kind: str, given: Mapping[str, str], text: str) -> str:
    if op not in (UPDATE, DELETE):
        return ""
    if schema.is_keyed:
        return key_of(text if op == UPDATE else _text(given, "key"))
    if "memory_id" not in given:
        raise CallRefused(
            f"the argument memory_id is missing; name the entry of {kind}{schema.suffix} to change, such as "
            f"{prefix_of(kind)}1"
        )
    id = given["memory_id"]
    found = _ID.fullmatch(id) if len(id) <= 40 else None
    return f"{(found[1] or prefix_of(kind)).lower()}{int(found[2])}" if found else id


def _kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    kinds = ((bool, "a truth value"), (str, "a text"), (Mapping, "an object"), (list | tuple, "a list"))
    return "null" if value is None else next((name for kind, name in kinds if isinstance(value, kind)), "a number")


# --- Memories as JSON, and the checks that a file must pass.

VERSION = 1
_KEYS = {"version", "schema", "core", "entries", "history"}
_OPS = {INSERT: (False, True), UPDATE: (True, True), DELETE: (True, False), CORE: (None, None)}
"""Whether a change has `before` and `after`; None = optional; `before` or `after` must be present."""


class Unusable(ValueError):
    """Its message says what is wrong with the JSON of a memory."""


def written(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def read(path: Path) -> Any:
    """Read the JSON value of a file. Raises DataError."""
    try:
        return json.loads(path.read_bytes())
    except OSError as e:
        raise DataError(f"memory '{path}': {e.strerror}; give the path of a file that Memory.save wrote") from e
    except (ValueError, RecursionError) as e:
        raise DataError(f"memory '{path}' is not JSON: {e}; give the path of a file that Memory.save wrote") from e


def schema_of(value: Any) -> Schema:
    """Return the schema of a memory's JSON value. Raises Unusable if the value is not a memory."""
    if not isinstance(value, Mapping) or set(value) != _KEYS:
        raise Unusable(f"it is not a memory; a JSON object with {', '.join(sorted(_KEYS))} is needed")
    if type(value["version"]) is not int or value["version"] != VERSION:
        raise Unusable(f"its version is not {VERSION}, which is what this program reads and writes")
    name = value["schema"]
    if not isinstance(name, str) or name not in SCHEMAS:
        raise Unusable(f"it has the schema {shown(name)}; allowed are {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def changes_of(value: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the changes of the history, each well-formed in itself. Raises Unusable."""
    rows = value["history"]
    if not isinstance(rows, list):
        raise Unusable("its history is not a list")
    for number, row in enumerate(rows, start=1):
        yield _change(f"change {number}", row)


def request_again(schema: Schema, change: Change) -> MemoryRequest:
    """Return the request that made `change`. Raises Unusable if `schema` has no such kind."""
    entry = change.after or change.before
    kind = entry.kind if entry else ""
    if kind not in ({CORE} if change.op == CORE and schema.core else schema.kinds):
        raise Unusable(f"{change.op} of kind {shown(kind)}: schema {schema.name} has none")
    id = change.before.id if change.before and change.op != CORE else ""
    return MemoryRequest(op=change.op, kind=kind, id=id, text=change.after.text if change.after else "")


def _change(where: str, row: Any) -> Change:
    if not isinstance(row, Mapping) or set(row) != {"op", "chunk", "before", "after"}:
        raise Unusable(f"{where} is not an object with op, chunk, before, after")
    if not isinstance(row["op"], str) or row["op"] not in _OPS:
        raise Unusable(f"{where}: op {shown(row['op'])}; allowed are {', '.join(_OPS)}")
    before, after = (_entry(f"{where}, {side}", row[side]) for side in ("before", "after"))
    for side, entry, needed in zip(("before", "after"), (before, after), _OPS[row["op"]], strict=True):
        if needed is not None and needed != (entry is not None):
            raise Unusable(f"{where}: {row['op']} {'needs' if needed else 'has no'} {side}")
    if before is None and after is None:
        raise Unusable(f"{where}: {row['op']} needs before or after")
    return Change(op=row["op"], chunk=_chunk(where, row["chunk"]), before=before, after=after)


def _entry(where: str, row: Any) -> MemoryEntry | None:
    if row is None:
        return None
    if not isinstance(row, Mapping) or set(row) != {"id", "kind", "text", "chunk"}:
        raise Unusable(f"{where} is not an object with id, kind, text, chunk")
    for name in ("id", "kind", "text"):
        if not isinstance(row[name], str) or not row[name] or not _is_normal(row[name]):
            raise Unusable(f"{where}: its {name} is not one line of text without needless white space")
    return MemoryEntry(id=row["id"], kind=row["kind"], text=row["text"], chunk=_chunk(where, row["chunk"]))


def _is_normal(text: str) -> bool:
    return is_unicode(text) and normalised(text) == text


def _chunk(where: str, chunk: Any) -> int:
    if type(chunk) is not int or chunk < 0:
        raise Unusable(f"{where}: its chunk is not a whole number from 0")
    return chunk


@dataclass(frozen=True, slots=True)
class _Held:
    entry: MemoryEntry
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
        """count_tokens: counts the tokens of one text, by the tokenizer of limits and figures. core_tokens: maximum
        tokens of the core paragraph. entry_tokens: maximum tokens of an entry; None = no limit."""
        self.schema = schema
        self.count_tokens = count_tokens
        self.core_tokens, self.entry_tokens = core_tokens, entry_tokens
        self._history: list[Change] = []
        self._held: dict[tuple[str, str], _Held] = {}  # by kind and text, in order of last writing
        self._core: _Held | None = None
        self._num_ids: Counter[str] = Counter()
        self._num_tokens = 0

    @property
    def entries(self) -> tuple[MemoryEntry, ...]:
        """The entries without the core paragraph, in order of last writing: the newest last."""
        return tuple(held.entry for held in self._held.values())

    @property
    def core(self) -> MemoryEntry | None:
        """The core paragraph; None before it is written, and in schemas without a core."""
        return None if self._core is None else self._core.entry

    @property
    def history(self) -> tuple[Change, ...]:
        """Every change, in order."""
        return tuple(self._history)

    @property
    def num_tokens(self) -> int:
        """Tokens of the texts of all entries and of the core paragraph, each counted alone."""
        return self._num_tokens

    def passages(self) -> tuple[Passage, ...]:
        """The documents for a reader: the core paragraph, then the entries in order of last writing. title = kind."""
        documents = (*([self._core.entry] if self._core else ()), *self.entries)
        return tuple(Passage(id=e.id, text=e.text, title=e.kind) for e in documents)

    def apply(self, call: AnyCall, *, chunk: int) -> Applied:
        """Apply a call of the policy, made while it reads `chunk` (from 0). A bad call never raises: see Applied."""
        try:
            request = request_of(self.schema, call)
            if request.op == SKIP:
                return Applied(outcome=Outcome.SUCCESS)
            change = self._change(request, chunk)
            num_tokens = self._checked(change.after)
        except CallRefused as e:
            return Applied(outcome=e.outcome, detail=str(e))
        self._commit(change, num_tokens)
        return Applied(outcome=Outcome.SUCCESS, change=change)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Memory):
            return NotImplemented
        return self.schema == other.schema and self._history == other._history

    __hash__ = None  # type: ignore[assignment]  # it changes

    def to_json(self) -> dict[str, Any]:
        """{"version", "schema": its name, "core", "entries", "history"}; the history alone determines the memory, and
        the other parts are for people who look into the file."""
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
        """Rebuild a memory from the output of `to_json`, change by change. The limits hold only for the final entries,
        because earlier texts may have been counted by another tokenizer. Raises DataError, which begins with `source`,
        for a value that no calls can have led to."""
        try:
            memory = cls(schema_of(value), count_tokens, core_tokens=core_tokens, entry_tokens=entry_tokens)
            for number, change in enumerate(changes_of(value), start=1):
                memory._redo(number, change)
            memory._require_same(value)
        except Unusable as e:
            raise DataError(f"{source}: {e}") from e
        return memory

    def save(self, path: str | Path) -> None:
        """Save atomically and durably: readers see the old file or all of the new one. Raises StorageError."""
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
        """Load a file that `save` wrote. Raises DataError with file and reason."""
        value = read(Path(path).expanduser())
        return cls.from_json(
            value, count_tokens, core_tokens=core_tokens, entry_tokens=entry_tokens, source=f"memory '{path}'"
        )

    def _redo(self, number: int, change: Change) -> None:
        """Redo `change`, the number-th of a history. Raises Unusable if it does not follow from the changes before."""
        try:
            again = self._change(request_again(self.schema, change), change.chunk)
        except CallRefused as e:
            raise Unusable(f"change {number} cannot have happened: {e}") from e
        if again != change:
            raise Unusable(f"change {number} does not follow from those before it")
        self._commit(change, 0 if change.after is None else self.count_tokens(change.after.text))

    def _require_same(self, value: Mapping[str, Any]) -> None:
        """Raise Unusable unless the rebuilt memory equals the JSON and is within the limits."""
        own = self.to_json()
        for part in ("core", "entries"):
            if value.get(part) != own[part]:
                raise Unusable(f"its {part} and its history disagree: the file was changed by hand")
        for entry in (*((self.core,) if self.core else ()), *self.entries):
            try:
                self._checked(entry)
            except CallRefused as e:
                raise Unusable(f"the entry {entry.id} is over its limit: {e}; or raise the limit") from e

    def _change(self, request: MemoryRequest, chunk: int) -> Change:
        """Return the change that `request` would make. Raises CallRefused."""
        op, kind, text = request.op, request.kind, request.text
        if op == CORE and not text:
            if self.core is None:
                raise CallRefused("the core paragraph is empty already")
            return Change(op=op, chunk=chunk, before=self.core, after=None)
        if op == CORE:
            after = MemoryEntry(id=CORE, kind=CORE, text=text, chunk=chunk)
            if self.core is not None and self.core.text == text:
                raise CallRefused("the core paragraph has exactly this text already")
            return Change(op=op, chunk=chunk, before=self.core, after=after)
        before = None if op == INSERT else self._found(kind, request.id)
        if op == DELETE:
            return Change(op=op, chunk=chunk, before=before, after=None)
        if same := self._held.get((kind, text)):
            raise CallRefused(f"the entry {shown(same.entry.id)} has exactly this text already; do not repeat it")
        if before is not None:
            return Change(op=op, chunk=chunk, before=before, after=replace(before, text=text, chunk=chunk))
        id = key_of(text) if self.schema.is_keyed else f"{prefix_of(kind)}{self._num_ids[kind] + 1}"
        return Change(op=op, chunk=chunk, before=None, after=MemoryEntry(id=id, kind=kind, text=text, chunk=chunk))

    def _found(self, kind: str, id: str) -> MemoryEntry:
        """Return the newest entry with this id. Raises CallRefused."""
        of_kind = [held.entry for held in reversed(self._held.values()) if held.entry.kind == kind]
        found = next((e for e in of_kind if e.id == id), None)
        if found is not None:
            return found
        if not of_kind:
            raise CallRefused(f"there is no entry {shown(id)}: {kind} is empty")
        known = ", ".join(dict.fromkeys(e.id for e in of_kind[:8]))
        what = "no entry that begins with" if self.schema.is_keyed else "no entry"
        raise CallRefused(f"{kind} has {what} {shown(id)}; the newest there are {known}")

    def _checked(self, entry: MemoryEntry | None) -> int:
        """Count the tokens of the text to write. Raises CallRefused if there are too many."""
        if entry is None:
            return 0
        num_tokens, limit = self.count_tokens(entry.text), self.core_tokens if entry.kind == CORE else self.entry_tokens
        if limit is not None and num_tokens > limit:
            what = "the core paragraph" if entry.kind == CORE else "an entry"
            raise CallRefused(f"the text has {num_tokens} tokens; {what} has at most {limit}: shorten it")
        return num_tokens

    def _commit(self, change: Change, num_tokens: int) -> None:
        """Apply `change`. num_tokens: tokens of its new text."""
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
