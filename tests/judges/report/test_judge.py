"""Grades of reports, and where their counts of claims end up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Episode, EpisodeGroup, Passage, Task
from agentgrpo.environments.search.grammar import Labels, strip_markers
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.judges.answers import Keywords
from agentgrpo.judges.base import Grade
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.judges.report.judge import ReportJudge
from agentgrpo.judges.report.support import LexicalSupport
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.metrics import rollout_metrics
from tests import builders
from tests.judges.llm.models import Spoken, fields, verdict

FOUNDED = builders.passage("f", "Velmor was founded by Castin in 1921.")
BORN = builders.passage("b", "Castin was born in Roka, and never left it.")
TASK = builders.task("Tell of Velmor's founder.", "Castin", "Roka")
REPORT = (
    "Velmor was founded by Castin [R1Q1D1]. He was born in Roka [R1Q1D1]. He was kind. He never left Roka [R1Q1D2]."
)


def report(written: str, *, shown: Sequence[str] = ("f", "b"), task: Task = TASK) -> Episode:
    labels = Labels()
    labels.add_round([(1, [FOUNDED, BORN])])
    return builders.episode(task, answer=strip_markers(written), citations=labels.cite(written), retrieved=shown)


def judge(**settings: object) -> ReportJudge:
    given = {"judge": Keywords(), "support": LexicalSupport(), **settings}
    return ReportJudge(**given)  # type: ignore[arg-type]


async def test_a_report_is_graded_claim_by_claim() -> None:
    """Supported: the first and the last of four; the second cites the wrong passage, the third nothing."""
    [grade] = await judge().grade_episodes(TASK, [report(REPORT)])
    assert grade.parts == {"claims": 4, "claims_supported": 2, "claims_unsupported": 1, "claims_uncited": 1}
    assert grade.score == 1 * (0.5 + 0.5 * 2 / 4)  # both references are in it
    assert grade.reason == "2 of 4 claims supported"
    [half] = await judge(weight=1.0).grade_episodes(
        TASK, [report("Castin was kind. Castin was born in Roka [R1Q1D2].")]
    )
    assert half.score == 0.5


async def test_what_misses_the_question_earns_nothing_whatever_it_cites() -> None:
    task = builders.task("Who?", "Orlin")
    [grade] = await judge().grade_episodes(task, [report("Velmor was founded in 1921 [R1Q1D1].", task=task)])
    assert (grade.score, grade.parts["claims_supported"]) == (0.0, 1.0)


FALSE = [f"Castin of Roka is {what}" for what in ("tall", "rich", "ill", "old", "young", "vain", "lost", "deaf")]
TRUE = "Velmor was founded in 1921 [R1Q1D1]."
ELSEWHERE = builders.task("Tell of Velmor.", "1921")


@pytest.mark.parametrize(
    "form", ["# {}", "{}?", "{}:", "**{}:**", "{}.", "- {}", "| {} |", "1. {}?", "> {}:", "{} [R1Q1D2]."]
)
async def test_what_is_no_supported_claim_earns_nothing(form: str) -> None:
    """Whether as a heading, a question, before a colon or as a claim; both references stand in each line."""
    lines = "\n".join(form.format(text) for text in FALSE)
    [beside, alone] = await judge().grade_episodes(TASK, [report(f"{TRUE}\n{lines}"), report(lines)])
    assert (beside.score, alone.score) == (0.0, 0.0)
    assert beside.parts["claims_supported"] == 1
    [earns] = await judge().grade_episodes(ELSEWHERE, [report(f"{TRUE}\n{lines}", task=ELSEWHERE)])
    claims = int(earns.parts["claims"])
    assert earns.score == 0.5 + 0.5 / claims
    assert claims in (1, 1 + len(FALSE))


REWORDED = [
    *("Velmor was founded by Castin", "Castin founded Velmor", "It was Castin who founded Velmor", "Velmor, Castin"),
    *("Castin was he who founded Velmor", "By Castin was founded Velmor", "By whom was it? By Castin, Velmor"),
    *(
        "Indeed, Velmor was founded by Castin",
        "As it is written, Castin founded Velmor",
        "VELMOR was founded by Castin",
    ),
    *("Velmor — founded by Castin", "Velmor was \u200bfounded by Castin", "Velmor was founded, founded by Castin"),
]


async def test_a_truth_in_many_wordings_is_one_claim() -> None:
    truths = " ".join(f"{text} [R1Q1D1]." for text in REWORDED)
    falsehoods = " ".join(f"{text} [R1Q1D1]." for text in FALSE)
    task = builders.task("Who?", "Castin")
    [once, often] = await judge(max_claims=99).grade_episodes(
        task, [report(f"{REWORDED[0]} [R1Q1D1]. {falsehoods}", task=task), report(f"{truths} {falsehoods}", task=task)]
    )
    assert once.score == 0.5 + 0.5 * 1 / 9
    assert often.parts["claims_supported"] == 1
    assert often.score <= once.score


async def test_different_truths_are_as_many_claims_and_repeats_of_them_cost_nothing() -> None:
    truths = "Velmor was founded by Castin [R1Q1D1]. Castin was born in Roka [R1Q1D2]. He never left [R1Q1D2]."
    [grade] = await judge().grade_episodes(TASK, [report(truths)])
    assert (grade.score, grade.parts["claims_supported"]) == (1.0, 3)
    [again] = await judge().grade_episodes(TASK, [report(f"{truths} In Roka was Castin born [R1Q1D2].")])
    assert (again.score, again.parts["claims"]) == (1.0, 3)


async def test_the_other_judge_reads_supported_claims_and_is_not_asked_about_nothing() -> None:
    shown: list[str] = []

    class Reads(Keywords):
        async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
            shown.extend(answers)
            return await super().grade(task, answers)

    await judge(judge=Reads()).grade_episodes(TASK, [report("# Castin\nHe is of Roka."), report(REPORT)])
    assert shown == ["Velmor was founded by Castin.\nHe never left Roka."]


async def test_a_citation_of_what_was_not_shown_is_none() -> None:
    [grade] = await judge().grade_episodes(TASK, [report("Castin was born in Roka [R1Q1D2].", shown=["f"])])
    assert grade.parts["claims_uncited"] == 1


async def test_answers_alone_and_blank_ones() -> None:
    """Each of the two is asked: the references say the first of them, and not the second, which holds them both."""
    answers = ["Castin, Roka", "Castin was born in Roka.", "Orlin", " "]
    assert [grade.score for grade in await judge().grade(TASK, answers)] == [1.0, 0.5, 0.0, 0.0]


async def test_further_claims_than_are_looked_at_count_as_unsupported() -> None:
    [grade] = await judge(max_claims=1).grade_episodes(TASK, [report(REPORT)])
    assert grade.parts == {"claims": 4, "claims_supported": 1, "claims_unsupported": 3, "claims_uncited": 0}


async def test_the_rubric_of_a_task_grades_the_whole() -> None:
    task = builders.task(
        "Tell of Velmor.",
        "Castin",
        rubric={"year": {"criterion": "It has the year.", "weight": 3}, "short": "It is short."},
    )

    def graded(system: str, user: str) -> str:
        return verdict(system, *({"year": 1.0, "short": 0.0}[name] for name in fields(system)))

    whole = LLMJudge(completer=Spoken(graded), control=False)
    [grade] = await judge(judge=whole).grade_episodes(task, [report("Velmor was founded in 1921 [R1Q1D1].", task=task)])
    assert grade.score == 0.75
    assert {name: grade.parts[name] for name in ("year", "short", "claims")} == {
        "year": 1.0,
        "short": 0.0,
        "claims": 1.0,
    }


async def test_counts_are_recorded_measured_and_evaluated(tmp_path: Path) -> None:
    group = EpisodeGroup(task=TASK, episodes=(report(REPORT), report("Castin of Roka rules Velmor [R1Q1D2].")))
    scored = await Reward(judge=judge(), terms={"correctness": Correctness(weight=1.0)}).score(group)
    tags = rollout_metrics([scored], [None], lambda episode: 0.0)
    assert tags["reward/criterion/claims"] == 2.5
    assert tags["reward/criterion/claims_uncited"] == 0.5
    path = tmp_path / "train-000000.jsonl"
    write_trajectories(path, scored=[scored], advantages=[[0.0, 0.0]], dropped=[None], step=0, seed=0)
    first, _ = read_trajectories(path)
    assert first.reward_dimensions["criterion/claims_supported"] == 2
    assert [c["places"] for c in first.citations] == [[28, 49], [82]]
    parts = [SEARCH_FIGURES.ratio_parts(e, r) for e, r in zip(group.episodes, scored.rewards, strict=True)]
    means = {name: sum(row[name] for row in parts) / 2 for name in parts[0]}
    assert SEARCH_FIGURES.shares(means)["claims"] == {"supported": 0.4, "unsupported": 0.4, "uncited": 0.2}


class Breaking:
    async def supports(self, task: Task, claim: str, passages: Sequence[Passage]) -> bool:
        raise JudgeError("down", kind="http")

    def counts(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


async def test_a_support_that_fails_is_no_grade() -> None:
    with pytest.raises(JudgeError, match="down"):
        await judge(support=Breaking()).grade_episodes(TASK, [report(REPORT)])


@pytest.mark.parametrize("settings, key", [({"weight": 1.5}, "judge.weight"), ({"max_claims": 0}, "judge.max_claims")])
def test_values_out_of_range_are_refused(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        judge(**settings)
