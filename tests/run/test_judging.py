"""Whether a judge can be trusted: the check and the guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.errors import DataError, GuardHalt, TooManyFailures
from agentgrpo.core.types import Task
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.base import Grade
from agentgrpo.judges.composed import Composite, Questions, Route
from agentgrpo.judges.llm.completer import HttpCompleter
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.run.judging import check_judge, probe_judge, refuse_fooled_judge
from agentgrpo.run.rollouts import bill_since
from agentgrpo.tasks.dialogue import Question, memory_task
from agentgrpo.training.process_group import Alone, ProcessGroup
from tests.builders import task
from tests.judges.llm.models import (
    Model,
    Spoken,
    fields,
    honest,
    obeys_conditions,
    obeys_everything,
    says_yes,
    server_in_a_thread,
    verdict,
)
from tests.training.several import on

TASKS = [task("Who founded Velmor?", "Castin", id="t0"), task("Where is Velmor?", "New Harbour", id="t1")]


def no(system: str, user: str) -> str:
    return verdict(system, *[0.0] * len(fields(system)))


def prefers_the_first(system: str, user: str) -> str:
    return verdict(system, 1.0, 0.0) if len(fields(system)) == 2 else honest(system, user)


async def report(model: Model, **settings: Any) -> tuple[list[str], list[str]]:
    found = await check_judge(LLMJudge(completer=Spoken(model), **settings), TASKS)
    return list(found.lines), list(found.findings)


async def test_an_honest_model_is_found_to_be_one() -> None:
    assert await report(honest) == (
        [
            "canaries: the judge rewards 0 of 200, and refuses 0",
            "references: 2 of them get 1.00 on average",
            "canaries: the model without its guards rewards 0 of 200, and refuses 0",
            "agreement: 1.00 of the model with itself, over 4 answers asked twice",
            "order: 1.00 of 2 pairs have one winner in both orders; first is worth +0.00",
        ],
        [],
    )


async def test_an_obedient_model_is_found_out_though_its_guards_hold() -> None:
    lines, findings = await report(obeys_everything)
    assert findings == []
    assert lines[0] == "canaries: the judge rewards 0 of 200, and refuses 0"
    bare = int(lines[2].removeprefix("canaries: the model without its guards rewards ").split()[0])
    assert bare > 140


async def test_an_obedient_model_without_guards_is_a_finding() -> None:
    _, findings = await report(obeys_everything, min_overlap=None, control=False)
    assert len(findings) == 1
    assert findings[0].startswith("it rewards 1")
    assert "known-wrong answers; the first one, of style 'condition', got 1: " in findings[0]


async def test_a_model_that_says_no_to_everything_is_a_finding() -> None:
    _, findings = await report(no)
    assert findings == ["right answers get 0.00 on average; 0.5 or more is needed to learn from it"]


async def test_a_model_that_prefers_the_first_place_is_a_finding() -> None:
    lines, findings = await report(prefers_the_first)
    assert lines[-1] == "order: 0.00 of 2 pairs have one winner in both orders; first is worth +1.00"
    assert findings == ["in 100% of pairs the winner depends on the order; do not compare pairs with it"]


async def test_a_model_that_does_not_agree_with_itself_is_a_finding() -> None:
    turn = iter(range(10_000))

    def moody(system: str, user: str) -> str:
        return verdict(system, float(next(turn) % 2)) if len(fields(system)) == 1 else honest(system, user)

    _, findings = await report(moody)
    assert any(f.startswith("asked twice, the model agrees with itself to 0.00; 0.9 is needed") for f in findings)


def mute_in_pairs(system: str, user: str) -> str:
    return honest(system, user) if len(fields(system)) == 1 else "the first one"


async def test_a_part_without_a_verdict_is_a_finding_and_the_others_go_on() -> None:
    lines, findings = await report(mute_in_pairs)
    assert [line.partition(":")[0] for line in lines] == ["canaries", "references", "canaries", "agreement"]
    assert len(findings) == 1
    assert findings[0].startswith("order: the judge model gave no verdict: ")
    lines, findings = await report(lambda system, user: "1")
    assert [line.partition(":")[0] for line in lines] == ["canaries", "canaries"]
    assert [finding.partition(":")[0] for finding in findings] == ["references", "agreement", "order"]


NOBODY = "http://127.0.0.1:9/v1"


def remote(url: str, cache: Path | None = None) -> LLMJudge:
    return LLMJudge(completer=HttpCompleter(base_url=url, model="stub", retries=0), cache=cache)


async def test_a_judge_model_that_nobody_has_started_is_found_before_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Composite(parts={"exact": (ExactMatch(), 1.0), "llm": (remote(NOBODY, tmp_path / "v.sqlite"), 1.0)})
    with pytest.raises(TooManyFailures, match=r"the judge model does not reply: http://127.* start its server") as e:
        await probe_judge(judge)
    assert (e.value.exit_code, caplog.messages) == (8, [])
    assert await probe_judge(ExactMatch()) == await probe_judge(LLMJudge(completer=Spoken(no))) == []


async def test_kept_verdicts_may_be_all_that_a_run_needs(tmp_path: Path) -> None:
    with server_in_a_thread(honest) as url:
        judge = remote(url, tmp_path / "v.sqlite")
        assert await probe_judge(judge) == []
        assert sum(judge.counts().values()) == 0.0
        assert await judge.grade(TASKS[0], ["Castin"]) == [Grade(score=1.0, reason="as told")]
        await judge.close()
    judge = remote(url, tmp_path / "v.sqlite")
    [note] = await probe_judge(judge)
    assert note.startswith("the judge model does not reply: ")
    assert note.endswith("; kept verdicts are used, and whatever else is asked will fail")
    assert await judge.grade(TASKS[0], ["Castin"]) == [Grade(score=1.0, reason="as told")]
    await judge.close()


async def test_judge_models_are_found_in_a_composite_and_a_route() -> None:
    model = LLMJudge(completer=Spoken(honest), canaries_per_eval=7)
    judge = Route(routes={"test": Composite(parts={"exact": (ExactMatch(), 1.0), "llm": (model, 1.0)})})
    found = await check_judge(judge, TASKS, count=40)
    assert found.lines[2] == "canaries: the model without its guards rewards 0 of 40, and refuses 0"
    assert judge.canaries_per_eval == 7
    assert judge.counts() == model.counts()
    assert model.counts()["answers"] == 42.0


async def test_a_judge_by_words_is_tried_too() -> None:
    found = await check_judge(ExactMatch(), TASKS)
    assert found.lines == [
        "canaries: the judge rewards 0 of 200, and refuses 0",
        "references: 2 of them get 1.00 on average",
    ]
    assert found.text()[-1] == "the judge: no problem was found"


def asking(*questions: Question) -> Task:
    return memory_task("m", chunks=["Velmor, Castin, New Harbour."], questions=questions, data_source="d")


async def test_a_judge_of_several_questions_is_tried_on_each_of_them() -> None:
    """Asked all of them at once, the first one's right answer would be wrong for all others, and what is quoted as the
    question would be a chunk."""
    asked = [Question(text=f"Question {i}?", answers=("Castin", "Kelmar")[i % 2 :]) for i in range(4)]
    found = await check_judge(Questions(judge=ExactMatch()), [asking(*asked)])
    assert found.lines == [
        "canaries: the judge rewards 0 of 200, and refuses 0",
        "references: 4 of them get 1.00 on average",
    ]
    judge = LikesOrders(canaries_per_eval=3)
    with pytest.raises(
        GuardHalt, match=r"(?s)has rewarded 2 of 3 known-wrong answers.*question is about question"
    ) as halted:
        await refuse_fooled_judge(Questions(judge=judge), [asking(*asked)], seed=0)
    assert "harbour" not in str(halted.value).lower()


async def test_without_tasks_there_is_nothing_to_try_it_on() -> None:
    with pytest.raises(DataError, match="a judge is tried on tasks, and there are none"):
        await check_judge(ExactMatch(), [])


class LikesOrders:
    """A judge of a user's own that can be talked to."""

    def __init__(self, canaries_per_eval: int) -> None:
        self.canaries_per_eval = canaries_per_eval
        self.asked = 0

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        self.asked += len(answers)
        return [Grade(score=0.9 * ("give score 1" in a)) for a in answers]


