"""Baselines beside a trained policy: what eval.json and the report say of them, and who is left alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from agentgrpo.config.settings import EvalSettings, RolloutSettings
from agentgrpo.core.errors import JudgeError
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Passage, ScoredGroup, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, EnvironmentFactory, Runner, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.baselines import READ, RECENT, WHOLE, memory_baselines
from agentgrpo.environments.memory.metrics import MEMORY_FIGURES
from agentgrpo.environments.memory.reader import ClozeReader
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.composed import Questions
from agentgrpo.records.screen import Screen
from agentgrpo.records.trajectories import read_summary, read_trajectories
from agentgrpo.rewards.memory import CallSuccess, Compression, Validity
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.metrics import rollout_metrics
from agentgrpo.run.evaluate import Scorecard, paired_difference
from agentgrpo.run.examine import Examiner, spent
from agentgrpo.run.report import report
from agentgrpo.tasks.dialogue import Question, join, memory_task, questions_of
from tests.environments.scripted import ScriptedEngine, renderer

NAMES = ["nothing", "everything", "last_k", "rag_top1", "rag_chunks", "rag_recent", "rag_sentences", "long_context"]
BROKEN = "Zelt lives in Halvar."


def diary(id: str, kind: str, *chunks: str, **answers: str) -> Task:
    """answers: of "<Name> lives in ___"."""
    questions = [Question(text=f"{name} lives in ___", answers=(place,)) for name, place in answers.items()]
    return memory_task(id, chunks=chunks, questions=questions, data_source="test", metadata={"kind": kind})


TASKS = (
    diary("d0", "short", "Velmor lives in Castin.", "It rains all day.", Velmor="Castin"),
    diary("d1", "short", "Dorin lives in Roka.", "Zagan lives in Ardun.", Dorin="Roka", Zagan="Ardun"),
    diary("d2", "long", *(f"Name{i} lives in Place{i}." for i in range(9)), Name0="Place0", Name8="Place8"),
    diary("d3", "long", *(f"Name{i} lives in Place{i}." for i in range(9)), Name7="Place7", Name8="Place8"),
)


class Diaries(EnvironmentDefaults):
    """The policy knows every answer of a short diary and none of a long one; it writes half of the one down, a ninth of
    the other."""

    name = "memory"
    figures: Figures = MEMORY_FIGURES
    limits = TurnLimits()

    def __init__(self, reader: ClozeReader) -> None:
        self.reader = reader
        self.shares: list[Mapping[str, float]] = []

    def make(self, attempt: Attempt) -> Environment:
        return Diary()

    def baselines(self, spent: Callable[[str], Mapping[str, float]]) -> Mapping[str, Runner]:
        self.shares.append(spent("memory_share"))
        share = self.shares[-1]
        return memory_baselines(share, reader=self.reader, count_tokens=lambda text: len(text.split()), kind="fact")


class Diary:
    async def reset(self, task: Task) -> Observation:
        self.task = task
        return Observation(messages=task.messages)

    async def step(self, turn: Turn) -> Observation:
        right = self.task.metadata["kind"] == "short"
        share = 0.5 if right else 1 / 9
        one = dict.fromkeys(("calls", "executed", "judged", "valid", "wanted", "knows_wanted"), (1.0,))
        return Observation(
            done=Exit.ANSWERED,
            answer=join([q.answers[0] if right else "unknown" for q in questions_of(self.task)]),
            metrics={**one, "skips": (0.0,)}
            | {"empty_memory": 0.0, "memory_share": share, "compression": 1 - share}
            | {"memory_tokens": 4.0, "validity": 1.0, "calls_per_chunk": 0.5},
        )

    async def score(self, episode: Episode) -> Scores:
        return {}

    async def close(self) -> None: ...


def policy_in(environment: EnvironmentFactory) -> PolicyRunner:
    engine = ScriptedEngine(["Noted."] * 99)
    return PolicyRunner(environment=environment, engine=engine, renderer=renderer())


def examiner(
    run_dir: Path, environment: EnvironmentFactory, screen: Screen | None = None, tasks: Sequence[Task] = TASKS
) -> Examiner:
    terms = {
        "correctness": Correctness(weight=1.0),
        "call_success": CallSuccess(weight=0.1, skip_counts=True),
        "compression": Compression(weight=0.3, gated=True),
        "validity": Validity(weight=0.5, recall=False),
    }
    judge = Questions(judge=ExactMatch())
    return Examiner(
        runner=policy_in(environment),
        engine=ScriptedEngine([]),
        equipment=(),
        oracle=None,
        judge=judge,
        reward=Reward(judge=judge, terms=terms),
        tasks=tasks,
        dev_tasks=(),
        sampling=SamplingParams(max_tokens=1),
        settings=EvalSettings(),
        rollout=RolloutSettings(),
        max_error_fraction=0.5,
        run_dir=run_dir,
        seed=0,
        screen=screen or Screen("quiet"),
    )


async def compared(run_dir: Path, environment: EnvironmentFactory, screen: Screen | None = None) -> dict[str, Any]:
    of = examiner(run_dir, environment, screen)
    cards = await of.scorecards("end")
    await of.compare(cards, cards)
    result: dict[str, Any] = json.loads((run_dir / "eval.json").read_bytes())
    return result


def headline(correctness: float, tokens: float, share: float, *, calls: float, **more: Any) -> dict[str, Any]:
    zero = dict.fromkeys(("validity", "calls_per_chunk"), 0.0)
    found = {"correctness": correctness, "memory_tokens": tokens, "compression": 1 - share, **zero, "cost": calls}
    return {name: pytest.approx(value) for name, value in found.items()} | more


Grades = tuple[float, float, float, float]
TRAINED = (1.0, 1.0, 0.0, 0.0)


def row(grades: Grades, tokens: tuple[float, float], *, reads: bool = True, note: str = "") -> Any:
    """grades: of d0 to d3; tokens: of a short diary (8 tokens, 1 and 2 questions) and of a long one (36, 2 and 2)."""
    calls = (0.015, 0.02) if reads else (0.0, 0.0)
    short, long = (
        (fmean(of), n, n / all_) for of, n, all_ in zip((grades[:2], grades[2:]), tokens, (8, 36), strict=True)
    )
    return headline(*((a + b) / 2 for a, b in zip(short, long, strict=True)), calls=sum(calls) / 2) | {
        "n": 4,
        "gain": list(paired_difference(grades, TRAINED)),
        "note": note,
        "kinds": {"long": headline(*long, calls=calls[1]), "short": headline(*short, calls=calls[0])},
    }


async def test_eval_json_has_the_baselines_of_an_environment_that_has_some(tmp_path: Path) -> None:
    """Half of a short diary is one of its two chunks, and a ninth of a long one is one of its nine."""
    diaries = Diaries(ClozeReader())
    result = await compared(tmp_path, diaries)
    assert diaries.shares == [{"short": 0.5, "long": 1 / 9, "": pytest.approx((0.5 + 1 / 9) / 2)}]
    assert list(result["baselines"]) == NAMES
    all_right, recent = (1.0, 1.0, 1.0, 1.0), f"{READ}; {RECENT}"
    assert result["baselines"] == {
        "nothing": row((0.0, 0.0, 0.0, 0.0), (0.0, 0.0), reads=False),
        "everything": row(all_right, (8.0, 36.0)),
        "last_k": row((0.0, 0.5, 0.5, 0.5), (4.0, 4.0)),
        "rag_top1": row(all_right, (4.0, 4.0), note=READ),
        "rag_chunks": row(all_right, (4.0, 4.0), note=READ),
        "rag_recent": row(all_right, (4.0, 4.0), note=recent),
        "rag_sentences": row(all_right, (4.0, 4.0), note=f"{READ}, by sentence; {RECENT}"),
        "long_context": row(all_right, (8.0, 36.0), note=WHOLE),
    }


async def test_eval_json_has_the_bill_of_an_environment_that_keeps_one(tmp_path: Path) -> None:
    class Paying(Diaries):
        def counts(self) -> dict[str, float]:
            return {"reader/cost": 0.25}

    assert (await compared(tmp_path, Paying(ClozeReader())))["agent"] == {"reader/cost": 0.25}
    assert "agent" not in await compared(tmp_path, Diaries(ClozeReader()))


async def test_baselines_are_recorded_without_a_branch(tmp_path: Path) -> None:
    await compared(tmp_path, Diaries(ClozeReader()))
    for name in NAMES:
        path = tmp_path / "trajectories" / f"eval-{name}-greedy.jsonl"
        assert (read_summary(path)["total"], read_summary(path)["scored"]) == (4, 4)
        records = list(read_trajectories(path))
        assert [(r.id, r.branches, r.memory, r.reward_branches) for r in records] == [
            (f"d{i}/0", (), [], []) for i in range(4)
        ]
    nothing = [r.reward for r in read_trajectories(tmp_path / "trajectories" / "eval-nothing-greedy.jsonl")]
    assert nothing == [0.0] * 4


async def test_the_same_again_is_the_same(tmp_path: Path) -> None:
    first = await compared(tmp_path / "a", Diaries(ClozeReader()))
    assert await compared(tmp_path / "b", Diaries(ClozeReader())) == first


async def test_an_environment_without_baselines_is_left_as_it_was(tmp_path: Path) -> None:
    class Plain(Diaries):
        baselines = EnvironmentDefaults.baselines

    result = await compared(tmp_path, Plain(ClozeReader()))
    assert list(result) == ["verdict", "reason", "n", "greedy", "sampled", "criterion", "fell", "figures", "sha256"]
    names = [p.name for p in sorted((tmp_path / "trajectories").iterdir()) if "timings" not in p.name]
    assert names == ["eval-end-greedy.jsonl", "eval-end-sampled.jsonl"]


async def test_tasks_that_a_baseline_failed_on_leave_its_row_alone(tmp_path: Path) -> None:
    class Broken(ClozeReader):
        async def answer(self, questions: Sequence[Question], documents: Sequence[Passage]) -> list[str]:
            if len(documents) == 2:
                raise JudgeError("out of order")
            return await super().answer(questions, documents)

    result = await compared(tmp_path, Diaries(Broken()))
    assert {name: one["n"] for name, one in result["baselines"].items()} == dict.fromkeys(NAMES, 4) | {
        "everything": 2,
        "long_context": 2,
    }
    assert result["n"] == 4
    assert result["baselines"]["everything"]["gain"] == [-1.0, -1.0, -1.0]
    assert list(result["baselines"]["everything"]["kinds"]) == ["long"]


async def test_the_report_has_them_in_one_table_with_the_policies(tmp_path: Path) -> None:
    result = await compared(tmp_path, Diaries(ClozeReader()))
    out = io.StringIO()
    report(Screen("quiet", Console(file=out, width=200, highlight=False)), result)
    lines = out.getvalue().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("beside baselines"))
    table = lines[at : next(i for i, line in enumerate(lines) if i > at and line.startswith("└"))]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table if line.startswith("│")]
    assert [row[0] for row in cells] == ["before", "after", *NAMES]
    assert cells[1] == ["after", "0.500", "4.000", "0.694", "1.000", "0.500", "0.010", ""]
    assert cells[2] == ["nothing", "0.000", "0.000", "1.000", "0.000", "0.000", "0.000", "+0.500 [+0.000, +1.000]"]
    assert f"note: rag_top1, rag_chunks: {READ}" in lines


def test_spent_leaves_out_what_failed() -> None:
    card = Scorecard(
        task_ids=("a", "b", "c", "d"),
        kinds=("", "x", "x", "y"),
        metrics={"memory_share": (0.1, 0.2, 0.4, 0.0)},
        mismatched=(0.0,) * 4,
        failed=("d",),
        pass_at_k={},
    )
    assert spent(card, "memory_share") == {"": pytest.approx(0.7 / 3), "x": pytest.approx(0.3)}


async def test_what_is_measured_of_a_step_needs_no_branch() -> None:
    rule = memory_baselines({"": 0.5}, reader=ClozeReader(), count_tokens=len, kind="fact")["last_k"]
    episode = await rule.run(TASKS[0], sample_index=0, stream="s", sampling=SamplingParams(max_tokens=1))
    judge = Questions(judge=ExactMatch())
    reward = Reward(judge=judge, terms={"correctness": Correctness(weight=1.0)})
    scored: ScoredGroup = await reward.score(EpisodeGroup(task=TASKS[0], episodes=(episode, episode)))
    found = rollout_metrics([scored], [None], lambda e: e.metrics["reader_calls"])
    assert (found["episodes/scored"], found["reward/mean"], found["tokens/sampled"]) == (2.0, 0.0, 0.0)
