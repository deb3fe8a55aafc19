"""The embedded task set: search questions over a generated world with a cheap corpus (vdb) and a costly one (web)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import Demonstrator, Language, split_of
from agentgrpo.tasks.generated import drawn, habits_of, hash_of
from agentgrpo.worlds.almanac.demonstrator import AlmanacHabits, AlmanacOracle, Spendthrift
from agentgrpo.worlds.almanac.world import AlmanacQuestion, AlmanacWorld, Pool, draw_world, names, thesaurus

POOLS: tuple[Pool, ...] = ("train", "dev", "test")


class Almanac:
    """Three casts of companies, products, people and cities, one per split, with names from disjoint pools; the facts
    of all three are drawn anew for each `world_seed`. Dev and test search the documents of all three casts, training
    only those of its own cast (`training_corpora`), so that no name of dev or test occurs in training.

    Ten kinds of questions (six of one hop, four of two); each split deals them round-robin, so the first n tasks of a
    split are balanced. `Task.metadata`: kind, hops, supporting (passage ids that prove the answer, in order; the same
    in both corpora), needs_web and needs_rerank (whether an ideal policy needs them at some hop).

    Demonstrations (`demonstration_worlds`) are drawn from the train pool and do not depend on `world_seed`: worlds of
    `demonstration_companies`, each with its own facts, so that a policy can learn to search, but cannot memorise facts.
    Two-hop kinds come `two_hop_weight` times as often. `habits`: see demonstrator.AlmanacHabits. Raises ConfigError."""

    language = Language(answer="<answer>")

    def __init__(
        self,
        *,
        world_seed: int = 0,
        num_companies: int = 400,
        dev_companies: int = 25,
        test_companies: int = 100,
        demonstration_companies: int = 40,
        two_hop_weight: int = 2,
        habits: Mapping[str, float] | None = None,
    ) -> None:
        if two_hop_weight < 1:
            raise ConfigError(f"two_hop_weight={two_hop_weight}; at least 1 is allowed")
        self.habits = habits_of(AlmanacHabits, habits or {})
        self.demonstration_companies, self.two_hop_weight = demonstration_companies, two_hop_weight
        sizes: dict[Pool, int] = {"train": num_companies, "dev": dev_companies, "test": test_companies}
        worlds = {pool: draw_world(names(pool), sizes[pool], generator("almanac", world_seed, pool)) for pool in POOLS}
        self._questions: dict[str, AlmanacQuestion] = {}
        self._splits: dict[str, tuple[Task, ...]] = {}
        for pool, world in worlds.items():
            dealt = [(question.task(f"almanac-{world_seed}"), question) for question in world.round_robin()]
            self._splits[pool] = tuple(task for task, _ in dealt)
            self._questions.update({task.id: question for task, question in dealt})
        self._corpora = _corpora_of(worlds.values())
        self._training_corpora = _corpora_of([worlds["train"]])
        self.fingerprint = hash_of(
            *(
                [[name, [[p.id, p.text] for p in passages]] for name, passages in corpora.items()]
                for corpora in (self._corpora, self._training_corpora)
            ),
            [[name, [[t.id, t.question, t.references] for t in tasks]] for name, tasks in self._splits.items()],
        )

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        here = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".json"))
        settings = [self.demonstration_companies, self.two_hop_weight, repr(self.habits)]
        return hash_of(settings, *([p.name, p.read_text(encoding="utf-8")] for p in here))

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def training_corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._training_corpora

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return thesaurus()

    def oracle(self, task: Task) -> Demonstrator:
        return AlmanacOracle(drawn(self._questions, task))

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[SmallWorld]:
        """World i does not depend on `count`. Raises ConfigError if a world has fewer tasks than `tasks_per_world`."""
        for index in range(count):
            world = draw_world(names("train"), self.demonstration_companies, generator("demonstration", index))
            yield SmallWorld(world, f"demonstration-{index}", tasks_per_world, self.two_hop_weight, self.habits)


class SmallWorld:
    """One demonstration world (tasks.base.DemonstrationWorld)."""

    phase = 0

    def __init__(
        self, world: AlmanacWorld, name: str, num_tasks: int, two_hop_weight: int, habits: AlmanacHabits
    ) -> None:
        dealt = [(question.task(name), question) for question in _deal(world, num_tasks, two_hop_weight)]
        self.tasks: Sequence[Task] = tuple(task for task, _ in dealt)
        self._questions = {task.id: question for task, question in dealt}
        self._world, self._habits = world, habits

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {"vdb": self._world.vdb, "web": self._world.web}

    def demonstrator(self, task: Task) -> Demonstrator:
        return Spendthrift(self._questions[task.id], self._habits, key=task.id)


def _corpora_of(worlds: Collection[AlmanacWorld]) -> Mapping[str, tuple[Passage, ...]]:
    return {
        "vdb": tuple(passage for world in worlds for passage in world.vdb),
        "web": tuple(passage for world in worlds for passage in world.web),
    }


def _deal(world: AlmanacWorld, count: int, two_hop_weight: int) -> list[AlmanacQuestion]:
    """Deal `count` different questions: kinds take turns, two-hop kinds `two_hop_weight` turns in a row."""
    turns = [kind for kind in world.questions for _ in range(two_hop_weight if "+" in kind else 1)]
    left = {kind: iter(questions) for kind, questions in world.questions.items()}
    dealt: list[AlmanacQuestion] = []
    while len(dealt) < count:
        before = len(dealt)
        for kind in turns:
            dealt += [question for question in [next(left[kind], None)] if question is not None]
        if len(dealt) == before:
            raise ConfigError(
                f"tasks_per_world={count}; a demonstration world has {before} tasks. Choose fewer, or more "
                f"demonstration_companies"
            )
    return dealt[:count]