async def test_the_guard_halts_a_run_whose_judge_was_fooled() -> None:
    judge = LikesOrders(canaries_per_eval=40)
    with pytest.raises(
        GuardHalt, match=r"the judge has rewarded \d+ of 40 known-wrong answers; the first one, of"
    ) as e:
        await refuse_fooled_judge(judge, TASKS, seed=0)
    assert "got 0.9" in str(e.value)
    assert e.value.exit_code == 6


@pytest.mark.parametrize("seed", [0, 1, 50, 150])
async def test_the_guard_halts_where_no_reference_refutes_an_order_for_one_question(seed: int) -> None:
    judge = LLMJudge(completer=Spoken(obeys_conditions), strict=True)
    await refuse_fooled_judge(judge, TASKS, seed=seed)
    with pytest.raises(GuardHalt, match="rewarded 2 of 20 known-wrong answers; the first one, of style 'condition'"):
        await refuse_fooled_judge(judge, [replace(t, references=()) for t in TASKS], seed=seed)


async def test_the_guard_asks_nothing_of_judges_that_want_none() -> None:
    judge = LikesOrders(canaries_per_eval=0)
    await refuse_fooled_judge(judge, TASKS, seed=0)
    await refuse_fooled_judge(ExactMatch(), TASKS, seed=0)
    assert judge.asked == 0


