"""Baselines beside a run: in what they differ from it, and what is written down of them."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir, main
from agentgrpo.config.compose import read_preset
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.environments.figures import Figures
from agentgrpo.records.card import flatten
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.seals import signed
from agentgrpo.run.baselines import Baselines, beside, cpu_budget, lacking_baselines
from agentgrpo.run.evaluate import Evaluation, Scorecard
from agentgrpo.run.settings import settings_of
from agentgrpo.training.process_group import Alone

JOBS: list[tuple[dict[str, Any], str]] = []
READ = partial(read_preset, configs_dir())


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append((config, command.snapshot))
    return VerbResult()


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(VERBS, "train", replace(VERBS["train"], entry=f"{__name__}:keep"))


def of_run(*overrides: str) -> tuple[dict[str, Any], Baselines]:
    """The configuration of a run, and its baselines."""
    assert main(["train", "run.dir=r", "run.eval.baselines=true", *overrides]) == 0
    config, snapshot = JOBS.pop()
    return config, Baselines(settings_of(config), snapshot, Alone(), READ)


def changed(config: dict[str, Any], made: dict[str, Any], *but: str) -> dict[str, Any]:
    """Keys of the baseline that are not the run's, but for some groups."""
    before, now = flatten(config), flatten(made)
    return {key: now[key] for key in now if before.get(key) != now[key] and not key.startswith(but)}


ENDS = {"run.max_steps": 1_000_000, "run.max_cpu_s": 7.5, "run.eval_every": 0, "run.eval.baselines": False}


def test_a_baseline_is_the_run_but_for_what_it_learns_from_and_when_it_ends() -> None:
    config, baselines = of_run("rollout.refill_rounds=2", "algorithm=dapo", "rollout.group_size=5")
    untouched = deepcopy(config)
    sft, raft = (baselines._of(name, config, cpu_s=7.5) for name in ("sft", "rejection_sampling"))
    flat = {"optimizer.final_fraction": 1.0}
    assert raft["algorithm"]["advantage_args"] == {"by": "grade"}
    assert changed(config, raft, "algorithm.") == {**ENDS, **flat, "run.dir": "r/baselines/rejection_sampling"}
    assert changed(config, sft, "algorithm.", "guards.") == {
        **ENDS,
        **flat,
        "run.dir": "r/baselines/sft",
        "demonstrations.name": "oracle",
        "rollout.refill_rounds": 0,
    }
    assert (raft["algorithm"]["advantage"], sft["algorithm"]["name"]) == ("accepted", "sft")
    assert (raft["guards"], [*sft["guards"]]) == (config["guards"], ["gradient", "kl"])
    assert config == untouched


@pytest.mark.slow
def test_a_preset_by_itself_is_what_a_run_with_it_has() -> None:
    for group, preset in (("algorithm", "raft"), ("algorithm", "sft"), ("guards", "strict"), ("optimizer", "sft")):
        assert main(["train", "run.dir=r", "experiment=none", "task.questions=q", "task.corpus=c", "model.path=m",
                     f"{group}={preset}"]) == 0  # fmt: skip
        assert READ(group, preset) == JOBS.pop()[0][group]


@pytest.mark.parametrize(
    ("overrides", "lr"),
    [
        (["optimizer=tiny"], 1e-3),
        (["optimizer=adamw"], 2e-5),
        (["optimizer=adamw", "optimizer.lr=5e-5"], 5e-5),
        (["optimizer=lora", "model.lora.rank=8"], 1e-4),
    ],
)
def test_demonstrations_are_learned_at_no_lower_rate_than_supervised_training_takes(
    overrides: list[str], lr: float
) -> None:
    model = ["experiment=none", "task.questions=q", "task.corpus=c", "model.path=m"]
    config, baselines = of_run(*model, *overrides)
    assert baselines._of("sft", config, cpu_s=1.0)["optimizer"]["lr"] == lr
    raft = baselines._of("rejection_sampling", config, cpu_s=1.0)
    assert raft["optimizer"]["lr"] == config["optimizer"]["lr"]


class Two(Alone):
    size = 2


def test_several_processes_are_refused() -> None:
    assert main(["train", "run.dir=r", "run.eval.baselines=true"]) == 0
    config, snapshot = JOBS.pop()
    with pytest.raises(ConfigError, match=r"^run.eval.baselines=true with 2 processes; 1 is allowed"):
        Baselines(settings_of(config), snapshot, Two(), READ)


