"""Scripted writers in the loop that training uses: the real environment, memory, reader and judge of entries."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.environments.memory.schema import SCHEMAS
from agentgrpo.environments.memory.search import bm25
from agentgrpo.environments.memory.validity import AssertedValidity
from agentgrpo.renderers.tags import TagsRenderer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.warm_start import WarmStart, demonstrate, scripted
from agentgrpo.tasks.base import Demonstrator
from agentgrpo.tasks.dialogue import questions_of, split
from agentgrpo.worlds.diary.dataset import Diaries
from agentgrpo.worlds.diary.demonstrator import DiaryHabits, Writer, _is_shown, careless, copy, drill
from agentgrpo.worlds.diary.world import Sentence
from tests.runners import memory_runner

DIARIES = Diaries(train_diaries=4, dev_diaries=4, test_diaries=33)
RENDERER = TagsRenderer(
    tokenizer=WarmStart(vocab_size=600)._tokenizer((), DIARIES.language), tools=SCHEMAS["keyed"].specs
)


def make_runner(
    engine: object, renderer: object, corpora: object = None, reader: ClozeReader | None = None
) -> PolicyRunner:
    return memory_runner(
        engine=engine,  # type: ignore[arg-type]
        renderer=renderer,  # type: ignore[arg-type]
        reader=reader or ClozeReader(),
        validity=AssertedValidity(),
        describe_tools=False,
        schema="keyed",
        shown_entries=6,
        shown_by="matching",
        max_context=None,
    )


def run(demonstrator: Callable[[Task], Demonstrator], tasks: Sequence[Task]) -> list[Episode]:
    by_id = {task.id: demonstrator(task) for task in tasks}
    runner = make_runner(scripted(RENDERER, by_id.__getitem__), RENDERER)

    async def all_of_them() -> list[Episode]:
        sampling = SamplingParams(max_tokens=512)
        return [await runner.run(t, sample_index=0, stream="test", sampling=sampling) for t in tasks]

    return asyncio.run(all_of_them())


def correctness(episodes: Sequence[Episode], *kinds: str) -> float:
    """Share of questions answered right, of these kinds."""
    right = [
        answer in question.answers
        for e in episodes
        for question, answer in zip(questions_of(e.task), split(e.answer or "", len(questions_of(e.task))), strict=True)
        if not kinds or question.kind in kinds
    ]
    return sum(right) / len(right)


def total(episodes: Sequence[Episode], metric: str) -> float:
    return sum(e.metrics[metric] for e in episodes)


class Silent:
    def act(self, context: str) -> str:
        return "<skip><eos>"


HARD = Diaries(train_diaries=1, dev_diaries=1, test_diaries=22, hard=True)


def test_the_oracle_answers_everything_of_the_hard_world_too() -> None:
    """With a search that does not prefer short entries, as experiment=memory_hard has it."""
    by_id = {task.id: HARD.oracle(task) for task in HARD.split("test")}
    runner = make_runner(scripted(RENDERER, by_id.__getitem__), RENDERER, reader=ClozeReader(search=bm25(b=0.0)))

    async def all_of_them() -> list[Episode]:
        sampling = SamplingParams(max_tokens=512)
        tasks = HARD.split("test")
        return [await runner.run(t, sample_index=0, stream="test", sampling=sampling) for t in tasks]

    episodes = asyncio.run(all_of_them())
    assert correctness(episodes) == 1.0
    assert total(episodes, "failed_calls") == total(episodes, "stray") == 0
    assert total(episodes, "valid") == total(episodes, "judged") == total(episodes, "wanted") > 200


def test_a_meeting_is_written_once() -> None:
    meeting, again = (Sentence(text="s", kind=k, key="Velmor met", value="Osra") for k in ("meeting", "again"))
    assert [len(drill(s, shown, Random(0))) for s in (meeting, again) for shown in (False, True)] == [1, 0, 1, 0]
    assert [f.op for s in (meeting, again) for f in s.facts] == ["add"]
    assert not _is_shown(meeting, "Memory:\n Velmor met Dorin\n")
    assert _is_shown(again, "Memory:\n Velmor met Osra\n")


def writer(write: object) -> Callable[[Task], Demonstrator]:
    return lambda task: Writer(DIARIES._diaries[task.id], write, key=task.id)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def held_out() -> Sequence[Task]:
    return DIARIES.split("test")


def test_the_oracle_answers_everything(held_out: Sequence[Task]) -> None:
    episodes = run(DIARIES.oracle, held_out)
    assert correctness(episodes) == 1.0
    assert total(episodes, "failed_calls") == total(episodes, "stray") == 0
    assert total(episodes, "valid") == total(episodes, "judged") == total(episodes, "wanted") > 400
    assert max(e.metrics["memory_share"] for e in episodes if len(e.branches) == 50) < 0.3


def test_who_writes_nothing_knows_nothing(held_out: Sequence[Task]) -> None:
    episodes = run(lambda task: Silent(), held_out)
    assert correctness(episodes) == 0.0
    assert total(episodes, "skips") == total(episodes, "chunks")
    assert total(episodes, "memory_tokens") == 0


def test_who_writes_everything_believes_rumours_and_forgets_nothing(held_out: Sequence[Task]) -> None:
    episodes, ideal = run(writer(copy), held_out), run(DIARIES.oracle, held_out)
    assert correctness(episodes, "rumoured", "forgotten") < 0.2 < correctness(episodes) < 0.6
    assert total(episodes, "memory_tokens") > 2 * total(ideal, "memory_tokens")


def test_the_careless_leave_much_to_learn(held_out: Sequence[Task]) -> None:
    episodes = run(writer(careless(DiaryHabits())), held_out)
    assert 0.3 < correctness(episodes) < 0.7
    assert correctness(episodes, "history") < 0.3 < correctness(episodes, "current")
    ops = {op: total(episodes, op) for op in ("inserts", "updates", "deletes", "skips")}
    assert min(ops.values()) > 10
    assert total(episodes, "malformed") == 0


def test_a_drill_makes_the_right_call_for_what_it_sees(held_out: Sequence[Task]) -> None:
    """All that it needs is shown, as the entries that share most with the day are."""
    episodes, ideal = run(writer(drill), held_out), run(DIARIES.oracle, held_out)
    assert correctness(episodes) == 1.0
    assert [e.memory for e in episodes] == [e.memory for e in ideal]


def test_the_same_context_gets_the_same_act() -> None:
    task = DIARIES.split("test")[0]
    act = writer(careless(DiaryHabits()))(task).act
    context = f"Memory:\nChunk: {task.metadata['chunks'][2]}\n"
    assert act(context) == act(context)


def test_demonstrations_come_in_phases() -> None:
    shelves = list(DIARIES.demonstration_worlds(10, 40))
    assert sorted({s.phase for s in shelves}) == [0, 1, 2]
    assert all(sum(len(t.metadata["chunks"]) for t in s.tasks) == 40 for s in shelves)
    assert next(iter(DIARIES.demonstration_worlds(1, 40))).tasks == shelves[0].tasks
    calls = []
    for shelf in shelves[:3]:
        episodes = demonstrate(shelf, RENDERER, make_runner)
        calls.append({op: total(episodes, op) for op in ("inserts", "updates", "deletes", "skips")})
    copies, drills, careless_ = calls
    assert copies["inserts"] > 60
    assert copies["updates"] == copies["deletes"] == 0
    assert min(drills.values()) >= 0 < min(drills["updates"], drills["deletes"])
    assert 0 < careless_["updates"] < drills["updates"]


def test_no_two_demonstration_worlds_of_a_phase_are_alike() -> None:
    days = [
        (s.phase, tuple(c for t in s.tasks for c in t.metadata["chunks"])) for s in DIARIES.demonstration_worlds(20, 20)
    ]
    assert len(set(days)) == len(days)


SAID = {
    kind: Sentence(text="said", kind=kind, key="Velmor lives" if kind != "chatter" else "", value="in Rome")
    for kind in ("fact", "rumour", "chatter", "forget")
}


def test_a_retraction_is_not_copied() -> None:
    assert [len(copy(sentence, True, Random(0))) for sentence in SAID.values()] == [1, 1, 1, 0]


@pytest.mark.parametrize("habit", SAID)
@pytest.mark.parametrize("chance", [0.0, 0.2, 0.8, 1.0])
def test_a_habit_is_as_frequent_as_it_says(habit: str, chance: float) -> None:
    write = careless(DiaryHabits(**{habit: chance}))
    rng = Random(1)
    written = sum(bool(write(SAID[habit], True, rng)) for _ in range(500)) / 500
    assert written == pytest.approx(chance, abs=0.06)
