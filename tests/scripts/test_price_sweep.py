"""The sweep over prices: what is made, in which order, and what is not made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import price_sweep
import pytest

from agentgrpo.cli.main import main
from tests.reports.pareto.sweep import evaluated, priced

FEW = ("--prices", "0", "0.4", "--seeds", "0", "1", "--steps", "7", "--counterfactuals", "blank")


class Tiny:
    """In the place of the command line: it leaves evaluated runs, of which a price of 0.4 makes fewer searches."""

    def __init__(self, stop_after: int = 99) -> None:
        self.made: list[str] = []
        self._left = stop_after

    def __call__(self, arguments: Sequence[str]) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self.made.append(" ".join(arguments))
        keys = dict(argument.partition("=")[::2] for argument in arguments[1:])
        if arguments[0] == "report":
            assert main(list(arguments)) == 0
        elif arguments[0] == "eval":
            config = {"counterfactual": {"name": keys["counterfactual"]}}
            evaluated(Path(keys["run.dir"].strip("'")), config, ((0.0, 1),) * 4, trains=False, ckpt=Path(arguments[2]))
        else:
            price = -float(keys[price_sweep.KEY])
            scores = ((1.0, 2 if price == 0 else 1),) * 4
            evaluated(Path(keys["run.dir"].strip("'")), priced(price), scores, seed=int(keys["run.seed"]))


def train(runs: Path, price: str, value: str, seed: int) -> str:
    return (
        f"train +reward=retriever_aware run.screen=quiet reward.terms.retriever_cost.web={value} run.seed={seed} "
        f"run.max_steps=7 run.dir='{runs}/web{price}-steps7-seed{seed}'"
    )


def blank(runs: Path, price: str, step: int) -> str:
    run = f"{runs}/web{price}-steps7-seed0"
    return f"eval --ckpt {run}/checkpoints/step-{step:06d} counterfactual=blank run.dir='{run}/blank'"


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    price_sweep.main(["--runs", str(tmp_path), "--dry-run", *FEW])
    said = capsys.readouterr().out.replace("'\"'\"'", "'").replace("'run.dir", "run.dir").replace("''", "'")
    assert said.splitlines() == [
        f"agentgrpo {line}"
        for line in (
            train(tmp_path, "0", "0", 0), blank(tmp_path, "0", 7), train(tmp_path, "0.4", "-0.4", 0),
            blank(tmp_path, "0.4", 7), train(tmp_path, "0", "0", 1), train(tmp_path, "0.4", "-0.4", 1),
            f"report {tmp_path}",
        )
    ]  # fmt: skip
    assert [*tmp_path.iterdir()] == []


def test_a_stopped_sweep_goes_on_and_a_finished_one_only_reports(tmp_path: Path) -> None:
    arguments = ["--runs", str(tmp_path), *FEW]
    first, second, third = Tiny(stop_after=3), Tiny(), Tiny()
    with pytest.raises(KeyboardInterrupt):
        price_sweep.main(arguments, run=first)
    price_sweep.main(arguments, run=second)
    price_sweep.main(arguments, run=third)
    assert first.made == [train(tmp_path, "0", "0", 0), blank(tmp_path, "0", 2), train(tmp_path, "0.4", "-0.4", 0)]
    assert second.made == [
        blank(tmp_path, "0.4", 2), train(tmp_path, "0", "0", 1), train(tmp_path, "0.4", "-0.4", 1),
        f"report {tmp_path}",
    ]  # fmt: skip
    assert third.made == [f"report {tmp_path}"]
    page = (tmp_path / "report.html").read_text()
    for said in ("retriever_cost.web = -0.4", "monotone: it never rises", "How much of it is retrieval"):
        assert said in page, said


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = evaluated(tmp_path / "web0-steps7-seed0", priced(0.0), ((1.0, 1),) * 4)
    (run / "eval.json").unlink()
    price_sweep.main(["--runs", str(tmp_path), "--dry-run", "--prices", "0", "--seeds", "0", "--steps", "7"])
    assert capsys.readouterr().out.splitlines()[0] == f"agentgrpo resume {run}"
