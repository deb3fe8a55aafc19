"""Baselines for a learned memory: rules that choose what to keep, or what to read.

    nothing        keeps nothing: what a reader earns by chance
    everything     every sentence is an entry
    last_k         the last chunks
    rag_top1       keeps every chunk; for each question the best one is read
    rag_chunks     like rag_top1 with the best chunks
    rag_recent     like rag_chunks with a reader that follows changes in raw text, if the reader has such a form
    rag_sentences  like rag_recent by sentence: the strongest, as it keeps all and reads only the relevant sentences
    long_context   the reader gets every chunk; a model is shown all chunks, or the newest that fit in context_tokens

The reader is the policy's own. last_k and the rag baselines except rag_top1 take the number of whole chunks, or
sentences, that comes closest to the tokens of the policy's memory in tasks of the same kind, and at least one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import TypeAlias

from agentgrpo.core.types import Episode, Exit, Passage, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.factory import Runner
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.base import Reader
from agentgrpo.environments.memory.metrics import MEMORY_FIGURES, by_turn, episode_metrics
from agentgrpo.environments.memory.reader import in_sentences
from agentgrpo.environments.memory.search import bm25
from agentgrpo.tasks import dialogue
from agentgrpo.tasks.dialogue import Question

READ = "memory_tokens: read for a question, of all the chunks that it keeps"
WHOLE = "memory_tokens: of all chunks, which the reader is given and searches"
SHOWN = "memory_tokens: of the chunks that the model is shown in one prompt, in full: the newest, up to"
RECENT = "its reader takes what is newest for true, and reads what is withdrawn or changed"
Count: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text."""
Documents: TypeAlias = tuple[Passage, ...]
Rule: TypeAlias = Callable[[Documents, Sequence[Question], float], list[Documents]]
"""(chunks, questions, token budget) -> the documents read for each question, oldest first."""


def memory_baselines(
    share: Mapping[str, float], *, reader: Reader, count_tokens: Count, kind: str
) -> dict[str, Runner]:
    """kind: the kind of the policy's entries. share: kind of task -> the share of its tokens that may be kept; "" = any
    kind."""
    best = Best(count_tokens)
    rules: dict[str, tuple[Rule, Reader, str]] = {
        "nothing": (nothing, reader, ""),
        "everything": (Everything(kind), reader, ""),
        "last_k": (Last(count_tokens), reader, ""),
        "rag_top1": (best_one, reader, READ),
        "rag_chunks": (best, reader, READ),
    }
    aware = getattr(reader, "recency_aware", None)  # only ClozeReader has it
    if aware is not None:
        rules["rag_recent"] = (best, aware(), f"{READ}; {RECENT}")
        rules["rag_sentences"] = (BestSentences(count_tokens), aware(), f"{READ}, by sentence; {RECENT}")
    unsearched = getattr(reader, "unsearched", None)  # only model readers have it
    rules["long_context"] = (whole, reader, WHOLE)
    if unsearched is not None:
        shown, limit = unsearched(), reader.context_tokens  # type: ignore[attr-defined]
        rules["long_context"] = (Newest(count_tokens, limit), shown, f"{SHOWN} {limit:,} tokens")
    return {name: Ruled(rule, reads, count_tokens, share, note) for name, (rule, reads, note) in rules.items()}


