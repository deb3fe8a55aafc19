"""environment=reasoning_gym: generated questions of the package reasoning-gym, scored by the data sets they come from.

question -> turn -> the text in its last <answer>...</answer>, or the whole turn -> score_answer
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from itertools import cycle, islice, zip_longest
from typing import Any

from agentgrpo.config.values import Count, CountOrZero, Positive
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Episode, Exit, Message, Passage, Task
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.published.aside import Aside, Refused, refusal, refuse_missing
from agentgrpo.renderers.base import Renderer
from agentgrpo.tasks.base import SPLITS, Language, split_of
from agentgrpo.tasks.generated import hash_of
from agentgrpo.tasks.seeds import SPACE, names_of, seeds_of

_WORKER = "agentgrpo.environments.published.reasoning_gym_worker"
_DRAWS = 20
"""Most rounds of drawing demonstrations; each round draws the number wanted."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
SYSTEM_PROMPT = (
    "Given a problem, your task is to answer the question by thinking step-by-step in a clear and specific manner.\n"
    "Once you have thought about the reasoning process, provide the answer in the following format:\n"
    "<answer>answer here</answer>\n"
    "Do not explain your reasoning inside the answer tags, provide only the final answer. When an example is provided, "
    "you should strictly follow the format of the output/answer in that example.\n"
)
"""The package's own prompt, SYSTEM_PROMPTS["default"]."""


def specs_of(
    dataset: str | Sequence[str], settings: Mapping[str, Any], level: int | None
) -> dict[str, Mapping[str, Any]]:
    """Return name -> the specification from which the worker makes the data set. settings: of the one data set, or by
    name if there are several."""
    names = names_of(dataset, "environment.dataset")
    by_name = {names[0]: settings} if isinstance(dataset, str) else settings
    for name, given in by_name.items():
        if name not in names or not isinstance(given, Mapping):
            raise ConfigError(
                f"environment.settings.{name}={given!r}; with several data sets, settings are given by name: "
                f"environment.settings.{names[0]}.KEY=VALUE"
            )
        if odd := {"seed", "size"} & given.keys():
            raise ConfigError(
                f"environment.settings.{min(odd)}: choose task.seed, task.train_tasks and task.test_tasks"
            )
    return {name: {"name": name, "settings": dict(by_name.get(name, {})), "level": level} for name in names}


class ReasoningGymTasks:
    """Implements tasks.base.MixedDataset and DemonstratedDataset: entries of one data set, or of several in turn. A
    question of test or dev is left out of training and of demonstrations. Demonstrations have separate seeds and give
    the data set's own answer at once.

    `Task.metadata`: kind (the data set), seed, size and index of the entry. Raises ConfigError, and DataError if a
    split has no question left."""

    mixture = None
    language = Language(answer="<answer>")

    def __init__(
        self,
        *,
        dataset: str | Sequence[str],
        settings: Mapping[str, Any] | None = None,
        level: CountOrZero | None = None,
        seed: int = 0,
        train_tasks: Count = 1000,
        dev_tasks: Count = 100,
        test_tasks: Count = 500,
    ) -> None:
        refuse_missing("reasoning_gym")
        specs = self._specs = specs_of(dataset, settings or {}, level)
        sizes = {"train": train_tasks, "dev": dev_tasks, "test": test_tasks}
        asked: set[str] = set()
        found: dict[str, tuple[Task, ...]] = {}
        self.notes: list[str] = []
        with _worker() as worker:
            drawn = {
                split: _drawn(worker, specs, split, seeds.start, len(seeds))
                for split, seeds in seeds_of(seed, sizes).items()
            }
        for split in reversed(SPLITS):
            kept: dict[str, Task] = {}
            for task in drawn[split]:
                if task.question not in asked:
                    kept.setdefault(task.question, task)
            if not kept:
                raise DataError(f"task.{split}_tasks={sizes[split]}: all are asked in test or dev too; ask fewer there")
            if left := sizes[split] - len(kept):
                self.notes.append(f"{left} of {sizes[split]} {split} questions left out: asked twice, or held out")
            asked |= kept.keys()
            found[split] = tuple(kept.values())
        self._splits = {split: found[split] for split in SPLITS}
        self.fingerprint = hash_of([[[t.id, t.question, t.references] for t in ts] for ts in self._splits.values()])

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}

    def oracle(self, task: Task) -> Answering:
        return Answering(task)

    @property
    def demonstration_fingerprint(self) -> str:
        return hash_of(list(self._specs.values()), version("reasoning-gym"), sorted(self._held_out))

    @property
    def _held_out(self) -> set[str]:
        return {task.question for split in ("dev", "test") for task in self._splits[split]}

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[Shown]:
        with _worker() as worker:
            for index in range(count):
                yield Shown(self._shown(worker, index, count, tasks_per_world))

    def _shown(self, worker: Aside, index: int, count: int, number: int) -> list[Task]:
        """Draw each data set's share of tasks, replacing held-out questions; fewer if hardly any question is left."""
        held_out, shares = self._held_out, Counter(islice(cycle(self._specs), number))
        found: dict[str, list[Task]] = {name: [] for name in shares}
        for draw in range(_DRAWS):
            seed = len(SPLITS) * SPACE + (draw * count + index) * number
            for task in _drawn(worker, self._specs, "shown", seed, number):
                kind = task.metadata["kind"]
                if task.question not in held_out and len(found[kind]) < shares[kind]:
                    found[kind].append(task)
            if all(len(tasks) == shares[kind] for kind, tasks in found.items()):
                break
        return [task for tasks in zip_longest(*found.values()) for task in tasks if task is not None]


class Answering:
    """Implements tasks.base.ToolDemonstrator."""

    def __init__(self, task: Task) -> None:
        self._answer = task.references[0] if task.references else ""

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return ParsedTurn(content=f"<answer>{self._answer}</answer>")


