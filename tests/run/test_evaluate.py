"""Scorecards and comparisons: what an outage may not do to a verdict."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from agentgrpo.core.errors import DataError, JudgeError
from agentgrpo.core.types import ScoredGroup, Task
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.base import Grade
from agentgrpo.judges.evidence.measure import JudgedEvidence
from agentgrpo.records.screen import Screen
from agentgrpo.run.evaluate import Evaluation, Scorecard, _mismatched, compare, measured
from agentgrpo.run.report import _relative, closing_lines, report
from agentgrpo.training.process_group import Alone
from tests import builders


def card(correct: list[float], rounds: list[float], *failed: int) -> Scorecard:
    n = len(correct)
    return Scorecard(
        task_ids=tuple(f"t{i}" for i in range(n)),
        kinds=("",) * n,
        metrics={"correctness": tuple(correct), "search_rounds": tuple(rounds), "reward": tuple(correct)},
        mismatched=(0.0,) * n,
        failed=tuple(f"t{i}" for i in failed),
        pass_at_k={},
    )


def evaluation(baseline: Scorecard, trained: Scorecard) -> Evaluation:
    return Evaluation(
        figures=SEARCH_FIGURES,
        baseline={"greedy": baseline, "sampled": baseline},
        trained={"greedy": trained, "sampled": trained},
        oracle=None,
        margin=0.02,
        criterion="thrift",
        min_discrimination=0.05,
    )


def test_an_outage_is_neither_a_mistake_nor_thrift() -> None:
    """Equal policies, and 40 tasks on which the trained one could not even be run: 0 rounds, 0 right."""
    right, rounds = [1.0, 0.0] * 250, [2.0] * 500
    outage = card([0.0] * 40 + right[40:], [0.0] * 40 + rounds[40:], *range(40))
    result = evaluation(card(right, rounds), outage).to_json()
    assert result["n"] == 460
    assert result["greedy"]["difference"] == dict.fromkeys(("correctness", "search_rounds", "reward"), [0.0] * 3)
    assert result["greedy"]["failures"] == {"baseline": 0, "trained": 40}
    assert result["verdict"] == "INCONCLUSIVE"
    assert result["greedy"]["denominator"] == {
        "n": 500,
        "baseline": {"correctness": 0.5, "reward": 0.5},
        "trained": {"correctness": 0.46, "reward": 0.46},
    }


class Down(ExactMatch):
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        raise JudgeError("no verdict", kind="timeout")


async def test_a_task_without_references_fails_no_judge() -> None:
    """Its environment says what an answer is worth; there is nothing that it could be mistaken for."""
    tasks = [replace(builders.task(id=f"t{i}"), references=()) for i in range(4)]
    groups = [
        ScoredGroup(group=builders.group(builders.episode(task, answer="Castin")), rewards=(None,)) for task in tasks
    ]
    assert await _mismatched(ExactMatch(), groups, Alone()) == ([0.0] * 4, set())
    assert await _mismatched(Down(), groups, Alone()) == ([0.0] * 4, {task.id for task in tasks})


def test_a_task_that_failed_on_either_side_leaves_both() -> None:
    result = evaluation(card([1.0, 0.0, 1.0, 1.0], [1.0] * 4, 0), card([1.0, 1.0, 0.0, 1.0], [1.0] * 4, 2)).to_json()
    assert result["n"] == 2
    assert result["greedy"]["baseline"]["correctness"] == 0.5
    assert result["greedy"]["trained"]["correctness"] == 1.0


def test_nothing_is_concluded_from_nothing() -> None:
    with pytest.raises(DataError, match="3 of 4 tasks of an evaluation failed"):
        card([1.0] * 4, [1.0] * 4).without({"t0", "t1", "t2"})


def test_what_no_judge_graded_need_not_stand_out_from_what_a_judge_says_of_other_answers() -> None:
    before, after = card([0.0] * 40, [2.0] * 40), card([0.0] * 40, [1.0] * 40)
    graded = evaluation(before, after)
    assert (result := graded.to_json())["verdict"] == "INCONCLUSIVE"
    assert "graded hardly better" in result["reason"]
    paid = replace(graded, figures=replace(SEARCH_FIGURES, is_graded=False))
    assert paid.to_json()["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (2.0, 1.0, "-50 %"),
        (0.25, 1.0, "+300 %"),
        (0.0, 0.5, "+0.500"),
        (-1.0, -0.5, "+0.500"),
        (0.0001, 0.0205, "+0.020"),  # which the table shows as 0.000
        (0.002, 0.548, "+0.546"),  # or it would be +27300 %
        (0.002, 0.001, "-50 %"),
    ],
)
def test_a_change_is_a_share_only_of_a_start_that_is_well_above_0(before: float, after: float, change: str) -> None:
    assert _relative(before, after) == change


def test_different_tasks_do_not_pair() -> None:
    with pytest.raises(DataError, match="different tasks"):
        compare(card([1.0] * 4, [1.0] * 4), card([1.0] * 3, [1.0] * 3))


def test_scorecards_come_back_from_json() -> None:
    one = replace(card([1.0, 0.0], [1.0, 2.0], 1), ratio_parts={"has_gold": (1.0, 0.0)})
    assert Scorecard.from_json(one.to_json()) == one


def test_the_evidence_judge_is_measured_over_both_policies_in_both_modes() -> None:
    plain = card([1.0, 0.0], [1.0, 1.0])
    found = replace(plain, evidence=(JudgedEvidence(0.9, True, True), JudgedEvidence(0.2, False, False)))
    missed = replace(plain, evidence=(JudgedEvidence(0.1, False, True), JudgedEvidence(0.5, False, False)))
    assert Scorecard.from_json(json.loads(json.dumps(found.to_json()))) == found
    # 2 x 0.9 over 0.2 and 0.5, 2 x 0.1 over none
    assert evaluation(found, missed).to_json()["evidence"] == {
        "auc": 0.5,
        "supported": 4,
        "sufficient_where_supported": 0.5,
        "unsupported": 4,
        "sufficient_where_unsupported": 0.0,
    }
    assert "evidence" not in evaluation(plain, plain).to_json()


# --- eval.json and the report, to the byte

SEARCH = ("correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost", "reward")
SEARCH += ("web_fraction", "rerank_rate", "evidence_score_final")
BEFORE = (1.0, 3.0, 2.0, 1.0, 2.0, 0.15, 0.5, 2 / 3, 2 / 3, 0.9)
AFTER = (1.0, 1.0, 0.0, 1.0, 0.0, 0.01, 0.875, 0.0, 0.0, 0.9)
SEARCH_REPORT = """\
held-out test, 4 tasks, greedy
┏━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━┳━━━━━━━━┓
┃ metric        ┃ before ┃ after ┃      change ┃    95 % interval ┃ oracle ┃
┡━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━┩
│ correctness   │  1.000 │ 1.000 │ +0.0 points │ [+0.000, +0.000] │  1.000 │
│ search_rounds │  3.000 │ 1.000 │       -67 % │ [-2.000, -2.000] │  1.000 │
│ web_searches  │  2.000 │ 0.000 │      -100 % │ [-2.000, -2.000] │  0.000 │
│ vdb_searches  │  1.000 │ 1.000 │        +0 % │ [+0.000, +0.000] │  1.000 │
│ rerank_calls  │  2.000 │ 0.000 │      -100 % │ [-2.000, -2.000] │  0.000 │
│ cost          │  0.150 │ 0.010 │       -93 % │ [-0.140, -0.140] │  0.010 │
│ reward        │  0.500 │ 0.875 │       +75 % │ [+0.375, +0.375] │  0.875 │
└───────────────┴────────┴───────┴─────────────┴──────────────────┴────────┘
"""
SEARCH_REPORT = f"""\
{SEARCH_REPORT.replace("greedy", "sampled")}\
by kind of question, greedy: before → after
┏━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━┓
┃ kind ┃ correctness ┃      rounds ┃         web ┃      rerank ┃
┡━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━┩
│ a    │ 1.00 → 1.00 │ 3.00 → 1.00 │ 2.00 → 0.00 │ 2.00 → 0.00 │
│ b    │ 1.00 → 1.00 │ 3.00 → 1.00 │ 2.00 → 0.00 │ 2.00 → 0.00 │
└──────┴─────────────┴─────────────┴─────────────┴─────────────┘
{SEARCH_REPORT}"""


def constant(names: tuple[str, ...], values: tuple[float, ...], *failed: int) -> Scorecard:
    """Four tasks of two kinds, alike."""
    return Scorecard(
        task_ids=("t0", "t1", "t2", "t3"),
        kinds=("a", "a", "b", "b"),
        metrics={name: (value,) * 4 for name, value in zip(names, values, strict=True)},
        mismatched=(0.0,) * 4,
        failed=tuple(f"t{i}" for i in failed),
        pass_at_k={"pass@1": 0.5},
    )


def compared(figures: Figures, baseline: Scorecard, trained: Scorecard) -> Evaluation:
    both = {"greedy": baseline, "sampled": baseline}, {"greedy": trained, "sampled": trained}
    return Evaluation(
        figures=figures,
        baseline=both[0],
        trained=both[1],
        oracle=trained,
        margin=0.02,
        min_discrimination=0.05,
        criterion="thrift",
    )


def printed(evaluation: Evaluation) -> str:
    out = io.StringIO()
    report(Screen("quiet", Console(file=out, width=120, highlight=False)), evaluation.to_json())
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_accuracy_by_data_source_where_there_are_several() -> None:
    """a: 1 of 2 right, then 2; b: 2 of 3, then 1, one of which failed and counts nowhere."""
    sources = ("a", "a", "b", "b", "b")
    before, after = card([1, 0, 1, 0, 1], [3.0] * 5), card([1, 1, 1, 0, 0], [1.0] * 5, 4)
    found = evaluation(replace(before, sources=sources), replace(after, sources=sources)).to_json()["greedy"]["sources"]
    assert {s: (row["n"], *(row[p]["correctness"] for p in ("baseline", "trained"))) for s, row in found.items()} == {
        "a": (2, 0.5, 1.0),
        "b": (2, 0.5, 0.5),
    }
    for one in ((), ("a",) * 5):
        of_one = evaluation(replace(before, sources=one), replace(after, sources=one)).to_json()
        assert "sources" not in of_one["greedy"]
    sources = ("web", "web", "book", "book")
    both = [replace(constant(SEARCH, values), sources=sources) for values in (BEFORE, AFTER)]
    text = printed(compared(SEARCH_FIGURES, *both))
    assert "by data source, greedy: before → after" in text
    cells = [[cell.strip() for cell in line.split("│")] for line in text.splitlines()]
    assert ["book", "2", "1.00 → 1.00"] in [row[1:4] for row in cells]
    assert replace(both[0], pass_at_k={}) == Scorecard.from_json(replace(both[0], pass_at_k={}).to_json())
    measured_ = measured(both[0], *both, figures=SEARCH_FIGURES, note="")
    assert {s: row["correctness"] for s, row in measured_["sources"].items()} == {"book": 1.0, "web": 1.0}


def test_a_search_environments_eval_json_and_report() -> None:
    evaluation = compared(SEARCH_FIGURES, constant(SEARCH, BEFORE), constant(SEARCH, AFTER))
    before, after = dict(zip(SEARCH, BEFORE, strict=True)), dict(zip(SEARCH, AFTER, strict=True))
    mode = {
        "baseline": before,
        "trained": after,
        "difference": {name: [after[name] - before[name]] * 3 for name in SEARCH},
        "sign_test": 1.0,
        "discrimination": [1.0, 1.0, 1.0],
        "pass_at_k": {"baseline": {"pass@1": 0.5}, "trained": {"pass@1": 0.5}},
        "failures": {"baseline": 0, "trained": 0},
        "denominator": {
            "n": 4,
            "baseline": {"correctness": 1.0, "reward": 0.5},
            "trained": {"correctness": 1.0, "reward": 0.875},
        },
        "kinds": {kind: {"baseline": before, "trained": after} for kind in "ab"},
    }
    expected = {
        "verdict": "PASS",
        "reason": "fewer search rounds, correctness not lower",
        "n": 4,
        "greedy": mode,
        "sampled": mode,
        "criterion": "thrift",
        "fell": [],
        "oracle": after,
        "figures": {
            "headline": ["correctness", "search_rounds", "web_searches", "vdb_searches", "rerank_calls", "cost"],
            "by_kind": {
                "correctness": "correctness",
                "search_rounds": "rounds",
                "web_searches": "web",
                "rerank_calls": "rerank",
            },
            "quality": "correctness",
            "spending": "search_rounds",
            "columns": [
                *("search_rounds", "web_searches", "vdb_searches", "rerank_calls"),
                *("web_fraction", "rerank_rate", "evidence_score_final"),
            ],
            "is_graded": True,
            "labels": {
                "search_rounds": "rounds",
                "web_searches": "web",
                "vdb_searches": "vdb",
                "rerank_calls": "rerank",
            },
            "counts": {"web": "web_calls", "vdb": "vdb_calls", "rerank": "rerank_calls"},
            "prices": {"web": 0.05, "vdb": 0.01, "rerank": 0.02},
            "ratios": {
                "citations": {
                    "precision": ["citation_precision", "has_gold_and_citations"],
                    "recall": ["citation_recall", "has_gold"],
                    "unsupported": ["cites_unsupported", "has_gold_and_answer"],
                },
                "retrieval": {
                    "recall": ["retrieval_recall", "has_gold"],
                    "recall_round_1": ["retrieval_recall_round_1", "has_gold"],
                    "recall_round_2": ["retrieval_recall_round_2", "has_gold"],
                },
                "claims": {
                    "supported": ["criterion/claims_supported", "criterion/claims"],
                    "unsupported": ["criterion/claims_unsupported", "criterion/claims"],
                    "uncited": ["criterion/claims_uncited", "criterion/claims"],
                },
            },
        },
    }
    assert json.dumps(evaluation.to_json()) == json.dumps(expected)
    assert printed(evaluation) == (f"{SEARCH_REPORT}verdict: PASS (fewer search rounds, correctness not lower)\n")


def test_at_the_end_a_terminal_of_24_lines_has_the_greedy_table_and_the_verdict_and_nothing_below() -> None:
    out = io.StringIO()
    with Screen("live", Console(file=out, width=80, height=24, force_terminal=True, color_system=None)) as screen:
        screen.stage("evaluating end", 2)
        screen.trajectory("an episode, often a wrong one")
        screen.advance(2)
        report(screen, compared(SEARCH_FIGURES, constant(SEARCH, BEFORE), constant(SEARCH, AFTER)).to_json())
    left = out.getvalue().splitlines()[-24:]
    assert left[-1] == "verdict: PASS (fewer search rounds, correctness not lower)"
    assert left[-13].startswith("held-out test, 4 tasks, greedy")


def with_gold(of: Scorecard, precision: tuple[float, ...], *failed: int) -> Scorecard:
    """Of t0 to t2 it is known what proves the answer; t2 cites nothing."""
    parts = {"has_gold": (1.0, 1.0, 1.0, 0.0), "has_gold_and_citations": (1.0, 1.0, 0.0, 0.0)}
    parts |= {"citation_precision": precision, "retrieval_recall": (0.5, 1.0, 0.0, 0.0)}
    return replace(of, ratio_parts=parts, failed=tuple(f"t{i}" for i in failed))


def test_shares_are_of_the_tasks_that_have_them() -> None:
    """t0 and t1 are of kind a, t2 and t3 of kind b; the one without citations has no precision, and t3 no recall."""
    plain = constant(SEARCH, AFTER)
    before, after = with_gold(plain, (0.5, 0.0, 0.0, 0.0)), with_gold(plain, (1.0, 0.5, 0.0, 0.0))
    evaluation = compared(SEARCH_FIGURES, before, after)
    found = evaluation.to_json()
    greedy = found["greedy"]
    assert list(greedy)[-2:] == ["citations", "retrieval"]
    assert greedy["citations"] == {"baseline": {"precision": 0.25}, "trained": {"precision": 0.75}}
    assert greedy["retrieval"] == {"baseline": {"recall": 0.5}, "trained": {"recall": 0.5}}
    kinds = greedy["kinds"]
    assert (found["citations"], found["retrieval"]) == ({"precision": 0.75}, {"recall": 0.5})
    assert kinds["a"]["citations"]["trained"] == {"precision": 0.75}
    assert "citations" not in kinds["b"]
    assert kinds["b"]["retrieval"] == {"baseline": {"recall": 0.0}, "trained": {"recall": 0.0}}
    lines = [row.split("│")[1:4] for row in printed(evaluation).splitlines() if "0.25 → 0.75" in row]
    assert [[cell.strip() for cell in row] for row in lines] == [
        [label, "0.25 → 0.75", "- → -"] for label in ("greedy", "sampled")
    ]
    outage = compared(SEARCH_FIGURES, before, with_gold(plain, (0.0, 0.5, 0.0, 0.0), 0)).to_json()
    assert outage["greedy"]["citations"] == {"baseline": {"precision": 0.0}, "trained": {"precision": 0.5}}


MEMORY = ("correctness", "memory_tokens", "compression", "validity", "calls_per_chunk", "cost", "reward")
MEMORY_FIGURES = Figures(
    columns=MEMORY[1:5],
    headline=MEMORY[:6],
    by_kind=("correctness", "memory_tokens"),
    quality="correctness",
    spending="memory_tokens",
)


def test_another_environment_needs_nothing_but_its_figures() -> None:
    baseline = constant(MEMORY, (0.5, 900.0, 0.25, 1.0, 2.0, 0.0, 0.25))
    trained = constant(MEMORY, (0.75, 300.0, 0.75, 1.0, 1.0, 0.0, 0.5))
    evaluation = compared(MEMORY_FIGURES, baseline, trained)
    result = evaluation.to_json()
    assert (result["verdict"], result["reason"]) == ("PASS", "fewer memory tokens, correctness not lower")
    assert list(result["greedy"]["trained"]) == list(MEMORY)
    assert [row.split(" │ ") for row in printed(evaluation).splitlines() if row.startswith("│ b")] == [
        ["│ b   ", "0.50 → 0.75", "900.00 → 300.00 │"]
    ]
    worse = compared(MEMORY_FIGURES, trained, baseline).to_json()
    assert (worse["verdict"], worse["reason"]) == ("FAIL", "correctness fell")


def test_an_outage_is_said_in_the_report() -> None:
    evaluation = compared(SEARCH_FIGURES, constant(SEARCH, BEFORE), constant(SEARCH, (0.5, *AFTER[1:]), 1))
    assert [line for line in printed(evaluation).splitlines() if line.startswith("note")] == [
        f"note: {mode}, 0 tasks before and 1 after failed for infrastructure reasons and are left out above; over all "
        "4, failed = wrong, correctness is 1.000 before and 0.500 after"
        for mode in ("greedy", "sampled")
    ]


def by_kind(right: dict[str, list[float]]) -> Scorecard:
    values = [value for row in right.values() for value in row]
    return replace(card(values, [1.0] * len(values)), kinds=tuple(kind for kind, row in right.items() for _ in row))


def test_a_kind_of_task_that_fell_is_named_in_both_modes() -> None:
    before = by_kind({"hq": [1.0] * 30, "born": [1.0, 0.0] * 15, "": [1.0] * 30})
    after = by_kind({"hq": [1.0] * 20 + [0.0] * 10, "born": [0.0, 1.0] * 15, "": [0.0] * 30})
    result = evaluation(before, after).to_json()
    assert [(row["kind"], row["mode"], row["n"], row["kinds"]) for row in result["fell"]] == [
        ("hq", "greedy", 30, 2),
        ("hq", "sampled", 30, 2),
    ]
    [mean, low, high] = result["fell"][0]["difference"]
    assert (mean, low < mean < high < 0) == (-1 / 3, True)
    assert next(closing_lines(result, [])) == (
        f"fell: hq, greedy: correctness -0.333, 97.5 % interval [{low:+.3f}, {high:+.3f}] (30 tasks, 2 kinds)"
    )
    assert evaluation(after, before).to_json()["fell"] == []


def test_of_a_handful_of_tasks_nobody_says_that_they_fell() -> None:
    result = evaluation(by_kind({"hq": [1.0] * 19}), by_kind({"hq": [0.0] * 19}))
    assert result.to_json()["fell"] == []


def test_noise_alone_hardly_ever_lets_a_kind_fall() -> None:
    """Forty evaluations of the same policy, twice, with eight kinds of task; uncorrected, six of them name one."""
    draws, named = np.random.default_rng(0), 0
    for _ in range(40):
        chances = draws.uniform(0.2, 0.95, size=(8, 25))
        twice = [draws.random(chances.shape) < chances for _ in range(2)]
        cards = [by_kind({f"k{i}": list(map(float, row)) for i, row in enumerate(values)}) for values in twice]
        named += bool(evaluation(*cards)._fell("greedy"))
    assert named <= 3
