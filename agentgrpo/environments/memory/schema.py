"""The parts of a memory, and the tools that write it: three_part, nine_part, mem_alpha and keyed.

three_part and nine_part follow memory agents in the literature: lists of entries by kind, and one core paragraph that
is always shown. mem_alpha is three_part with the calls that Mem-alpha publishes (functions.py of
github.com/wangyu-ustc/Mem-alpha): names, arguments and types are theirs, descriptions are ours. keyed is for models too
small to copy an opaque id: an entry is addressed by its first two words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.core.messages import ToolSpec

INSERT, UPDATE, DELETE, CORE, SKIP = "insert", "update", "delete", "core", "skip"
"""Operations of a call. The first four are also the `op` of a Change; CORE is also the core paragraph's kind and id."""
FACT = "fact"
"""The one kind of a keyed memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    name: str
    kinds: Mapping[str, str]
    """Kinds of entries, each with its description for the policy; the core paragraph is not among them."""
    core: str = ""
    """Description of the core paragraph; "" if there is none."""
    core_call: str = ""
    """The call by which the policy replaces it."""
    specs: tuple[ToolSpec, ...]
    operations: Mapping[str, str]
    """Name of a tool -> INSERT, UPDATE, DELETE, CORE or SKIP. UPDATE of memory_type=core is CORE."""
    suffix: str = ""
    """Suffix of a kind in calls and prompts: _memory in Mem-alpha's semantic_memory."""
    is_keyed: bool = False
    """The id of an entry is its key (`key_of`), which several entries may share; otherwise it is `prefix_of` its kind
    and a number."""

    def spec(self, tool: str) -> ToolSpec:
        """Return the spec of a tool. Raises KeyError."""
        return {spec.name: spec for spec in self.specs}[tool]

    @property
    def has_skip(self) -> bool:
        """Whether there is a skip call; otherwise a policy skips by calling nothing."""
        return SKIP in self.operations.values()


def prefix_of(kind: str) -> str:
    """The initials of a kind's words: s for semantic (ids s1, s2, ...), ce for culture_entertainment."""
    return "".join(word[0] for word in kind.split("_"))


def key_of(text: str) -> str:
    """The first two words of a text."""
    return " ".join(text.split()[:2])


def _tool(name: str, description: str, properties: Mapping[str, Any], *, optional: Sequence[str] = ()) -> ToolSpec:
    required = [p for p in properties if p not in optional]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=parameters)


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _kind(kinds: Mapping[str, str], description: str) -> dict[str, Any]:
    listed = "; ".join(f"{name}: {meaning}" for name, meaning in kinds.items())
    return {"type": "string", "enum": list(kinds), "description": f"{description} {listed}."}


def _names(kinds: Mapping[str, str], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(kinds), "description": description}


_CONTENT = "One or a few whole sentences that can be understood alone: names instead of pronouns, dates where known."
_SKIP = "Write nothing. Call this, and nothing else, when the text holds nothing that is worth keeping."


def _insert(kinds: Mapping[str, str]) -> ToolSpec:
    return _tool(
        "memory_insert",
        "Add one new entry to the memory. An entry with exactly the same text must not exist yet.",
        {"memory_type": _kind(kinds, "Where the entry belongs."), "content": _text(_CONTENT)},
    )


def _delete(kinds: Mapping[str, str]) -> ToolSpec:
    return _tool(
        "memory_delete",
        "Remove one entry that is wrong, out of date or to be forgotten.",
        {
            "memory_type": _names(kinds, "The type of the entry."),
            "memory_id": _text("The id of the entry as the memory shows it, such as " + _first_id(kinds) + "."),
        },
    )


def _first_id(kinds: Mapping[str, str]) -> str:
    return f"{prefix_of(next(iter(kinds)))}1"


_THREE_CORE = (
    "one short paragraph of what matters most about the user (who they are, what they want, how they want to be "
    "answered)"
)
_THREE = {
    "semantic": "lasting facts and knowledge, about the user, other people, places and things",
    "episodic": "what happened or was said, each with its time where it is known",
}


def _three_part() -> Schema:
    core, kinds = _THREE_CORE, _THREE
    update = _tool(
        "memory_update",
        "Replace the text of one entry, or the whole core paragraph.",
        {
            "memory_type": _kind({CORE: core, **kinds}, "What to replace."),
            "memory_id": _text("The id of the entry as the memory shows it, such as s1. Leave it out for core."),
            "new_content": _text("The whole new text; nothing of the old one stays. " + _CONTENT),
        },
        optional=("memory_id",),
    )
    return Schema(
        name="three_part",
        kinds=kinds,
        core=core,
        core_call="memory_update with memory_type=core",
        specs=(_insert(kinds), update, _delete(kinds), _tool("memory_skip", _SKIP, {})),
        operations={"memory_insert": INSERT, "memory_update": UPDATE, "memory_delete": DELETE, "memory_skip": SKIP},
    )