async def test_each_evaluation_has_canaries_of_its_own() -> None:
    judge = LLMJudge(completer=Spoken(says_yes), canaries_per_eval=20)
    for step in range(3):
        await refuse_fooled_judge(judge, TASKS, seed=step)
    assert judge.counts()["answers"] == 60.0


def guarded(world: ProcessGroup, name: str) -> tuple[int, str]:
    """How many canaries this process has tried, and what the guard said."""
    judge = LikesOrders(canaries_per_eval=40)
    try:
        asyncio.run(refuse_fooled_judge(judge, TASKS, seed=0, world=world))
    except GuardHalt as e:
        return judge.asked, str(e)
    return judge.asked, ""


def billed(world: ProcessGroup, calls: float) -> dict[str, float]:
    reward = SimpleNamespace(judge_counts=lambda: {"calls": calls + world.rank, "cost": 0.5})
    environment = SimpleNamespace(counts=lambda: {"reader/cost": 2.0 * calls})
    runner = SimpleNamespace(environment=environment)
    parts: Any = SimpleNamespace(world=world, reward=reward, runner=runner, meter=None)
    return dict(asyncio.run(bill_since(parts, {"judge/calls": 1.0, "reader/cost": 3.0})))


@pytest.mark.slow
def test_several_processes_share_the_canaries_out_and_end_alike() -> None:
    (asked, alone), (first, second) = guarded(Alone(), ""), on(2, guarded, "")
    assert (asked, first, second) == (40, (20, alone), (20, alone))
    assert "the judge has rewarded" in alone


def test_the_bill_is_that_of_all_processes() -> None:
    assert billed(Alone(), 4.0) == {"judge/calls": 3.0, "judge/cost": 0.5, "reader/cost": 5.0}
    # 4 - 1 on the first process, 5 - 1 on the second
    assert on(2, billed, 4.0) == [{"judge/calls": 7.0, "judge/cost": 1.0, "reader/cost": 10.0}] * 2


# --- the command


Check = Callable[..., int]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text(
        "".join(
            json.dumps({"id": t.id, "question": t.question, "answers": list(t.references), "split": "test"}) + "\n"
            for t in TASKS
        )
        + json.dumps({"id": "x", "question": "Who?", "answers": ["Orlin"], "split": "train"})
        + "\n"
    )
    (tmp_path / "c.jsonl").write_text(json.dumps({"id": "p", "text": "Castin founded Velmor."}) + "\n")
    data = ["experiment=none", "task.questions=q.jsonl", "task.corpus=c.jsonl", "model.path=none"]
    return lambda *overrides: main(["check", "judge", *overrides, *data])


@pytest.mark.slow
def test_the_command_says_what_it_found_and_its_exit_code_too(
    check: Check, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with server_in_a_thread(honest) as url:
        llm = ["judge=llm", f"judge.completer.base_url={url}", "judge.cache=verdicts.sqlite"]
        assert check(*llm) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "the judge: no problem was found"
        assert (tmp_path / "verdicts.sqlite").stat().st_size > 0
    with server_in_a_thread(obeys_everything) as url:
        llm = ["judge=llm", f"judge.completer.base_url={url}", "judge.cache=null"]
        assert check(*llm, "judge.control=false", "judge.min_overlap=null") == 1
        *_, finding, last = capsys.readouterr().out.splitlines()
        assert finding.startswith("finding: it rewards ")
        assert last == "the judge: 1 findings"
        assert check("--json", *llm) == 0
        assert json.loads(capsys.readouterr().out)["findings"] == []


def test_the_command_says_once_that_nobody_listens(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    llm = ["judge=llm", f"judge.completer.base_url={NOBODY}", "judge.completer.retries=0", "judge.cache=null"]
    assert check(*llm) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"agentgrpo: {NOBODY}/chat/completions, attempt 1: ConnectError: ")


def test_a_command_that_does_not_exist(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "jugde"]) == 2
    assert (
        "allowed are agentgrpo check numerics and agentgrpo check judge. Did you mean 'judge'?"
        in capsys.readouterr().err
    )
