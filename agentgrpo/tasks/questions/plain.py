"""A user's own questions: {"question": "...", "answers": ["...", ...] or "...", "id"?, "split"?, ...}."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.tasks.files import FILES, problem_of
from agentgrpo.tasks.questions.entry import Entry
from agentgrpo.tasks.records import Node, shown

_NAMES = ("id", "question", "answers")
DEFAULT_KEYS: Mapping[str, str] = {}


def plain(keys: Mapping[str, str]) -> Callable[[Node], Iterator[Entry]]:
    """The reader for records whose keys are called so: {"question": "query"}. A key that is named must be there; by
    themselves "answers" may also be "answer", and "id" may be missing. All other keys are metadata ("files": {name:
    text} is what lies in the workspace of a tool agent). Raises ConfigError for names that are no keys of ours."""
    for name in keys:
        if name not in _NAMES:
            raise ConfigError(f"keys.{name}; {', '.join(_NAMES)} can be renamed.{did_you_mean(name, _NAMES)}")

    def read(node: Node) -> Iterator[Entry]:
        record = node.object()
        default = "answer" if "answers" not in record and "answer" in record else "answers"
        id, question, answers = keys.get("id", "id"), keys.get("question", "question"), keys.get("answers", default)
        metadata = {k: v for k, v in record.items() if k not in (id, question, answers, "split")}
        if problem := problem_of(metadata.get(FILES)):
            node.refuse(problem)
        yield Entry(
            where=node.where,
            id=_id(node, id, needed="id" in keys),
            question=_text(node, question),
            answers=node.answers(answers),
            split=node.split(None),
            metadata=metadata,
        )

    return read


def _text(node: Node, key: str) -> str:
    value: Any = node.object().get(key)
    if not isinstance(value, str) or not value.strip():
        said = "missing" if value is None else shown(value)
        node.refuse(f"'{key}' is {said}; it must be a non-empty string")
    return str(value).strip()


def _id(node: Node, key: str, *, needed: bool) -> str:
    value = node.object().get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(node, key) if needed or value is not None else ""
