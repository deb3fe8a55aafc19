"""Several questions at once: each is graded by itself, and the mean is the grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError, JudgeError
from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.judges.answers import Choice, Contains, ExactMatch, Keywords, Numeric, TokenF1
from agentgrpo.judges.base import AnswerJudge, Grade, canaries_of, close_judge, counts_of
from agentgrpo.judges.composed import Composite, Questions, Route, refuse_unjudged
from agentgrpo.judges.judger import JudgerJudge
from agentgrpo.tasks.dialogue import Question, join, memory_task
from tests.builders import task

WHERE = Question(text="Velmor lives in ___", answers=("Castin", "the Old Mill"), kind="current")
WHO = Question(text="Who is older?", answers=("Orlin",))


def asking(*questions: Question) -> Task:
    return memory_task("m1", chunks=["Velmor lives in Castin."], questions=questions, data_source="diary")


def answered(of: Task, *answers: str) -> Episode:
    return Episode(
        task=of, sample_index=0, branches=(), answer=join(answers), exit=Exit.ANSWERED, metrics={"chunks": 1.0}
    )


class Seen:
    """Says 0.25 to everything, and keeps what it was asked."""

    canaries_per_eval = 7

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.answers: list[list[str]] = []
        self.closed = 0

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        self.tasks.append(task)
        self.answers.append(list(answers))
        return [Grade(score=0.25) for _ in answers]

    def counts(self) -> Mapping[str, float]:
        return {"asked": float(len(self.tasks))}

    async def close(self) -> None:
        self.closed += 1


async def scores(judge: AnswerJudge, of: Task, *answers: str) -> list[float]:
    return [v.score for v in await judge.grade(of, answers)]


async def test_the_grade_is_the_mean_over_the_questions() -> None:
    of = asking(WHERE, WHO, WHERE)
    given = [join(["castin", "Orlin", "old mill"]), join(["Castin", "Velmor", ""]), join(["", " ?! ", ""])]
    assert await Questions(judge=ExactMatch()).grade(of, given) == [
        Grade(score=1.0, reason="#0 1, #1 1, #2 1"),
        Grade(score=1 / 3, reason="#0 1, #1 0, #2 0"),
        Grade(score=0.0, reason="#0 0, #1 0, #2 0"),
    ]


async def test_each_question_is_a_task_of_its_own_and_empty_answers_are_not_asked_about() -> None:
    seen = Seen()
    judge = Questions(judge=seen)
    of = asking(WHERE, WHO)
    grades = await judge.grades(of, [answered(of, "a", ""), answered(of, "b", " ."), answered(of, "", "...")])
    assert [[g.score for g in row] for row in grades] == [[0.25, 0.0], [0.25, 0.0], [0.0, 0.0]]
    assert seen.answers == [["a", "b"]]
    [asked] = seen.tasks
    assert (asked.id, asked.question, asked.references, asked.data_source, asked.metadata) == (
        *("m1#0", "Velmor lives in ___", ("Castin", "the Old Mill"), "diary"),
        {"kind": "current", "options": []},
    )


async def test_what_is_no_list_of_answers_is_everybodys() -> None:
    of = asking(WHERE, WHO)
    assert await scores(Questions(judge=ExactMatch()), of, "Castin", join(["Castin"]), "") == [0.5, 0.5, 0.0]
    assert await scores(Questions(judge=ExactMatch()), asking(WHERE, WHERE), "Castin", join(["Castin"] * 3)) == [1, 0]


async def test_it_passes_on_what_the_inner_judge_is() -> None:
    seen = Seen()
    judge = Questions(judge=seen)
    await judge.grade(asking(WHERE, WHO), [join(["a", "b"])])
    assert (canaries_of([judge]), counts_of([judge]), seen.closed) == (7, {"asked": 2.0}, 0)
    await close_judge(judge)
    assert seen.closed == 1


async def test_a_question_is_graded_by_its_metric() -> None:
    of = asking(
        Question(text="Sum it up", answers=("boat", "old mill"), metric="keywords"),
        Question(text="Which?", answers=("B",), metric="choice", options=("a boat", "a mill")),
        WHO,
    )
    judge = Questions(judge=Route(routes={"keywords": Keywords(), "choice": Choice(), "diary": ExactMatch()}))
    given = [join(["the mill and a boat", "(b)", "Orlin"]), join(["an old mill, a boat", "a boat", "x"])]
    assert [v.reason for v in await judge.grade(of, given)] == ["#0 0.5, #1 1, #2 1", "#0 1, #1 0, #2 0"]
    composite = Composite(parts={"one": (judge, 1.0), "half": (Questions(judge=Route(routes={
        "keywords": Contains(), "choice": ExactMatch(), "diary": ExactMatch()})), 1.0)})  # fmt: skip
    # 2.5 of 3; and contains 0.7, exact 1, exact 1
    assert await scores(composite, of, given[0]) == pytest.approx([(2.5 / 3 + 2.7 / 3) / 2])


@pytest.mark.parametrize(
    "judge", [ExactMatch(), TokenF1(), Contains(), Numeric(), Composite(parts={"x": (ExactMatch(), 1.0)})]
)
def test_a_task_without_answers_is_refused_where_a_judge_compares_with_them(judge: AnswerJudge) -> None:
    refuse_unjudged(judge, [task()])
    with pytest.raises(DataError, match=r"^task t, '.*', has no answers for the judge to compare with; add answers"):
        refuse_unjudged(judge, [task(), replace(task(id="t"), references=())])


def test_a_metric_that_leads_to_no_judge_is_an_error_before_the_run_and_not_a_zero() -> None:
    routed = asking(Question(text="Sum it up", answers=("boat",), metric="keyword"))
    judge = Questions(judge=Route(routes={"keywords": Keywords()}))
    for wrapped in (judge, Composite(parts={"x": (judge, 1.0)})):
        with pytest.raises(
            ConfigError, match=r"task m1#0 is from 'keyword', and judge.routes has keywords; .* Did you"
        ):
            refuse_unjudged(wrapped, [routed])
    with pytest.raises(ConfigError, match=r"task m1#0 is from 'diary', and judge.routes has keywords"):
        refuse_unjudged(judge, [asking(WHERE)])
    with pytest.raises(
        ConfigError,
        match=r"task m1: question 0 is to be graded by 'keyword', but one judge.judge grades all questions; use judge="
        r"questions_by_metric, or name no metric \(task.metric='' where",
    ):
        refuse_unjudged(Questions(judge=ExactMatch()), [routed])
    refuse_unjudged(Questions(judge=ExactMatch()), [asking(WHERE, WHO)])
    refuse_unjudged(Questions(judge=Route(routes={"keyword": Keywords()})), [routed])


def test_a_judge_of_one_answer_is_refused_where_several_questions_are_asked() -> None:
    several = asking(WHERE, WHO)
    for judge in (ExactMatch(), Composite(parts={"x": (Contains(), 1.0)}), Route(routes={"diary": ExactMatch()})):
        with pytest.raises(
            ConfigError,
            match=r"^task m1 asks several questions, and the judge (ExactMatch|Contains) grades one answer: it would "
            r"find every answer wrong; use judge=questions and judge\.judge\.name",
        ):
            refuse_unjudged(judge, [several])
    refuse_unjudged(Composite(parts={"x": (Questions(judge=ExactMatch()), 1.0)}), [several])
    refuse_unjudged(JudgerJudge(lambda instruction, response, reward_model, extra_fields: {"score": 0.0}), [several])
    refuse_unjudged(Seen(), [several])  # somebody's own class
    refuse_unjudged(ExactMatch(), [])
    refuse_unjudged(ExactMatch(), [task()])


async def test_a_judger_sees_the_part_of_the_episode_that_is_its_questions() -> None:
    seen: list[dict[str, Any]] = []

    def judger(instruction: str, response: str, reward_model: Any, extra_fields: Any) -> dict[str, Any]:
        seen.append({"asked": instruction, "said": response, **reward_model, "source": extra_fields["data_source"]})
        info = extra_fields["response_message"].extra_info
        return {"score": float(response in reward_model["references"]), "reason": str(info)}

    of = asking(WHERE, Question(text="Who?", answers=("Orlin",), metric="mine"))
    judge = Questions(judge=JudgerJudge(judger))
    [row] = await judge.grades(of, [answered(of, "Castin", "Velmor")])
    assert [grade.score for grade in row] == [1.0, 0.0]
    assert sorted(seen, key=lambda s: s["asked"]) == [
        {"asked": "Velmor lives in ___", "said": "Castin", "ground_truth": "Castin", "references": WHERE.answers,
         "source": "diary"},
        {"asked": "Who?", "said": "Velmor", "ground_truth": "Orlin", "references": ("Orlin",), "source": "mine"},
    ]  # fmt: skip


async def test_a_judge_that_fails_fails_the_grade_and_a_task_without_questions_is_refused() -> None:
    class Broken(Seen):
        async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
            if task.id == "m1#0":
                raise JudgeError("no reply", kind="timeout")
            return (await super().grade(task, answers))[:-1] if len(answers) > 1 else []

    with pytest.raises(JudgeError, match="no reply"):
        await scores(Questions(judge=Broken()), asking(WHERE), join(["x"]))
    with pytest.raises(JudgeError, match=r"task m1#1: the judge gave 1 grades for 2 answers; repair the judge"):
        await scores(Questions(judge=Broken()), asking(WHERE, WHO), join(["", "x"]), join(["", "y"]))
    with pytest.raises(DataError, match="task t0 has no questions"):
        await scores(Questions(judge=ExactMatch()), task(), "Castin")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("A boat at the old mill.", 2 / 3),
        ("old boat mill", 1 / 3),
        ("boats, an Old Mill; Castin", 2 / 3),
        ("castin OLD MILL boat boat", 1.0),
        ("nothing", 0.0),
        ("", 0.0),
    ],
)
async def test_keywords_are_counted_as_whole_words(answer: str, expected: float) -> None:
    assert await scores(Keywords(), task("Sum up", "boat", "the old mill", "Castin", "?"), answer) == [expected]


async def test_keywords_that_are_none_are_a_failure_not_a_zero() -> None:
    with pytest.raises(JudgeError, match=r"references \['\?'\] hold nothing"):
        await scores(Keywords(), task("Sum up", "?"), "x")
