"""Assign questions to splits; no question is in two of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentgrpo.core.chance import uniform
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Task
from agentgrpo.tasks.questions.formats import same_answers

_BY_CLAIM = ("test", "dev", "train")
"""Splits by their claim to a shared question. Test comes first, because published test sets are used for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A task with the data that decide its split."""

    task: Task
    source: str
    split: str
    same: str
    """Equal for the same question (formats.same_question)."""
    near: str
    """Equal for nearly the same question (formats.nearly_same)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of dev and test among the questions that no file assigns. They are drawn by a hash, so that a question
    keeps its split when files grow, and nearly equal questions go to the same split."""

    dev: float
    test: float
    seed: int

    def __post_init__(self) -> None:
        if self.dev < 0 or self.test < 0 or self.dev + self.test > 1:
            raise ConfigError(
                f"dev_fraction={self.dev}, test_fraction={self.test}; both must be >= 0 and their sum <= 1"
            )

    def split_of(self, near: str, filled: Iterable[str]) -> str:
        """filled: splits with their own files, for which no question is drawn."""
        test, dev = (0.0 if name in filled else share for name, share in (("test", self.test), ("dev", self.dev)))
        u = uniform("split", self.seed, near)
        return "test" if u < test else "dev" if u < test + dev else "train"


def limited(asked: Sequence[Asked], limit: int | None, seed: int) -> list[Asked]:
    """Keep at most `limit` questions of each split, chosen by a hash, in their order."""
    if limit is None:
        return list(asked)
    drawn: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for i, one in enumerate(asked):
        drawn[one.split].append((uniform("limit", seed, one.task.id), i))
    kept = {i for of in drawn.values() for _, i in sorted(of)[:limit]}
    return [one for i, one in enumerate(asked) if i in kept]


def dealt(asked: Sequence[Asked]) -> tuple[list[Asked], list[str]]:
    """Return (the questions used, notes on the others), with no question in two splits."""
    kept, left_out = without_shared(asked)
    notes = [f"{name}: {n} left out: also asked in {split}" for (name, split), n in sorted(left_out.items())]
    if count := num_otherwise(kept):
        notes.append(f"{count} questions are asked again with other answers; agentgrpo data check names them")
    return kept, notes


def without_shared(asked: Sequence[Asked]) -> tuple[list[Asked], Counter[tuple[str, str]]]:
    """Drop questions that a split nearer to test has too. Returns (kept, number dropped by (source, that split))."""
    owner: dict[str, int] = {}
    for one in asked:
        claim = _BY_CLAIM.index(one.split)
        owner[one.same] = min(owner.get(one.same, claim), claim)
    kept: list[Asked] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for one in asked:
        keeper = _BY_CLAIM[owner[one.same]]
        if keeper == one.split:
            kept.append(one)
        else:
            left_out[one.source, keeper] += 1
    return kept, left_out


def num_nearly_shared(asked: Iterable[Asked]) -> int:
    """Count questions that are nearly, but not exactly, the same as one of another source or split (words in another
    order, articles aside)."""
    places: dict[str, set[tuple[str, str]]] = defaultdict(set)
    wordings: dict[str, set[str]] = defaultdict(set)
    for one in asked:
        places[one.near].add((one.source, one.split))
        wordings[one.near].add(one.same)
    return sum(len(wordings[near]) > 1 and len(where) > 1 for near, where in places.items())


def num_otherwise(asked: Sequence[Asked]) -> int:
    """Count questions that are asked again with other answers: no answer can be right for both."""
    times = Counter(one.same for one in asked)
    answers: dict[str, frozenset[str]] = {}
    count = 0
    for one in asked:
        if times[one.same] > 1:
            before, now = answers.get(one.same, frozenset()), same_answers(one.task.references)
            count += bool(before and now and not before & now)
            answers[one.same] = before | now
    return count


def interleaved(asked: Iterable[Asked]) -> list[Task]:
    """Interleave the sources evenly, each in its order, so that the first n tasks are a fair sample of them."""
    groups: dict[str, list[Task]] = defaultdict(list)
    for one in asked:
        groups[one.source].append(one.task)
    placed = [
        ((k + 0.5) / len(tasks), number, k, task)
        for number, tasks in enumerate(groups.values())
        for k, task in enumerate(tasks)
    ]
    return [task for *_, task in sorted(placed, key=lambda row: row[:3])]


def sizes(asked: Iterable[Asked]) -> Mapping[tuple[str, str], int]:
    """Count the questions by (source, split)."""
    return Counter((one.source, one.split) for one in asked)
