"""The embedded task set for memories: diaries that are read day by day, and questions about them at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import Demonstrator, Language, split_of
from agentgrpo.tasks.generated import drawn, habits_of, hash_of
from agentgrpo.worlds.almanac import world as names
from agentgrpo.worlds.almanac.world import Pool
from agentgrpo.worlds.diary import world
from agentgrpo.worlds.diary.demonstrator import DiaryHabits, Writer, careless, copy, drill, ideal
from agentgrpo.worlds.diary.world import Rates, beginning, draw_diary

LANGUAGE = Language(
    answer="<answer>",  # no turn answers: a reader does so after the last one
    control_strings=("<insert>", "</insert>", "<update>", "</update>", "<delete>", "</delete>", "<skip>"),
    words=(),
    parts=(beginning(),),
)
LONG_EVERY = 11
"""One of this many diaries of the test split is long."""
PHASES = (0, 1, 2, 1, 0, 1, 1, 2, 0, 1)
"""Phases of the demonstration worlds, in turn: 0 copies, 1 drills, 2 is careless."""
RATES = (
    Rates(events=(0.2, 0.4, 0.3, 0.1), noise=(0.1, 0.6, 0.3)),
    Rates(events=(0.05, 0.35, 0.35, 0.25), noise=(0.4, 0.5, 0.1), change=0.4, forget=0.2),
    Rates(),
)
"""Rates of each phase; the first two have more to copy and to change."""


class Diaries:
    """Diaries of `train_days` (minimum, maximum) days. Dev and test diaries have `test_days`, and every eleventh test
    diary has `long_days`. `world_seed` draws their events. The splits draw names from disjoint pools, so that no person
    of dev or test occurs in training.

    A question is a cloze ("Velmor lives in ___", "Velmor lives before ___"); its kind is current, history, forgotten,
    rumoured or never (mentioned), and the answer to the last three is "unknown". `Task.metadata`: kind (dialogue or
    long) and the fields of dialogue.memory_task.

    `hard`: the diaries paraphrase, spread facts over sentences, change them in passing, and have meetings to count
    ("Velmor met how many ___", of the kind count), so that a search for the words of a question finds little.

    Demonstrations are drawn from the train pool and do not depend on `world_seed`; they come in three phases
    (`PHASES`): first copying, then the purpose of each call, and last the careless `habits`. Raises ConfigError."""

    language = LANGUAGE

    def __init__(
        self,
        *,
        world_seed: int = 0,
        train_diaries: int = 800,
        dev_diaries: int = 60,
        test_diaries: int = 220,
        train_days: Sequence[int] = (4, 8),
        test_days: Sequence[int] = (4, 10),
        long_days: int = 50,
        hard: bool = False,
        habits: Mapping[str, float] | None = None,
    ) -> None:
        sizes: dict[Pool, int] = {"train": train_diaries, "dev": dev_diaries, "test": test_diaries}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name}_diaries={size}; at least 1 is allowed")
        _check_days(train_days=train_days, test_days=test_days, long_days=(long_days, long_days))
        self.habits, self.hard = habits_of(DiaryHabits, habits or {}), hard
        self._diaries: dict[str, world.Diary] = {}
        self._splits: dict[str, tuple[Task, ...]] = {}
        for pool, size in sizes.items():
            tasks = []
            for index in range(size):
                kind = "long" if pool == "test" and index % LONG_EVERY == LONG_EVERY - 1 else "dialogue"
                lowest, highest = train_days if pool == "train" else test_days
                rng = generator("diary days", world_seed, pool, index)
                num_days = long_days if kind == "long" else rng.randint(lowest, highest)
                task_id = f"{'hard-' if hard else ''}diary-{world_seed}-{pool}-{index}-{kind}"
                self._diaries[task_id] = draw_diary(pool, num_days, world_seed, pool, index, hard=hard)
                tasks.append(self._diaries[task_id].task(task_id, kind))
            self._splits[pool] = tuple(tasks)
        self.fingerprint = hash_of([[n, [[t.id, t.metadata] for t in tasks]] for n, tasks in self._splits.items()])

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        here = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".json"))
        texts = ([p.name, p.read_text(encoding="utf-8")] for p in here)
        return hash_of(repr(self.habits), self.hard, names.names("train"), *texts)

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Empty: the facts are in the chunks."""
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}

    def diary(self, task: Task) -> world.Diary:
        """The diary from which the task was made. Raises DataError for a task of another world."""
        return drawn(self._diaries, task)

    def oracle(self, task: Task) -> Demonstrator:
        return Writer(self.diary(task), ideal)

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[Shelf]:
        """World i does not depend on `count`."""
        for index in range(count):
            yield Shelf(index, tasks_per_world, PHASES[index % len(PHASES)], self.habits, self.hard)


class Shelf:
    """One demonstration world (tasks.base.DemonstrationWorld): `days` days in all, in diaries of its phase."""

    def __init__(self, number: int, days: int, phase: int, habits: DiaryHabits, hard: bool) -> None:
        self.phase = phase
        self._habits = habits
        self._diaries: dict[str, world.Diary] = {}
        rng = generator("diary shelf", number)
        left = days
        while left > 0:
            task_id = f"demonstration-{number}-{len(self._diaries)}"
            num_days = min(left, _days_of(phase, rng))
            self._diaries[task_id] = draw_diary("train", num_days, task_id, rates=RATES[phase], hard=hard)
            left -= num_days
        self.tasks: Sequence[Task] = tuple(diary.task(i, "dialogue") for i, diary in self._diaries.items())

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def demonstrator(self, task: Task) -> Demonstrator:
        write = (copy, drill, careless(self._habits))[self.phase]
        skip = self._habits.skip if self.phase == 2 else 1.0
        # phase 0 shuffles the calls: a policy must find the place to copy from by its text, not by the previous place
        return Writer(self._diaries[task.id], write, skip=skip, in_order=self.phase != 0, key=task.id)


def _days_of(phase: int, rng: Random) -> int:
    """Draw a diary's number of days. A copy needs no memory, so one day; a drill needs changes soon."""
    return (1, rng.randint(3, 7), rng.randint(4, 10))[phase]


def _check_days(**given: Sequence[int]) -> None:
    for name, days in given.items():
        if len(days) != 2 or not 1 <= days[0] <= days[1]:
            raise ConfigError(f"{name}={list(days)}; two whole numbers, at least 1, the smaller one first, are allowed")