class Shown:
    """Implements tasks.base.DemonstrationWorld: the tasks that have an answer."""

    phase = 0

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = [task for task in tasks if task.references]

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return {}

    def demonstrator(self, task: Task) -> Answering:
        return Answering(task)


@contextmanager
def _worker() -> Iterator[Aside]:
    worker = Aside(f"{_WORKER}:rows", what="reasoning_gym")
    try:
        yield worker
    finally:
        worker.close()


def _drawn(worker: Aside, specs: Mapping[str, Mapping[str, Any]], split: str, seed: int, count: int) -> list[Task]:
    dealt = list(islice(cycle(specs), count))
    of: dict[str, list[Task]] = {}
    for name, spec in specs.items():
        size = dealt.count(name)
        try:
            entries = worker.call_now({"dataset": spec, "seed": seed, "size": size}) if size else []
        except Refused as e:
            raise refusal(f"environment.dataset={name}", e) from e
        of[name] = [
            Task(
                id=f"{name}:{split}-{seed + index}",
                messages=(Message(role="user", content=question),),
                references=() if answer is None else (answer,),
                metadata={"kind": name, "seed": seed, "size": size, "index": index},
                data_source="reasoning_gym",
            )
            for index, (question, answer) in enumerate(entries)
        ]
    return [next(tasks) for tasks in islice(cycle([iter(of[name]) for name in specs]), count)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReasoningGymEnvironments(EnvironmentDefaults):
    """Implements environments.factory.EnvironmentFactory. Raises ConfigError."""

    name = "reasoning_gym"
    speaks_of_tools = True
    """Chat models are prompted with their own chat template."""
    pays_itself = True
    renderer: Renderer

    dataset: str | tuple[str, ...]
    """One of the package's data sets, or several."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the data set, such as min_terms; by name for several data sets."""
    level: CountOrZero | None = None
    """Level of the data set's own curriculum, for all its attributes; `settings` take precedence. null = the data set's
    defaults."""
    system_prompt: str | None = SYSTEM_PROMPT
    """System message before the question; null = no system message."""
    max_context: int | None = 4096
    """Tokens of an episode; null = as many as the engine holds."""
    timeout_s: Positive = 60.0
    """Seconds for scoring one answer; after that the scoring process is ended and the attempt has failed."""
    processes: Count = 1
    """Processes that score answers."""

    def __post_init__(self) -> None:
        refuse_missing("reasoning_gym")
        _ = self.specs

    @cached_property
    def specs(self) -> Mapping[str, Mapping[str, Any]]:
        return specs_of(self.dataset, self.settings, self.level)

    @cached_property
    def scorer(self) -> Aside:
        what = "score_answer of reasoning_gym"
        return Aside(f"{_WORKER}:score", what=what, processes=self.processes, timeout_s=self.timeout_s)

    @property
    def figures(self) -> Figures:
        return Figures(
            columns=("score", "solved", "tagged", "unscored", "answer_tokens"),
            headline=("score", "solved", "answer_tokens", "cost"),
            by_kind=("score", "solved", "answer_tokens"),
            quality="score",
            is_graded=False,
            spending="answer_tokens",
        )

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(max_turns=1, max_context=self.max_context)

    def opening(self, task: Task) -> list[Message]:
        system = [] if self.system_prompt is None else [Message(role="system", content=self.system_prompt)]
        return [*system, *task.messages]

    def make(self, attempt: Attempt) -> ReasoningGymEnvironment:
        return ReasoningGymEnvironment(self, attempt)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory."""
        if task.metadata.get("kind") not in self.specs or not {"seed", "size", "index"} <= task.metadata.keys():
            raise ConfigError(
                f"task {task.id} is no entry of environment.dataset={','.join(self.specs)}; choose task=reasoning_gym"
            )
        room = min(max_context, self.max_context or max_context)
        if (taken := self.opening_tokens(task, most=room)) >= room:
            raise ConfigError(
                f"task {task.id} opens with {taken} tokens and environment.max_context={self.max_context} (the engine "
                f"holds {max_context}) leaves no room for an answer; raise the lower of the two, or give a shorter "
                "environment.system_prompt"
            )

    def opening_tokens(self, task: Task, *, most: int) -> int:
        """See environments.factory.EnvironmentFactory."""
        return len(self.renderer.open(self.opening(task)))

    async def close(self) -> None:
        self.scorer.close()


class ReasoningGymEnvironment:
    """Implements environments.base.Environment."""

    def __init__(self, options: ReasoningGymEnvironments, attempt: Attempt) -> None:
        self._options, self._attempt = options, attempt

    async def reset(self, task: Task) -> Observation:
        return Observation(messages=self._options.opening(task), is_last=True)

    async def step(self, turn: Turn) -> Observation:
        task, tagged = self._attempt.task, _ANSWER.findall(turn.content)
        answer = (tagged[-1] if tagged else turn.content).strip()
        entry = {key: task.metadata[key] for key in ("seed", "size", "index")}
        given = {"dataset": self._options.specs[task.metadata["kind"]], **entry}
        score, is_scored = await self._options.scorer.call(
            {**given, "question": task.question, "answer": answer}, key=task.id
        )
        measured = {"score": score, "solved": float(score >= 1.0), "tagged": float(bool(tagged))}
        measured |= {"unscored": float(not is_scored), "answer_tokens": float(len(turn.token_ids))}
        return Observation(done=Exit.ANSWERED, answer=answer, metrics=measured)

    async def score(self, episode: Episode) -> Scores:
        """The reward is the data set's own score; it is 0 without an answer."""
        return {"reward": episode.metrics.get("score", 0.0)}

    async def close(self) -> None:
        """There is nothing to close."""
