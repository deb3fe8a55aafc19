"""`agentgrpo check numerics`: what it covers, that it passes here, and that it names what is broken."""

from __future__ import annotations

import json
import math
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgrpo.cli.main import main
from agentgrpo.grpo.advantages import ADVANTAGES
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.correction import CORRECTIONS
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES, LossInputs, TokenLoss
from agentgrpo.preflight import numerics as golden_losses
from agentgrpo.preflight.numerics import Comparison, Numerics, compare_losses, relative_error, table, worst
from agentgrpo.training.policy import Policy


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    code = main(["check", "numerics", *arguments])
    return code, capsys.readouterr().out


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One KL estimator and one correction are enough where a failure is looked for."""
    monkeypatch.setattr(golden_losses, "KL_ESTIMATORS", ["k3"])
    monkeypatch.setattr(golden_losses, "CORRECTIONS", ["token_truncate"])


@pytest.mark.slow
def test_everything_is_covered_and_equal_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out = run(capsys, "--json")
    result = json.loads(out)
    variants = result["variants"]
    assert (code, result["equal"], result["device"]) == (0, True, "cpu")
    assert list(tmp_path.iterdir()) == []

    def mixes(*names: str) -> set[tuple[Any, ...]]:
        found = [v["keys"] for v in variants if v["part"] == "losses"]
        return {tuple(keys.get(name) for name in names) for keys in found}

    every_kl = {(None, None), *((kl, weighed) for kl in KL_ESTIMATORS for weighed in (False, True))}
    assert mixes("loss", "aggregation", "kl", "kl_importance", "correction") == {
        (loss, aggregation, *kl, correction)
        for loss in LOSSES
        for aggregation in AGGREGATIONS
        for kl in every_kl
        for correction in CORRECTIONS
    }
    # every parameter of a loss once as published and once not
    of_losses = [v for v in variants if v["part"] == "losses"]
    given = {v["keys"]["loss"]: set(v["keys"]["loss_args"]) for v in of_losses if "loss_args" in v["keys"]}
    assert given == {n: takes for n, loss in LOSSES.items() if (takes := set(signature(loss).parameters) - {"x"})}
    assert [v["keys"] for v in variants if v["part"] == "advantages"] == [{"advantage": name} for name in ADVANTAGES]
    assert {v["keys"]["loss"] for v in variants if v["part"] == "updates"} == set(LOSSES)
    # far below the tolerance: what is left is that of the central differences, and of float32
    for part, limit in {"losses": 1e-8, "advantages": 1e-12, "updates": 1e-5}.items():
        errors = [v for v in variants if v["part"] == part]
        assert worst(max(v["value_error"], v["gradient_error"] or 0.0) for v in errors) < limit


@pytest.mark.usefixtures("few")
def test_a_broken_loss_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = LOSSES["sapo"]

    def wrong(*args: Any, **kwargs: Any) -> TokenLoss:
        loss = right(*args, **kwargs)
        return loss._replace(loss=loss.loss * 1.001)

    monkeypatch.setitem(LOSSES, "sapo", wrong)
    code, out = run(capsys)
    lines = out.splitlines()
    assert code == 1
    marked = [line.split()[1] for line in lines if line.endswith("  not equal")]
    assert [option for option in marked if option.startswith("loss=")] == ["loss=sapo", "loss=sapo"]
    named = [line for line in lines if line.startswith("not equal: ")]
    assert len(named) == 10
    assert all("algorithm.loss=sapo " in line for line in named)
    assert named[0] == (
        "not equal: losses algorithm.loss=sapo algorithm.aggregation=token_mean algorithm.kl_coef=0.0 "
        "algorithm.correction=token_truncate"
    )
    assert lines[-2] == "and 9 more; --json has all of them"
    assert ": 19 of " in lines[-1]


@pytest.mark.usefixtures("few")
@pytest.mark.slow
def test_a_trainer_that_is_broken_around_a_right_loss_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = Policy.head
    monkeypatch.setattr(Policy, "head", lambda self, *, temperature, **options: head(self, **options))
    code, out = run(capsys, "--json")
    unequal = [v["part"] for v in json.loads(out)["variants"] if not v["equal"]]
    assert (code, set(unequal)) == (1, {"updates"})


@pytest.mark.usefixtures("few")
def test_a_loss_that_is_not_a_number_is_not_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return (logprobs - ref_logprobs) * math.nan

    monkeypatch.setitem(KL_ESTIMATORS, "k3", nowhere)
    monkeypatch.setattr("agentgrpo.preflight.numerics.compare_updates", lambda device: [])
    code, out = run(capsys, "--json")
    result = json.loads(out, parse_constant=pytest.fail)
    unequal = [v for v in result["variants"] if not v["equal"]]
    assert (code, result["equal"]) == (1, False)
    assert {v["keys"]["kl"] for v in unequal} == {"k3"}
    assert {(v["value_error"], v["gradient_error"]) for v in unequal} == {(None, None)}


@pytest.mark.usefixtures("few")
def test_where_the_widest_number_is_float32_the_tolerance_is_its() -> None:
    comparisons = list(compare_losses(torch.device("cpu"), torch.float32))
    assert {c.tolerance for c in comparisons} == {1e-4}
    assert all(c.equal for c in comparisons)
    assert worst(c.gradient_error or 0.0 for c in comparisons) > 1e-8  # not float64 in disguise


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["losses"], "check losses; allowed are agentgrpo check numerics and agentgrpo check judge"),
        ([], "check needs WHAT: agentgrpo check WHAT ..."),
        (["numerics", "hardware.device=abacus"], "device 'abacus': "),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"agentgrpo: {message}")


def test_errors_are_relative_to_the_largest_number() -> None:
    assert relative_error([1.0, 2.0, -4.5], [1.0, 2.0, -4.0]) == 0.125
    assert relative_error([0.25], [0.0], least=1.0) == 0.25
    assert (relative_error([0.0], [0.0]), relative_error([0.1], [0.0])) == (0.0, math.inf)
    assert math.isnan(relative_error([1.0, math.nan], [1.0, 2.0]))
    with pytest.raises(ValueError, match="longer"):
        relative_error([1.0], [1.0, 2.0])


def test_the_table() -> None:
    comparisons = [
        Comparison("losses", {"loss": "a", "kl_importance": True}, 1e-7, 2e-7, 1e-6),
        Comparison("losses", {"loss": "a", "kl_importance": False}, 0.0, math.nan, 1e-6),
        Comparison("losses", {"loss": "b"}, 3e-9, 0.0, 1e-6),
        Comparison("advantages", {"advantage": "c"}, 0.0, None, 1e-6),
    ]
    assert [" ".join(line.split()) for line in table(comparisons)] == [
        "part option variants value gradient",
        "losses loss=a 2 1.0e-07 nan not equal",
        "losses loss=b 1 3.0e-09 0.0e+00",
        "losses kl_importance=true 1 1.0e-07 2.0e-07",
        "losses kl_importance=false 1 0.0e+00 nan not equal",
        "advantages advantage=c 1 0.0e+00 -",
    ]
    assert Numerics(comparisons, "cpu", 1.25).verdict == "4 variants on cpu in 1.2 s: 1 of 4 are not equal"
    assert Numerics(comparisons[2:], "cpu", 1.25).verdict == "2 variants on cpu in 1.2 s: all are equal"


def own_loss(x: LossInputs) -> TokenLoss:
    """A user's."""
    return LOSSES["clipped"](x)


@pytest.mark.usefixtures("few")
@pytest.mark.slow
def test_a_loss_of_the_users_has_no_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentgrpo.preflight.numerics.compare_updates", lambda device: [])
    own = f"algorithm.loss={own_loss.__module__}:own_loss"
    code, out = run(capsys, own)
    assert (code, out.splitlines()[-2]) == (0, f"not compared: {own} is your own, so there is no reference for it")
    code, out = run(capsys, own, "--json")
    assert (code, json.loads(out)["not_compared"]) == (0, [own])
    assert json.loads(run(capsys, "--json")[1])["not_compared"] == []
