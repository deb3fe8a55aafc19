"""PerLTQA as in its repository (Du et al. 2024, arXiv 2402.16288): questions in perltqa_en_v2.json, and the memories
they ask about in perltmem_en_v2.json (task.contexts).

    questions: [{"name": {"profile": [{"Question": ..., "Answer": ..., "Reference Memory": ..., ...}, ...],
                          "social_relationship": [{"1_0": [{"Question": ...}]}], "events": ..., "dialogues": ...}}, ...]
    contexts:  {"name": {"profile": {"Gender": ..., ...}, "profile_description": "...",
                         "social_relationship": {"1_0": {"Supporting Characters", "Description", "Relationship"}},
                         "events": {"1_0_0": {"content", "summary", "Creation Time", ...}},
                         "dialogues": {"1_0_0#0": {"events": "1_0_0", "contents": {"time": ["name: ...", ...]}}}}}

A document is a character: the profile, the relationships, then each event with its dialogues. A question is left out if
the contexts lack its memory, or if it has no answer (as some in Mem-alpha's shortened file).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.tasks.dialogue import Question
from agentgrpo.tasks.memory_files.document import Document, DocumentSource, DocumentUnit
from agentgrpo.tasks.records import Node, read_json, shown

_SECTIONS = ("profile", "social_relationship", "events", "dialogues")
_PROFILE = "profile"


def read(source: DocumentSource) -> Iterator[Document]:
    if source.contexts is None:
        raise ConfigError("task.format=perltqa needs task.contexts, the file perltmem_en_v2.json beside the questions")
    memories = dict(_characters(read_json(source.contexts)))
    found = False
    for name, asked in _characters(read_json(source.path)):
        if name not in memories:
            source.left_out["a character that task.contexts does not have"] += 1
            continue
        found = True
        texts = dict(_texts(name, memories[name]))
        questions = _questions(asked, texts, source)
        yield Document(
            id=name,
            where=asked.where,
            units=tuple(
                DocumentUnit(text=text, questions=tuple(questions.get(key, ()))) for key, text in texts.items()
            ),
            source="perltqa",
            split=source.split,
            keys=(f"character:{name}",),
        )
    if not found:
        raise DataError(
            f"{source.path}: {source.contexts} has none of its characters; give the questions as task.path and the "
            "memories as task.contexts, of one language"
        )


def _characters(root: Node) -> Iterator[tuple[str, Node]]:
    """Yield (name, node) of each character, from {name: ...}, a list of such objects, or a list of memories that hold
    the name in their profile (the first version)."""
    for node in [root] if isinstance(root.value, dict) else root.elements():
        profile = node.get(_PROFILE).value
        if isinstance(profile, dict):
            yield node.get(_PROFILE).text("Protagonist"), node
        else:
            yield from node.members()


def _texts(name: str, memory: Node) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of each memory, in the order of the document."""
    profile = (
        [f"{key}: {_flat(value)}" for key, value in memory.get(_PROFILE).members()] if memory.has(_PROFILE) else []
    )
    yield _PROFILE, "\n".join([f"Profile of {name}", *profile, _flat(memory.get("profile_description"))]).strip()
    for key, node in _members(memory, "social_relationship"):
        who, what, description = (_flat(node.get(k)) for k in ("Supporting Characters", "Relationship", "Description"))
        yield key, f"{name}'s {what or 'acquaintance'} {who}: {description}"
    dialogues = list(_members(memory, "dialogues"))
    events = list(_members(memory, "events"))
    for key, node in events:
        time, about, content = (_flat(node.get(k)) for k in ("Creation Time", "summary", "content"))
        if content:
            yield key, f"{time}: {about}".strip(": ") + f"\n{content}"
        yield from ((k, _dialogue(d)) for k, d in dialogues if d.optional_text("events") == key)
    known = {key for key, _ in events}
    yield from ((k, _dialogue(d)) for k, d in dialogues if d.optional_text("events") not in known)


def _members(memory: Node, key: str) -> Iterator[tuple[str, Node]]:
    if memory.has(key):
        yield from memory.get(key).members()


def _dialogue(node: Node) -> str:
    parts = []
    for time, said in node.get("contents").members():
        lines = said.value if isinstance(said.value, list) else [said.value]
        parts.append("\n".join([f"Dialogue on {time}", *(_flat(Node(said.path, said.at, line)) for line in lines)]))
    return "\n".join(parts) or "Dialogue"


def _flat(node: Node) -> str:
    """The text of a node that is a text, a number, or a list of these."""
    if isinstance(node.value, list):
        return ", ".join(_flat(element) for element in node.elements())
    if isinstance(node.value, str | int | float):
        return str(node.value).strip()
    return node.refuse(f"{shown(node.value)}; a text is needed") if node.value is not None else ""


def _questions(asked: Node, texts: Mapping[str, str], source: DocumentSource) -> dict[str, list[Question]]:
    """Questions by the id of the memory they ask about."""
    found: dict[str, list[Question]] = {}
    for section in _SECTIONS:
        for about, qa in _pairs(asked, section):
            if about not in texts:
                source.left_out["is about a memory that task.contexts does not have"] += 1
            elif not qa.has("Answer"):
                source.left_out["has no answer"] += 1
            else:
                found.setdefault(about, []).append(
                    Question(
                        text=qa.text("Question"),
                        answers=qa.answers("Answer"),
                        kind=section,
                        metric=source.metric_or("token_f1"),
                    )
                )
    return found


def _pairs(asked: Node, section: str) -> Iterator[tuple[str, Node]]:
    """Yield (memory id, question); questions about the profile are not grouped by memory."""
    rows: Sequence[Node] = list(asked.list(section)) if asked.has(section) else []
    for row in rows:
        if row.has("Question"):
            yield _PROFILE, row
        else:
            for about, questions in row.members():
                yield from ((about, qa) for qa in questions.elements())
