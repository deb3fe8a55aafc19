"""The rows of a verifiers environment as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.environments.verifiers.process import INDEX, SPLIT, rows
from agentgrpo.tasks.base import SPLITS, split_of
from agentgrpo.tasks.generated import hash_of
from agentgrpo.tasks.questions.splitting import Shares


class VerifiersRows:
    """A TaskDataset. The package's evaluation rows, if it has any, are the test split. Dev is a share of the training
    rows; so is test if there are no evaluation rows."""

    def __init__(
        self,
        *,
        id: str,
        args: Mapping[str, Any] | None = None,
        python: str | None = None,
        dev_fraction: float = 0.1,
        test_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        """id, args, python: as in environment=verifiers. Raises ConfigError."""
        found = rows(id, args or {}, python)
        shares, filled = Shares(dev=dev_fraction, test=test_fraction, seed=seed), ["test"] if found["eval"] else []
        self._splits: dict[str, list[Task]] = {name: [] for name in SPLITS}
        for index, row in enumerate(found["train"]):
            self._splits[shares.split_of(str(index), filled)].append(_task(id, "train", index, row))
        self._splits["test"] += [_task(id, "eval", index, row) for index, row in enumerate(found["eval"])]
        if not self._splits["train"]:
            raise ConfigError(f"task.id={id} has {len(found['train'])} rows, and no row is left to train on")
        self.fingerprint = hash_of("verifiers", id, [[t.id for t in tasks] for tasks in self._splits.values()], found)

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}


def _task(id: str, split: str, index: int, row: Mapping[str, Any]) -> Task:
    answer = row.get("answer")
    return Task(
        id=f"{split}-{index}",
        messages=_messages(row.get("prompt") or row.get("question") or id),
        references=(answer,) if isinstance(answer, str) and answer else (),
        metadata={SPLIT: split, INDEX: index},
        data_source=id,
    )


def _messages(prompt: Any) -> tuple[Message, ...]:
    """Return a prompt for display only; the package prompts the policy itself."""
    said = [prompt] if isinstance(prompt, str) else prompt
    texts = [m if isinstance(m, str) else str(m.get("content") or "") for m in said]
    return (Message(role="user", content="\n".join(filter(None, texts)) or "(no text)"),)
