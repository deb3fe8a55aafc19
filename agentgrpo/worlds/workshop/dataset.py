"""The embedded task set for tools: small questions whose answers are computed, looked up in files, or stated in the
question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import Language, ToolDemonstrator, split_of
from agentgrpo.tasks.generated import drawn, habits_of, hash_of, refuse_other_kinds
from agentgrpo.worlds.almanac.world import Pool
from agentgrpo.worlds.workshop.demonstrator import Careless, WorkshopHabits, WorkshopOracle
from agentgrpo.worlds.workshop.world import Kind, Problem, beginning, draw_problem, items, kinds

LANGUAGE = Language(
    answer="Final Answer: ",
    control_strings=(
        *("Action: ", "\nAction Input: ", "\nObservation:", "Final Answer: "),
        *("calculator", "python", "lookup", "read_file"),
        *('{"expression": "', '{"code": "print(', '{"table": "', '", "key": "', '{"path": "', '"}', ')"}', '.txt"}'),
    ),
    words=(),
    splits_digits=True,
    parts=(beginning(),),
)
"""ReAct with JSON arguments. The fixed parts of a call are single tokens, separate from the chosen parts."""


KINDS = ("left", "more", "stock", "convert", "boxes", "none", "price", "cost", "ship", "moved", "pair", "note")


class Workshop:
    """Problems of the kinds `asked` (kinds.json), dealt in turn, so that the first n tasks of a split are balanced.
    Every problem has its own names, numbers and files, drawn for each `world_seed`. The splits draw names from disjoint
    pools, so that no item of dev or test occurs in training.

    `Task.metadata`: kind; files {name: text} of the episode's workspace (tables, one row a line, and note.txt);
    milestones (texts that tool results must show on the way to the answer); ideal_calls {tool: number}.

    Demonstrations are of the kinds `shown`, drawn from the train pool, and do not depend on `world_seed`; a kind comes
    `turns` times in each round. `habits`: see demonstrator.WorkshopHabits. Raises ConfigError."""

    language = LANGUAGE

    def __init__(
        self,
        *,
        world_seed: int = 0,
        train_tasks: int = 6000,
        dev_tasks: int = 240,
        test_tasks: int = 960,
        asked: Sequence[str] = KINDS,
        shown: Sequence[str] = KINDS,
        habits: Mapping[str, float] | None = None,
    ) -> None:
        sizes: dict[Pool, int] = {"train": train_tasks, "dev": dev_tasks, "test": test_tasks}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name}_tasks={size}; at least 1 is allowed")
        refuse_other_kinds(asked, kinds(), "task.asked")
        refuse_other_kinds(shown, kinds(), "task.shown")
        dealt, self._shown = ([kinds()[name] for name in names] for names in (asked, shown))
        self.habits = habits_of(WorkshopHabits, habits or {})
        self._problems: dict[str, Problem] = {}
        self._splits: dict[str, tuple[Task, ...]] = {}
        for pool, size in sizes.items():
            for index, kind in enumerate(islice(cycle(dealt), size)):
                task_id = f"workshop-{world_seed}-{pool}-{index}-{kind.name}"
                self._problems[task_id] = draw_problem(kind, pool, world_seed, pool, index)
            self._splits[pool] = tuple(
                p.task(i) for i, p in islice(self._problems.items(), len(self._problems) - size, None)
            )
        self.fingerprint = hash_of(
            [[n, [[t.id, t.question, t.references, t.metadata] for t in tasks]] for n, tasks in self._splits.items()]
        )

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        here = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".json"))
        shown = [kind.name for kind in self._shown]
        sources = [[p.name, p.read_text(encoding="utf-8")] for p in here]
        return hash_of(repr(self.habits), shown, items("train"), *sources)

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        """Empty: the facts are in the files."""
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}

    def oracle(self, task: Task) -> ToolDemonstrator:
        return WorkshopOracle(drawn(self._problems, task))

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[Bench]:
        """World i does not depend on `count`."""
        for index in range(count):
            yield Bench(index, tasks_per_world, self._shown, self.habits)


class Bench:
    """One demonstration world (tasks.base.DemonstrationWorld)."""

    phase = 0

    def __init__(self, number: int, num_tasks: int, shown: Sequence[Kind], habits: WorkshopHabits) -> None:
        name = f"demonstration-{number}"
        turns = [kind for kind in shown for _ in range(kind.turns)]
        self._problems = {
            f"{name}-{index}-{kind.name}": draw_problem(kind, "train", name, index)
            for index, kind in enumerate(islice(cycle(turns), num_tasks))
        }
        self._habits = habits
        self.tasks: Sequence[Task] = tuple(problem.task(task_id) for task_id, problem in self._problems.items())

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def demonstrator(self, task: Task) -> ToolDemonstrator:
        return Careless(self._problems[task.id], self._habits, key=task.id)
