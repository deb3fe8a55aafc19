"""A judge model in a training run: its verdicts pay, its bill is kept, and a judge that can be fooled ends the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, rows
from tests.judges.llm.models import blocks, honest, obeys_everything, server_in_a_thread

SHORT = ["run.max_steps=2", "rollout.tasks_per_step=4", "rollout.group_size=4", "run.final_eval=false"]
KEY = "sk-canary-91c0de77"


def llm(url: str, *more: str) -> list[str]:
    return [
        *SHORT,
        "judge=llm",
        f"judge.completer.base_url={url}",
        "judge.completer.model=stub",
        "judge.prompt_price=0.5",
        *more,
    ]


def bill(run_dir: Path) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows(run_dir / "timings.jsonl"):
        for tag, value in row.items():
            if tag.startswith("judge/"):
                total[tag] = total.get(tag, 0.0) + value
    return total


@pytest.mark.slow
def test_a_judge_model_grades_and_what_was_kept_costs_nothing(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    cache = f"judge.cache='{tmp_path / 'verdicts.sqlite'}'"
    plain = train(*SHORT, name="exact")
    with server_in_a_thread(honest) as url:
        # no veto: whoever is hardly ever right asks about wrong answers too
        asks = ("judge.min_overlap=null", "judge.completer.api_key_env=JUDGE_KEY")
        arguments = llm(url, "run.eval_every=0", cache, *asks)
        first = train(*arguments, name="first")
        again = train(*arguments, name="again")
    metrics = (first / "metrics.jsonl").read_bytes()
    # an honest model that knows the references is exact_match
    assert metrics == (plain / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    paid, kept = bill(first), bill(again)
    assert paid["judge/calls"] > 0
    assert paid["judge/cost"] == pytest.approx(paid["judge/prompt_tokens"] * 0.5 / 1000)
    assert (kept["judge/calls"], kept["judge/cost"]) == (0.0, 0.0)
    assert kept["judge/cached"] >= paid["judge/calls"]
    assert kept["judge/answers"] == paid["judge/answers"]
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.name == "config.yaml" for p in files)
    assert [str(p) for p in files if KEY.encode() in p.read_bytes()] == []


@pytest.mark.slow
def test_a_judge_that_can_be_fooled_halts_the_run_at_its_first_evaluation(
    train: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_in_a_thread(obeys_everything) as url:
        arguments = llm(url, "run.eval_every=1", "run.eval_tasks=4", "judge.cache=null")
        run_dir = train(*arguments, "judge.control=false", "judge.min_overlap=null", name="fooled", code=6)
        message = capsys.readouterr().err
        assert "of 20 known-wrong answers; the first one, of style '" in message
        assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0]
        assert (run_dir / "checkpoints" / "step-000001").is_dir()
        guarded = train(*arguments, name="guarded")
        assert [row["step"] for row in rows(guarded / "metrics.jsonl")] == [0, 1]


@pytest.mark.slow
def test_replies_that_are_no_verdicts_drop_groups_and_then_end_the_run(
    train: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def sometimes(system: str, user: str) -> str:
        question = dict(blocks(user))["question"]
        return honest(system, user) if len(question) % 2 else "I would say: 1"

    with server_in_a_thread(sometimes) as url:
        asks = ("judge.min_overlap=null", "judge.control=false")
        arguments = llm(url, "run.eval_every=0", "judge.cache=null", "judge.verdict_retries=0", *asks)
        run_dir = train(*arguments, "run.max_error_fraction=1.0", name="half")
        metrics = rows(run_dir / "metrics.jsonl")
        assert sum(row.get("failures/bad_verdict", 0.0) for row in metrics) > 0
        assert all(row["groups/infrastructure"] > 0 for row in metrics if "failures/bad_verdict" in row)
        assert bill(run_dir)["judge/bad_verdicts"] > 0
        fallback = train(*arguments, "judge.fallback=gold_agreement", name="fallback")
        assert sum(row.get("failures/bad_verdict", 0.0) for row in rows(fallback / "metrics.jsonl")) == 0
        assert bill(fallback)["judge/fallbacks"] > 0
        train(*arguments, "run.max_error_fraction=0.01", name="strict", code=8)
        assert "gave no verdict" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bill_of_a_whole_run_is_in_eval_json(train: Run) -> None:
    with server_in_a_thread(honest) as url:
        evaluated = [a for a in SHORT if "final_eval" not in a]
        more = [a for a in llm(url, "judge.cache=null", "run.eval.tasks=4", "run.eval_every=0") if a not in SHORT]
        run_dir = train(*evaluated, *more, name="evaluated")
    result = json.loads((run_dir / "eval.json").read_text())
    assert result["judge"]["calls"] > 0
    assert result["judge"]["cost"] == pytest.approx(result["judge"]["prompt_tokens"] * 0.5 / 1000)
