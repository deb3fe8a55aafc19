"""What a learned memory is held against: what each baseline reads for which question, and what it reports of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentgrpo.core.errors import DataError, JudgeError
from agentgrpo.core.types import Exit, Passage, Piece, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.memory.baselines import READ, RECENT, SHOWN, WHOLE, memory_baselines
from agentgrpo.environments.memory.metrics import ADDITIVE, NAMES
from agentgrpo.environments.memory.reader import ClozeReader, CompleterReader
from agentgrpo.environments.memory.validity import NoValidity
from agentgrpo.tasks.dialogue import Question, memory_task, split
from tests import builders
from tests.environments.memory.models import Spoken
from tests.judges.llm.models import blocks
from tests.runners import memory_runner

CHUNKS = (
    "Velmor lives in Castin. It rains.",
    "Dorin works for Halvar.",
    "Velmor now lives in Roka. It rains.",
    "Perhaps Dorin works for Zelt.",
)
"""6, 4, 7 and 5 words."""
LIVES, BEFORE, WORKS = "Velmor lives in ___", "Velmor lives before ___", "Dorin works for ___"
TASK = memory_task(
    "d0",
    chunks=CHUNKS,
    questions=[
        Question(text=text, answers=(answer,))
        for text, answer in ((LIVES, "Roka"), (BEFORE, "Castin"), (WORKS, "Halvar"))
    ],
    data_source="test",
    metadata={"kind": "short"},
)
NAMES_OF = ("nothing", "everything", "last_k", "rag_top1", "rag_chunks", "rag_recent", "rag_sentences", "long_context")
Asked = list[tuple[list[str], list[tuple[str, str]]]]


class Echo:
    """A reader that answers with the number of its documents, and keeps what it was asked."""

    identity = "echo"

    def __init__(self) -> None:
        self.asked: Asked = []

    async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
        self.asked.append(([q.text for q in questions], [(d.title, d.text) for d in documents]))
        return [f"{len(documents)} for {q.text}" for q in questions]

    def counts(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


def words(text: str) -> int:
    return len(text.split())


class Words:
    """Of a renderer, what counts tokens: a word is one."""

    def observe(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return (0,) * sum(words(piece.text) for piece in pieces)


def chunks(*places: int) -> list[tuple[str, str]]:
    return [("", CHUNKS[place]) for place in places]


async def asked(name: str, share: float) -> tuple[Asked, list[str], dict[str, float]]:
    """What the reader is asked, what comes of it, and the metrics that are not 0."""
    reader = Echo()
    agent = memory_baselines({"": share}, reader=reader, count_tokens=words, kind="fact")[name]
    episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
    assert (episode.branches, episode.turns, episode.exit) == ((), (), Exit.ANSWERED)
    assert episode.metrics.keys() == NAMES
    assert episode.metrics_by_turn == dict.fromkeys(ADDITIVE, ())
    metrics = {k: v for k, v in episode.metrics.items() if v}
    always = {"chunks": 4.0, "questions": 3.0, "chunk_tokens": 22.0, "exit_answered": 1.0}
    assert metrics.items() >= always.items()
    return reader.asked, split(episode.answer or "", 3), {k: v for k, v in metrics.items() if k not in always}


def measured(entries: float, tokens: float) -> dict[str, float]:
    share = tokens / 22
    found = {"reader_calls": 3.0, "entries": entries, "memory_tokens": tokens, "memory_share": share}
    return found | ({"compression": 1 - share} if share < 1 else {})


ALL = [LIVES, BEFORE, WORKS]


async def test_nothing_is_an_empty_memory() -> None:
    found = await asked("nothing", 0.5)
    assert found == ([(ALL, [])], [f"0 for {q}" for q in ALL], {"empty_memory": 1.0, "compression": 1.0})


async def test_everything_is_each_sentence_once_as_an_entry() -> None:
    texts = ["Velmor lives in Castin.", "It rains.", "Dorin works for Halvar.", "Velmor now lives in Roka."]
    texts.append("Perhaps Dorin works for Zelt.")
    found = await asked("everything", 0.5)
    assert found == ([(ALL, [("fact", t) for t in texts])], [f"5 for {q}" for q in ALL], measured(5.0, 20.0))


@pytest.mark.parametrize(
    ("share", "places", "tokens"),
    [
        (0.0, (3,), 5.0),  # one at least
        (8 / 22, (3,), 5.0),  # 5 is nearer to 8 than 12
        (8.5 / 22, (3,), 5.0),  # the fewer of two that are equally near
        (9 / 22, (2, 3), 12.0),
        (14.1 / 22, (1, 2, 3), 16.0),
        (1.5, (0, 1, 2, 3), 22.0),
    ],
)
async def test_the_last_chunks_are_those_nearest_to_the_budget(
    share: float, places: tuple[int, ...], tokens: float
) -> None:
    found = await asked("last_k", share)
    n = len(places)
    assert found == ([(ALL, chunks(*places))], [f"{n} for {q}" for q in ALL], measured(float(n), tokens))


async def test_the_best_chunk_is_read_whatever_the_budget() -> None:
    """Both questions about Velmor find the shorter chunk, and share a reading."""
    found = await asked("rag_top1", 0.0)
    assert found[0] == [([LIVES, BEFORE], chunks(0)), ([WORKS], chunks(1))]
    assert found[1:] == ([f"1 for {q}" for q in ALL], measured(1.0, (6 + 6 + 4) / 3))


async def test_the_best_chunks_are_read_oldest_first_up_to_the_budget() -> None:
    """13 tokens of Velmor, 9 of Dorin: what shares no word with a question is not read, however much may be."""
    found = await asked("rag_chunks", 1.0)
    assert found[0] == [([LIVES, BEFORE], chunks(0, 2)), ([WORKS], chunks(1, 3))]
    assert found[1:] == ([f"2 for {q}" for q in ALL], measured(2.0, (13 + 13 + 9) / 3))
    assert (await asked("rag_chunks", 7 / 22))[0] == [([LIVES, BEFORE], chunks(0)), ([WORKS], chunks(1, 3))]


async def test_the_best_sentences_are_read_oldest_first_up_to_the_budget() -> None:
    """9 words of Velmor in two sentences, and none of the rain that is told with them."""
    asked: list[list[str]] = []

    class Aware(Echo):
        def recency_aware(self) -> Aware:
            return self

        async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
            asked.append([d.text for d in documents])
            return await super().answer(questions, documents)

    for share, found in ((9 / 22, [CHUNKS[0][:23], CHUNKS[2][:25]]), (5 / 22, [CHUNKS[0][:23]])):
        agent = memory_baselines({"": share}, reader=Aware(), count_tokens=words, kind="fact")["rag_sentences"]
        task = replace(TASK, metadata={**TASK.metadata, "questions": [{"question": LIVES, "answers": ["Roka"]}]})
        episode = await agent.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
        assert (asked.pop(), episode.metrics["memory_tokens"]) == (found, sum(map(words, found)))


async def test_where_no_chunk_shares_a_word_the_newest_is_read() -> None:
    task = memory_task("d", chunks=CHUNKS, questions=[Question(text="Zzz ___", answers=("a",))], data_source="test")
    for name in ("rag_top1", "rag_chunks"):
        reader = Echo()
        agent = memory_baselines({"": 1.0}, reader=reader, count_tokens=words, kind="fact")[name]
        await agent.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
        assert reader.asked == [(["Zzz ___"], chunks(3))]


async def test_long_context_reads_all() -> None:
    found = await asked("long_context", 0.0)
    assert found == ([(ALL, chunks(0, 1, 2, 3))], [f"4 for {q}" for q in ALL], measured(4.0, 22.0))


@pytest.mark.parametrize(("limit", "places"), [(22, (0, 1, 2, 3)), (21, (1, 2, 3)), (12, (2, 3)), (1, (3,))])
async def test_a_model_reads_the_newest_chunks_that_its_context_holds(limit: int, places: tuple[int, ...]) -> None:
    """All of them in full: a text of 22 tokens is read whole where 22 fit."""
    model = Spoken("Roka")
    reader = CompleterReader(completer=model, max_chars=3, top_k=1, context_tokens=limit)
    agent = memory_baselines({"": 0.1}, reader=reader, count_tokens=words, kind="fact")["long_context"]
    episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
    assert [text for _, text in blocks(model.asked[0][-1].content)[:-1]] == [CHUNKS[place] for place in places]
    assert (len(model.asked), episode.metrics["entries"]) == (3, len(places))
    assert agent.note == f"{SHOWN} {limit} tokens"


async def test_the_budget_is_that_of_the_kind_of_task() -> None:
    """short: 4/22 and so 1 chunk; a kind that is not there, and a task without one: as of all, 2."""
    share = {"": 9 / 22, "short": 4 / 22, "long": 1.0}
    agent = memory_baselines(share, reader=Echo(), count_tokens=words, kind="fact")["last_k"]
    found = []
    for kind in ("short", "long", "other", None):
        metadata = {k: v for k, v in TASK.metadata.items() if k != "kind"} | ({"kind": kind} if kind else {})
        task = Task(id="d", messages=TASK.messages, references=TASK.references, metadata=metadata)
        episode = await agent.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
        found.append(episode.metrics["memory_tokens"])
    assert found == [5.0, 22.0, 12.0, 12.0]


async def test_what_the_cloze_reader_makes_of_them() -> None:
    agents = memory_baselines({"": 13 / 22}, reader=ClozeReader(), count_tokens=words, kind="fact")
    found = {}
    for name, agent in agents.items():
        episode = await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
        found[name] = split(episode.answer or "", 3)
    assert found == {
        "nothing": ["", "", ""],
        "everything": ["Castin", "unknown", "Halvar"],  # the older entries are the shorter ones
        "last_k": ["Roka", "unknown", "Zelt"],
        "rag_top1": ["Castin", "unknown", "Halvar"],
        "rag_chunks": ["Castin", "unknown", "Halvar"],
        "rag_recent": ["Roka", "Castin", "Halvar"],
        "rag_sentences": ["Roka", "Castin", "Halvar"],
        "long_context": ["Castin", "unknown", "Halvar"],
    }


def test_the_names_and_what_is_said_of_their_figures() -> None:
    agents = memory_baselines({"": 0.5}, reader=ClozeReader(), count_tokens=words, kind="fact")
    notes = {"rag_top1": READ, "rag_chunks": READ, "rag_recent": f"{READ}; {RECENT}", "long_context": WHOLE}
    notes["rag_sentences"] = f"{READ}, by sentence; {RECENT}"
    assert {name: agent.note for name, agent in agents.items()} == dict.fromkeys(NAMES_OF, "") | notes
    plain = memory_baselines({"": 0.5}, reader=Echo(), count_tokens=words, kind="fact")
    assert tuple(plain) == tuple(name for name in NAMES_OF if name not in ("rag_recent", "rag_sentences"))


async def test_a_reader_that_fails_is_the_infrastructure() -> None:
    class Broken(Echo):
        async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
            raise JudgeError("out of order")

    agent = memory_baselines({"": 0.5}, reader=Broken(), count_tokens=words, kind="fact")["last_k"]
    with pytest.raises(JudgeError, match="out of order"):
        await agent.run(TASK, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
    with pytest.raises(DataError, match="has no chunks"):
        await agent.run(builders.task(), sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))


async def test_an_environments_baselines_may_keep_what_its_policy_does() -> None:
    """The last chunk alone where the policy kept a fifth of a task, the last two of a kind of which it kept a half."""
    asked: list[str] = []

    def spent(column: str) -> dict[str, float]:
        asked.append(column)
        return {"": 5 / 22, "short": 12 / 22}

    reader = Echo()
    environment = memory_runner(engine=None, renderer=Words(), reader=reader, validity=NoValidity()).environment
    found = []
    runner = environment.baselines(spent)["last_k"]
    for task in (TASK, replace(TASK, metadata={**TASK.metadata, "kind": "other"})):
        episode = await runner.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
        found.append(episode.metrics["memory_tokens"])
    assert (asked, found) == (["memory_share"], [12.0, 5.0])
    assert [documents for _, documents in reader.asked] == [chunks(2, 3), chunks(3)]
    assert runner.figures is environment.figures
