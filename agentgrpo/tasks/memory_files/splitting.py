"""Which document goes to which split. No text of a test task is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.chance import uniform
from agentgrpo.tasks.memory_files.document import Cut, Document

_BY_CLAIM = ("test", "dev", "train")
"""Who keeps what two splits share: test sets are published to be compared on."""


def assign(documents: Sequence[Document], fractions: Mapping[str, float], cut: Cut) -> dict[str, list[Document]]:
    """Documents by split, in their order. Those linked by keys are a group, and go where one of it says it belongs;
    a group of which none says so goes by the hash of (seed, its least id). Of two that say differently the one further
    from test is left out.

    fractions: {"dev": share, "test": share} of the groups that say nothing."""
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    chosen: dict[int, str] = {}
    groups = _groups(documents)
    for members in groups:
        said = {d.split for i in members if (d := documents[i]).split}
        split = next((name for name in _BY_CLAIM if name in said), None)
        if split is None:
            u = uniform("split", cut.seed, min(documents[i].id for i in members))
            test, dev = fractions["test"], fractions["dev"]
            split = "test" if u < test else "dev" if u < test + dev else "train"
        for i in members:
            if documents[i].split in (None, split):
                chosen[i] = split
            else:
                cut.left_out[f"shares a text with a document of {split}"] += 1
    for i, document in enumerate(documents):
        if i in chosen:
            splits[chosen[i]].append(document)
    return splits


def own_paragraphs(splits: Mapping[str, Iterable[Document]], cut: Cut) -> dict[str, list[Document]]:
    """Documents whose paragraphs are drawn from a common pool (HotpotQA): a paragraph belongs to one split. What
    another owns is taken out of a document, which is left out where it cannot do without."""
    owner: dict[str, str] = {}
    kept: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for split in _BY_CLAIM:
        for document in splits[split]:
            units = tuple(u for u in document.units if owner.get(u.text, split) == split)
            if not units or any(u.is_needed for u in document.units if owner.get(u.text, split) != split):
                cut.left_out["needs a paragraph of another split"] += 1
                continue
            owner.update((u.text, split) for u in units)
            kept[split].append(replace(document, units=units))
    return kept


def _groups(documents: Sequence[Document]) -> list[list[int]]:
    """Positions, by connection through keys."""
    parent = list(range(len(documents)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, document in enumerate(documents):
        for key in document.keys:
            parent[root(i)] = root(first.setdefault(key, i))
    groups: dict[int, list[int]] = {}
    for i in range(len(documents)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
