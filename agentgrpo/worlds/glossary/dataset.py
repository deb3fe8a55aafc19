"""The task set over WordNet. A question asks for the word with a meaning, for the kind of a word, or for two in a
row."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Message, Passage, Task
from agentgrpo.tasks.base import Language, ToolDemonstrator, split_of
from agentgrpo.tasks.generated import drawn, hash_of, refuse_other_kinds
from agentgrpo.tasks.scripts import Script, answer, call, turn_after
from agentgrpo.worlds.glossary.wordnet import Noun, read_nouns

Kind = Literal["word", "kind", "above", "both"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_QUESTIONS: Mapping[Kind, str] = {
    "word": "Which word means: {meaning}?",
    "kind": "What is a {word}?",
    "above": "What kind of thing is the kind of a {word}?",
    "both": "What kind of thing is the word that means: {meaning}?",
}
_SHARES = {"train": 0.8, "dev": 0.05, "test": 0.15}


class _Question(NamedTuple):
    kind: Kind
    noun: Noun
    above: str | None
    """The kind of its kind, if the corpus states it."""

    def task(self, task_id: str) -> Task:
        noun = self.noun
        supporting = {
            "word": [f"{noun.word}-word"],
            "kind": [f"{noun.word}-kind"],
            "above": [f"{noun.word}-kind", f"{noun.kind}-kind"],
            "both": [f"{noun.word}-word", f"{noun.word}-kind"],
        }[self.kind]
        answer = {"word": noun.word, "above": self.above or ""}.get(self.kind, noun.kind)
        return Task(
            id=task_id,
            messages=(Message(role="user", content=_QUESTIONS[self.kind].format(**noun._asdict())),),
            references=(answer,),
            metadata={"kind": self.kind, "supporting": supporting, "ideal_calls": {"search": len(supporting)}},
            data_source="glossary",
        )


def _deal(nouns: Sequence[Noun], kinds: Sequence[Kind], kind_of: Mapping[str, str]) -> Iterator[_Question]:
    """Yield questions of `kinds` in turn, each about the next suitable noun, until a kind has none. A noun comes
    once."""
    asked_twice = deque(noun for noun in nouns if noun.kind in kind_of)
    others = deque(noun for noun in nouns if noun.kind not in kind_of)
    for kind in cycle(kinds):
        left = asked_twice if kind == "above" else others or asked_twice
        if not left:
            return
        noun = left.popleft()
        yield _Question(kind, noun, kind_of.get(noun.kind))


class Glossary:
    """Questions of the kinds `asked` about WordNet's nouns, dealt in turn. A noun belongs to one split, so that no
    question of dev or test is asked in training; all splits search one corpus.

    For each noun the corpus has one passage with its meaning and one with its kind. `above` and `both` take two
    searches, and the second query depends on the first result. Demonstrations are of the kinds `shown`.
    `Task.metadata`: kind; supporting (passage ids, in order); ideal_calls. Raises DataError, ConfigError."""

    language = Language(answer="Final Answer: ")

    def __init__(
        self,
        *,
        path: str,
        nouns: int = 6000,
        world_seed: int = 0,
        asked: Sequence[str] = KINDS,
        shown: Sequence[str] = KINDS,
    ) -> None:
        """path: the folder of WordNet's database. nouns: maximum number of nouns, drawn by `world_seed`."""
        if nouns < 40:
            raise ConfigError(f"task.nouns={nouns}; at least 40 are needed")
        refuse_other_kinds(asked, KINDS, "task.asked")
        refuse_other_kinds(shown, KINDS, "task.shown")
        self._shown = cast(Sequence[Kind], shown)
        found = read_nouns(Path(path).expanduser())
        rng = generator("glossary", world_seed)
        chosen = rng.sample(found, min(nouns, len(found)))
        self._questions: dict[str, _Question] = {}
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._nouns: dict[str, list[Noun]] = {}
        self._kind_of = {noun.word: noun.kind for noun in chosen}
        begin = 0
        for name, share in _SHARES.items():
            end = begin + round(share * len(chosen))
            self._nouns[name] = chosen[begin:end]
            dealt = {
                f"glossary-{world_seed}-{name}-{index}-{question.kind}": question
                for index, question in enumerate(_deal(chosen[begin:end], cast(Sequence[Kind], asked), self._kind_of))
            }
            self._questions |= dealt
            self._splits[name] = tuple(question.task(task_id) for task_id, question in dealt.items())
            begin = end
        self._corpora = {"vdb": _passages(chosen)}
        self.fingerprint = hash_of(
            [[p.id, p.title, p.text] for p in self._corpora["vdb"]],
            [[n, [[t.id, t.question, t.references] for t in tasks]] for n, tasks in self._splits.items()],
        )

    @property
    def demonstration_fingerprint(self) -> str:
        """Hash of everything that determines the demonstration worlds and the demonstrations in them."""
        return hash_of(self.fingerprint, self._shown, Path(__file__).read_text("utf-8"))

    def split(self, name: str) -> Sequence[Task]:
        return split_of(self._splits, name)

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def thesaurus(self) -> Mapping[str, Sequence[str]]:
        return {}

    def oracle(self, task: Task) -> ToolDemonstrator:
        return GlossaryOracle(drawn(self._questions, task))

    def demonstration_worlds(self, count: int, tasks_per_world: int) -> Iterator[_Shelf]:
        """Yield worlds of training nouns, with the whole corpus. World i does not depend on `count`."""
        for index in range(count):
            nouns = generator("glossary demonstration", index).sample(self._nouns["train"], len(self._nouns["train"]))
            questions = islice(_deal(nouns, self._shown, self._kind_of), tasks_per_world)
            yield _Shelf(f"demonstration-{index}", questions, self._corpora)