def test_a_baseline_that_is_there_is_not_lacking() -> None:
    assert lacking_baselines({"oracle": {}}) == ["sft", "rejection_sampling"]
    assert lacking_baselines({}) == ["rejection_sampling"]
    assert lacking_baselines({"oracle": {}, "baselines": {"last_k": {}, "sft": {}}}) == ["rejection_sampling"]


@dataclass
class Left:
    """What a run and its baseline leave behind, as far as it is read here."""

    run_dir: Path

    def __post_init__(self) -> None:
        for folder, seconds in ((self.run_dir, [3.0, 4.0]), (self.home, [2.0, 2.5, 2.75])):
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(yaml.safe_dump({"run": {}}))
            rows = [{"step": i, "reward/mean": 0.5} for i in range(len(seconds))]
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            clocks = [{"step": i, "time/cpu": s} for i, s in enumerate(seconds)]
            (folder / "timings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in clocks))

    @property
    def home(self) -> Path:
        return self.run_dir / "baselines" / "sft"

    def cards(self, folder: Path, name: str, *cards: Scorecard) -> None:
        made = {mode: card.to_json() for mode, card in zip(("greedy", "sampled"), cards, strict=True)}
        (folder / f"eval-{name}.json").write_text(json.dumps({"key": "k", "cards": made}))


FIGURES = Figures(
    columns=("calls",), headline=("right", "calls"), by_kind=("right",), quality="right", spending="calls"
)


def card(right: list[float], *failed: int) -> Scorecard:
    n = len(right)
    return Scorecard(
        task_ids=tuple(f"t{i}" for i in range(n)),
        kinds=("a", "b") * (n // 2),
        metrics={"right": tuple(right), "calls": (1.0,) * n, "reward": tuple(right)},
        mismatched=(0.0,) * n,
        failed=tuple(f"t{i}" for i in failed),
        pass_at_k={},
    )


def test_eval_json_is_given_a_baseline_with_its_scores_in_both_modes(tmp_path: Path) -> None:
    left = Left(tmp_path / "run")
    before, after, other = card([0.0] * 4), card([1.0, 1.0, 1.0, 0.0]), card([1.0, 0.0, 1.0, 1.0], 3)
    left.cards(left.run_dir, "start", before, before)
    left.cards(left.run_dir, "end", after, after)
    left.cards(left.home, "end", other, replace(other, failed=()))
    policies = {"greedy": after, "sampled": after}
    whole = Evaluation(
        figures=FIGURES,
        baseline={"greedy": before, "sampled": before},
        trained=policies,
        oracle=None,
        margin=0.0,
        criterion="thrift",
        min_discrimination=0.0,
    ).to_json() | {"spend": {"web": 3.0}, "baselines": {"last_k": {"right": 0.5}}}
    (left.run_dir / "eval.json").write_text(signed(whole))
    (left.run_dir / "seals.jsonl").touch()

    result = beside(left.run_dir, "sft", RunDir(left.run_dir).evaluation or {})
    found = dict(RunDir(left.run_dir).evaluation or {})
    assert found.pop("sha256")
    assert found == result
    row = found["baselines"].pop("sft")
    assert found == whole
    assert row["greedy"] == {"right": 2 / 3, "calls": 1.0, "reward": 2 / 3}  # without the task that failed
    assert row["sampled"] == {"right": 0.75, "calls": 1.0, "reward": 0.75}
    assert (row["right"], row["n"], row["gain"][0]) == (2 / 3, 3, 1 / 3)
    assert (row["steps"], row["cpu_s"]) == (3, 7.25)
    assert row["note"] == "3 steps in 7.2 CPU seconds; the run: 2 in 7.0"


def test_a_step_of_which_no_clock_was_kept_leaves_nothing_to_hold_a_baseline_to(tmp_path: Path) -> None:
    left = Left(tmp_path / "run")
    assert cpu_budget(left.run_dir) == 7.0
    (left.run_dir / "timings.jsonl").write_text('{"step":0,"time/cpu":3.0}\n{"step":1,"time/train":3.0}\n')
    with pytest.raises(DataError, match=r"timings.jsonl has no CPU seconds of step 1, .* train a new run"):
        cpu_budget(left.run_dir)


def test_scores_by_task_that_are_missing_are_said_to_be(tmp_path: Path) -> None:
    left = Left(tmp_path / "run")
    with pytest.raises(DataError, match=r"eval-start.json, the scores by task, is missing"):
        beside(left.run_dir, "sft", {})