class Ruled:
    """Implements environments.factory.Runner by a rule: nothing is sampled, and its episodes have no branches."""

    figures: Figures = MEMORY_FIGURES

    def __init__(
        self, rule: Rule, reader: Reader, count_tokens: Count, share: Mapping[str, float], note: str = ""
    ) -> None:
        self.note = note
        self._rule, self._reader, self._count, self._share = rule, reader, count_tokens, share

    async def run(
        self, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams, attempt: int = 0
    ) -> Episode:
        """Run one attempt. Its metrics are those of a policy that made no call, but memory_tokens and entries are means
        over the questions. Raises DataError for a task without chunks or questions, and the reader's JudgeError."""
        texts, questions = dialogue.chunks_of(task), dialogue.questions_of(task)
        chunks = tuple(Passage(id=f"chunk-{i}", text=text) for i, text in enumerate(texts))
        num_tokens = sum(map(self._count, texts))
        share = self._share.get(str(task.metadata.get("kind", "")), self._share[""])
        chosen = self._rule(chunks, questions, share * num_tokens)
        metrics = episode_metrics(
            [Counter()] * len(chunks),
            questions=len(questions),
            is_empty=not any(chosen),
            entries=fmean(map(len, chosen)),
            memory_tokens=fmean(sum(self._count(d.text) for d in documents) for documents in chosen),
            chunk_tokens=num_tokens,
        )
        return Episode(
            task=task,
            sample_index=sample_index,
            branches=(),
            answer=dialogue.join(await self._answers(questions, chosen)),
            exit=Exit.ANSWERED,
            metrics=metrics | {f"exit_{e.value}": float(e is Exit.ANSWERED) for e in Exit},
            metrics_by_turn=by_turn(()),
        )

    async def _answers(self, questions: Sequence[Question], chosen: Sequence[Documents]) -> list[str]:
        """Ask questions about the same documents together, because each set of documents needs an index or a prompt."""
        together: dict[tuple[str, ...], list[int]] = {}
        for place, documents in enumerate(chosen):
            together.setdefault(tuple(d.id for d in documents), []).append(place)
        answers: dict[int, str] = {}
        for places in together.values():
            found = await self._reader.answer([questions[i] for i in places], chosen[places[0]])
            answers |= dict(zip(places, found, strict=True))
        return [answers[i] for i in range(len(questions))]


def nothing(chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
    return [()] * len(questions)


def whole(chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
    return [chunks] * len(questions)


def best_one(chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
    return [ranked[:1] for ranked in _ranked(chunks, questions)]


class Newest:
    """The newest chunks that fit into `limit` tokens; at least one."""

    def __init__(self, count_tokens: Count, limit: int) -> None:
        self._count, self._limit = count_tokens, limit

    def __call__(self, chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
        sizes = accumulate(self._count(chunk.text) for chunk in reversed(chunks))
        fitting = max(1, sum(size <= self._limit for size in sizes))
        return [chunks[-fitting:]] * len(questions)


class Everything:
    """A memory into which every sentence was inserted once: a memory refuses duplicates."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
        texts = dict.fromkeys(piece.text for piece in in_sentences(chunks))
        entries = tuple(Passage(id=f"entry-{i}", text=text, title=self._kind) for i, text in enumerate(texts))
        return [entries] * len(questions)


class Last:
    def __init__(self, count_tokens: Count) -> None:
        self._count = count_tokens

    def __call__(self, chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
        taken = _closest(chunks[::-1], self._count, budget)
        return [taken[::-1]] * len(questions)


class Best:
    """The best chunks for each question by BM25."""

    def __init__(self, count_tokens: Count) -> None:
        self._count = count_tokens

    def __call__(self, chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
        taken = [{d.id for d in _closest(ranked, self._count, budget)} for ranked in _ranked(chunks, questions)]
        return [tuple(chunk for chunk in chunks if chunk.id in ids) for ids in taken]


class BestSentences:
    """`Best` with every sentence as a separate chunk."""

    def __init__(self, count_tokens: Count) -> None:
        self._best = Best(count_tokens)

    def __call__(self, chunks: Documents, questions: Sequence[Question], budget: float) -> list[Documents]:
        pieces = in_sentences(chunks)
        sentences = tuple(replace(piece, id=f"sentence-{i}") for i, piece in enumerate(pieces))
        return self._best(sentences, questions, budget)


def _ranked(chunks: Documents, questions: Sequence[Question]) -> list[Documents]:
    """For each question, the chunks that share words with it, best first; only the newest chunk if none does."""
    index = bm25().over(chunks)
    return [tuple(index.search(question.text, top_k=len(chunks))) or chunks[-1:] for question in questions]


def _closest(documents: Documents, count_tokens: Count, budget: float) -> Documents:
    """The first documents whose total comes closest to `budget` tokens; at least one, and the fewer of two equal
    choices."""
    sizes = list(accumulate(count_tokens(d.text) for d in documents))
    return documents[: 1 + min(range(len(sizes)), key=lambda k: abs(sizes[k] - budget))]