class _Shelf:
    """One demonstration world (tasks.base.DemonstrationWorld)."""

    phase = 0

    def __init__(self, name: str, questions: Iterable[_Question], corpora: Mapping[str, Sequence[Passage]]) -> None:
        self._corpora = corpora
        self._questions = {f"{name}-{index}-{q.kind}": q for index, q in enumerate(questions)}
        self.tasks: Sequence[Task] = tuple(q.task(task_id) for task_id, q in self._questions.items())

    def corpora(self) -> Mapping[str, Sequence[Passage]]:
        return self._corpora

    def demonstrator(self, task: Task) -> ToolDemonstrator:
        return GlossaryOracle(self._questions[task.id])


class GlossaryOracle:
    """Searches for the words of the question, then for the word that it found. It reads the results, and answers
    "unknown" if the passage is not among them."""

    def __init__(self, question: _Question) -> None:
        self._question = question

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return turn_after(answered, self._script())

    def _script(self) -> Script:
        kind, noun, _ = self._question
        word: str | None = noun.word
        if kind in ("word", "both"):
            observed = yield call("search", query=noun.meaning)
            word = _read(rf"(\w+): {re.escape(noun.meaning)}", observed)
        for _ in range({"word": 0, "above": 2}.get(kind, 1)):
            if word is not None:
                observed = yield call("search", query=f"{word} is a kind of")
                word = _read(rf"{word}: {word} is a kind of (\w+)", observed)
        return answer(word or "unknown")


def _read(row: str, observed: str) -> str | None:
    found = re.search(rf"^\[\d+\] {row}$", observed, re.MULTILINE)
    return None if found is None else found[1]


def _passages(nouns: Sequence[Noun]) -> tuple[Passage, ...]:
    # Retrieval ignores word order: the title ranks the kind of X above the things whose kind is X.
    return tuple(
        passage
        for noun in nouns
        for passage in (
            Passage(id=f"{noun.word}-word", title=noun.word, text=noun.meaning),
            Passage(id=f"{noun.word}-kind", title=noun.word, text=f"{noun.word} is a kind of {noun.kind}"),
        )
    )
