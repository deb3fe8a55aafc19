"""The task set `questions`: a mixture of question-answer files, published or the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage, Task
from agentgrpo.tasks.base import SPLITS, split_of
from agentgrpo.tasks.generated import hash_of
from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.mixture import Mixture
from agentgrpo.tasks.questions.demonstrating import LANGUAGE, SOURCE, ReadingWorld
from agentgrpo.tasks.questions.intake import Corpora, Intake, QuestionSource, corpora_of
from agentgrpo.tasks.questions.splitting import Asked, Shares, dealt, interleaved, num_nearly_shared, sizes


class QuestionSet:
    """Questions dealt to splits (tasks.base.MixedDataset); with a corpus they can be demonstrated
    (tasks.base.TeachingDataset)."""

    language = LANGUAGE

    def __init__(
        self,
        *,
        asked: Sequence[Asked],
        corpora: Corpora,
        mixture: Mixture | None,
        notes: Sequence[str],
        settings: object,
    ) -> None:
        """settings: JSON of the settings that, besides the questions, determine the tasks and how often training meets
        them."""
        self._splits = {name: interleaved(one for one in asked if one.split == name) for name in SPLITS}
        self._corpora = corpora
        self.mixture, self.notes = mixture, tuple(notes)
        self.fingerprint = _hash_of(self._splits, [settings, corpora.fingerprint])

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora.passages

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return self._corpora.thesaurus

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        return hash_of(self.fingerprint, SOURCE)

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[ReadingWorld]:
        """Yield one world, whatever `count` is, of training questions with an answer. Raises ConfigError without a
        corpus."""
        if not self.corpora():
            raise ConfigError(
                "model.cold_start searches your documents for the answers, and task.corpus is not set: give the "
                "corpus, set model.cold_start.demonstrations=0, or show it your own first: agentgrpo sft "
                "demonstrations=chat"
            )
        yield ReadingWorld(self.split("train"), self.corpora(), tasks_per_world)


def questions(
    *,
    sources: Mapping[str, QuestionSource],
    corpus: str | None = None,
    web_corpus: str | None = None,
    thesaurus: str | None = None,
    corpus_keys: Mapping[str, str] | None = None,
    dev_fraction: float = 0.1,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> QuestionSet:
    """Read the questions of `sources`, by name, each with its own format, filter and weight. `corpus` and `web_corpus`
    are searched unless the retriever has its own.

    Questions that neither a source nor their rows assign go to a split by a hash of (seed, question): `test_fraction`
    to test, `dev_fraction` to dev, the others to train. No question is in two splits: test has precedence, then dev. A
    task's id is "SOURCE:ID"; its data_source, by which judge=route chooses, is the row's, else the source's name.

    corpus_keys: the names of id, text, title and url in both corpora.

    Raises DataError with file, row and reason for everything that cannot be read; ConfigError for contradictory
    settings."""
    if not sources:
        raise ConfigError("task.sources is empty; name what to read: task.sources.NAME.path=FILE")
    if unfit := [name for name in sources if ":" in name]:
        raise ConfigError(
            f"task.sources: '{unfit[0]}'; names must not contain ':', which ends the name in a task's id, \"SOURCE:ID\""
        )
    shares = Shares(dev=dev_fraction, test=test_fraction, seed=seed)
    asked: list[Asked] = []
    notes: list[str] = []
    malformed = Malformed()
    for name, source in sources.items():
        intake = Intake(name, source, shares, what=f"task.sources.{name}.path", prefix=f"{name}:")
        asked += intake.asked(malformed)
        notes += intake.notes()
    corpora = corpora_of(corpus, web_corpus, thesaurus, keys=corpus_keys or {}, malformed=malformed)
    malformed.refuse()
    kept, said = dealt(asked)
    notes += said
    if near := num_nearly_shared(kept):
        notes.append(f"{near} questions are nearly the same in two sources or splits (the same words, reordered)")
    count = sizes(kept)
    notes += [f"{name}: " + ", ".join(f"{s} {count.get((name, s), 0)}" for s in SPLITS) for name in sources]
    mixture = _mixture(sources, count)
    weights = None if mixture is None else dict(mixture.weights)
    return QuestionSet(
        asked=kept,
        corpora=corpora,
        mixture=mixture,
        notes=notes,
        settings=[dev_fraction, test_fraction, seed, weights],
    )


def _mixture(sources: Mapping[str, QuestionSource], count: Mapping[tuple[str, str], int]) -> Mixture | None:
    weights = {name: source.weight for name, source in sources.items()}
    trained = {name: weight for name, weight in weights.items() if count.get((name, "train"))}
    if all(weight is None for weight in trained.values()):
        return None
    if missing := [name for name, weight in trained.items() if weight is None]:
        given = next(name for name, weight in trained.items() if weight is not None)
        raise ConfigError(
            f"task.sources.{given}.weight={trained[given]} and task.sources.{missing[0]}.weight is null; give every "
            "source that trains a weight, or none of them"
        )
    if idle := [n for n, weight in weights.items() if weight and n not in trained]:
        raise ConfigError(
            f"task.sources.{idle[0]}.weight={weights[idle[0]]}, and it has no training question; set it to 0 or null"
        )
    if not any(trained.values()):
        raise ConfigError("task.sources: no source with training questions has a weight above 0; raise one")
    return Mixture(weights={name: weight for name, weight in trained.items() if weight is not None})


def _hash_of(splits: Mapping[str, Sequence[Task]], settings: object) -> str:
    digest = blake2b(json.dumps(settings).encode(), digest_size=16)
    for split, tasks in splits.items():
        for task in tasks:
            metadata = {key: value for key, value in task.metadata.items() if key != "split"}  # in the row already
            row = [split, task.id, task.question, task.references, task.data_source, metadata]
            row += [[m.role, m.content] for m in task.messages[:-1]]
            digest.update(json.dumps(row, default=str).encode())
    return digest.hexdigest()