def _mem_alpha() -> Schema:
    suffix = "_memory"
    lists = {f"{kind}{suffix}": meaning for kind, meaning in _THREE.items()}
    every = {f"{CORE}{suffix}": _THREE_CORE, **lists}
    id = _text("The id of the entry as the memory shows it, such as s1. Not needed for core_memory.")
    insert = _tool(
        "new_memory_insert",
        "Add one new entry to the memory. The core memory cannot be inserted into, only updated.",
        {"memory_type": _kind(lists, "Where the entry belongs."), "content": _text(_CONTENT)},
    )
    update = _tool(
        "memory_update",
        "Replace the text of one entry, or the whole core memory.",
        {
            "memory_type": _kind(every, "What to replace."),
            "new_content": _text("The whole new text; nothing of the old one stays. " + _CONTENT),
            "memory_id": id,
        },
        optional=("memory_id",),
    )
    delete = _tool(
        "memory_delete",
        "Remove one entry, or all of the core memory.",
        {"memory_type": _names(every, "The type of the entry."), "memory_id": id},
        optional=("memory_id",),
    )
    return Schema(
        name="mem_alpha",
        kinds=_THREE,
        core=_THREE_CORE,
        core_call="memory_update with memory_type=core_memory",
        specs=(insert, update, delete),
        operations={"new_memory_insert": INSERT, "memory_update": UPDATE, "memory_delete": DELETE},
        suffix=suffix,
    )


def _nine_part() -> Schema:
    core = "one short paragraph that sums up who the user is; the entries hold the details"
    kinds = {
        "sensory_lifestyle": "tastes, food, clothes, surroundings and daily habits",
        "culture_entertainment": "books, films, music, games, sports and other pastimes",
        "cognition_work": "job, studies, skills, ways of thinking, working and learning",
        "values": "beliefs, principles, religion, politics and aims in life",
        "physiology_health": "body, age, illnesses, medicine, diet for health, sleep and exercise",
        "resource_economic": "money, possessions, income, spending and saving",
        "social_interpersonal": "family, friends, colleagues, pets and what holds between them",
        "spatiotemporal_context": "where the user lives, stays and travels; dates, plans and appointments",
        "psychological_defense": "fears, stress, moods, conflicts and how the user copes with them",
    }
    update = _tool(
        "memory_update",
        "Replace the text of one entry.",
        {
            "memory_type": _names(kinds, "The type of the entry."),
            "memory_id": _text("The id of the entry as the memory shows it, such as " + _first_id(kinds) + "."),
            "new_content": _text("The whole new text; nothing of the old one stays. " + _CONTENT),
        },
    )
    core_update = _tool(
        "core_memory_update",
        f"Replace the core paragraph: {core}.",
        {"content": _text("The whole new paragraph; nothing of the old one stays.")},
    )
    return Schema(
        name="nine_part",
        kinds=kinds,
        core=core,
        core_call="core_memory_update",
        specs=(_insert(kinds), update, _delete(kinds), core_update, _tool("memory_skip", _SKIP, {})),
        operations={
            "memory_insert": INSERT,
            "memory_update": UPDATE,
            "memory_delete": DELETE,
            "core_memory_update": CORE,
            "memory_skip": SKIP,
        },
    )


def _keyed() -> Schema:
    clause = "One clause. Its first two words are the key that it is found by."
    return Schema(
        name="keyed",
        kinds={FACT: "one clause, found by its first two words"},
        specs=(
            _tool("insert", "Add one clause.", {"content": _text(clause)}),
            _tool(
                "update", "Replace the newest clause that begins with the same two words.", {"content": _text(clause)}
            ),
            _tool("delete", "Remove the newest clause that begins with these two words.", {"key": _text("Two words.")}),
            _tool("skip", "Write nothing.", {}),
        ),
        operations={"insert": INSERT, "update": UPDATE, "delete": DELETE, "skip": SKIP},
        is_keyed=True,
    )


SCHEMAS: Mapping[str, Schema] = {
    schema.name: schema for schema in (_three_part(), _nine_part(), _mem_alpha(), _keyed())
}
