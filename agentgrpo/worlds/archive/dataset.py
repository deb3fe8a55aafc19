"""The task set of the archive: the kinds of questions that are asked, and the smaller part that is demonstrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentgrpo.config.values import Share
from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.renderers.train_tokenizer import labels
from agentgrpo.tasks.base import Demonstrator, Language, split_of
from agentgrpo.tasks.generated import drawn, hash_of, refuse_other_kinds
from agentgrpo.worlds.almanac.world import Pool, names
from agentgrpo.worlds.archive.demonstrator import ArchiveOracle, PartialDemonstrator
from agentgrpo.worlds.archive.world import UNKNOWN, ArchiveQuestion, ArchiveWorld, draw_archive, relations_of, words

POOLS: tuple[Pool, ...] = ("train", "dev", "test")
CONTROL_STRINGS = (
    '<search retriever="',
    '<searches retriever="',
    '">',
    "</search>",
    "\n</searches>",
    "<fetch>",
    "</fetch>",
    "<subquestions>\n",
    "\n</subquestions>",
    "<answer>",
    "</answer>",
    "\n<information>\n",
    "\n</information>\n",
    "\n<full_page>\n",
    "\n</full_page>\n",
    "<subquestions_feedback>\nNot searched successfully yet:\n",
    "\n</subquestions_feedback>\n",
    *labels(rounds=7, queries=2, docs=2),
)


class Archive:
    """Three casts of companies, products, people and cities, one per split, with names from disjoint pools. Dev and
    test search the documents of all three casts, training only those of its own cast (`training_corpora`).

    asked, shown: kinds of tasks, dealt round-robin, so the first n tasks of a split are balanced; a kind named twice
    comes twice as often. A kind is a chain of relations, first hop first ("maker+founder": the founder of the maker of
    X); with & at its end it asks about two subjects at once. unseen: further kinds, only in dev and test.
    retries: relations whose demonstrations search the other source if the first has nothing, and answer "unknown" if no
    source states the fact. web, plans: how often a demonstration searches the web first, and plans a chain.
    Raises ConfigError."""

    language = Language(answer="<answer>", control_strings=CONTROL_STRINGS, words=("web", "vdb"))

    def __init__(
        self,
        *,
        asked: Sequence[str],
        shown: Sequence[str],
        unseen: Sequence[str] = (),
        retries: Sequence[str] = (),
        web: Share = 0.5,
        plans: Share = 0.5,
        world_seed: int = 0,
        num_companies: int = 400,
        dev_companies: int = 25,
        test_companies: int = 100,
        demonstration_companies: int = 40,
    ) -> None:
        for kinds, setting in ((asked, "task.asked"), (shown, "task.shown"), (unseen, "task.unseen")):
            for kind in kinds:
                _refuse_impossible(kind, setting)
            if not kinds and setting != "task.unseen":
                raise ConfigError(f"{setting}=[]; name at least one kind of question, such as founder or maker+founder")
        for relation in retries:
            refuse_other_kinds([relation], words().relations, "task.retries")
        self.shown, self.retries, self.web, self.plans = tuple(shown), tuple(retries), web, plans
        self.demonstration_companies = demonstration_companies
        sizes: dict[Pool, int] = {"train": num_companies, "dev": dev_companies, "test": test_companies}
        self._questions: dict[str, ArchiveQuestion] = {}
        self._splits: dict[str, tuple[Task, ...]] = {}
        by_pool: dict[Pool, Mapping[str, Sequence[Passage]]] = {}
        for pool in POOLS:
            rng = generator("archive", world_seed, pool)
            world = draw_archive(names(pool), sizes[pool], rng)
            kinds = asked if pool == "train" else [*asked, *unseen]
            dealt = [(q.task(f"archive-{world_seed}"), q) for q in _round_robin(world, kinds, f"{world_seed} {pool}")]
            self._splits[pool] = tuple(task for task, _ in dealt)
            self._questions.update({task.id: question for task, question in dealt})
            by_pool[pool] = world.corpora
        self._training_corpora = by_pool["train"]
        self._corpora = {
            name: tuple(passage for corpora in by_pool.values() for passage in corpora[name])
            for name in self._training_corpora
        }
        self.fingerprint = hash_of(
            *(
                [[name, [[p.id, p.text, p.url] for p in passages]] for name, passages in corpora.items()]
                for corpora in (self._corpora, self._training_corpora)
            ),
            [[name, [[t.id, t.question, t.references] for t in tasks]] for name, tasks in self._splits.items()],
        )

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        here = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".json"))
        settings = [self.shown, self.retries, self.web, self.plans, self.demonstration_companies]
        return hash_of(settings, *([p.name, p.read_text(encoding="utf-8")] for p in here))

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def training_corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._training_corpora

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}

    def oracle(self, task: Task) -> Demonstrator:
        return ArchiveOracle(self.question(task))

    def question(self, task: Task) -> ArchiveQuestion:
        """The question from which a task was made. Raises DataError for a task of another world."""
        return drawn(self._questions, task)

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[ArchiveLesson]:
        """World i does not depend on `count`. Raises ConfigError if a world has fewer tasks than `tasks_per_world`."""
        for index in range(count):
            world = draw_archive(names("train"), self.demonstration_companies, generator("archive lesson", index))
            yield ArchiveLesson(self, world, f"lesson-{index}", tasks_per_world)


class ArchiveLesson:
    """One demonstration world (tasks.base.DemonstrationWorld)."""

    phase = 0

    def __init__(self, archive: Archive, world: ArchiveWorld, name: str, num_tasks: int) -> None:
        self._archive, self._world = archive, world
        # only relations of `retries` demonstrate facts that no source states
        dealt = [
            (question.task(name), question)
            for question in _round_robin(world, archive.shown, name)
            if question.answer != UNKNOWN or question.kind in archive.retries
        ][:num_tasks]
        if len(dealt) < num_tasks:
            raise ConfigError(
                f"tasks_per_world={num_tasks}; a demonstration world has {len(dealt)} tasks. Choose fewer, or more "
                "demonstration_companies"
            )
        self.tasks: Sequence[Task] = tuple(task for task, _ in dealt)
        self._questions = {task.id: question for task, question in dealt}

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._world.corpora

    def demonstrator(self, task: Task) -> Demonstrator:
        given = self._archive
        return PartialDemonstrator(
            self._questions[task.id], key=task.id, web=given.web, plans=given.plans, retries=given.retries
        )


def _round_robin(world: ArchiveWorld, kinds: Sequence[str], key: str) -> list[ArchiveQuestion]:
    """Return the questions of these kinds (at least one) in turn, until a kind has none left."""
    left = {kind: iter(world.questions(kind, generator("archive", key, kind))) for kind in kinds}
    dealt: list[ArchiveQuestion] = []
    while True:
        turn = [question for kind in kinds if (question := next(left[kind], None)) is not None]
        if len(turn) < len(kinds):
            return dealt
        dealt += turn


def _refuse_impossible(kind: str, setting: str) -> None:
    """Raise ConfigError for an unknown relation, or one that cannot follow the previous one."""
    relations, _ = relations_of(kind)
    known = words().relations
    for i, relation in enumerate(relations):
        if relation not in known:
            raise ConfigError(f"{setting} has {kind!r}; {', '.join(known)} are relations, joined by +, & for two")
        if i and known[relation].of != (found := known[relations[i - 1]].is_):
            raise ConfigError(
                f"{setting} has {kind!r}: {relations[i - 1]} is a {found}, and {relation} that of a "
                f"{known[relation].of}; choose a relation that can follow"
            )
