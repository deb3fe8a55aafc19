"""Guards over whole runs: what they skip, halt and take back, and that a killed run does all of it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.run import train as training
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.trainer import Trainer
from tests.e2e.conftest import SMALL_WORLD, Run, rows
from tests.e2e.trouble import trouble_at
from tests.training.several import free_port

SHORT = [
    "run.max_steps=4",
    "run.checkpoint_every=1",
    "run.keep_last=10",
    "run.eval_every=0",
    "run.final_eval=false",
    "run.max_consecutive_skipped_steps=10",
    "rollout.tasks_per_step=4",
    "rollout.group_size=4",
]
ROLLBACK = [
    "+guards.trouble.metric=test/trouble",
    "+guards.trouble.when=above",
    "+guards.trouble.limit=0.5",
    "+guards.trouble.action=rollback",
]
RECORD = ["metrics.jsonl", "trajectories/*.jsonl", "checkpoints/*/model.safetensors", "checkpoints/*/trainer/*"]


def record(run_dir: Path, *patterns: str) -> dict[str, bytes]:
    """Every file that must be equal, by name; a checkpoint's state names its run directory."""
    files = sorted(f for pattern in patterns or RECORD for f in run_dir.glob(pattern) if ".timings." not in f.name)
    return {str(f.relative_to(run_dir)): f.read_bytes().replace(str(run_dir).encode(), b"RUN") for f in files}


def weights(run_dir: Path, step: int) -> bytes:
    return (run_dir / "checkpoints" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def moments(run_dir: Path, step: int) -> dict[str, bytes]:
    tensors = load_file(run_dir / "checkpoints" / f"step-{step:06d}" / "trainer" / "optimizer.safetensors")
    return {name: t.numpy().tobytes() for name, t in tensors.items() if "exp_avg" in name or name.endswith(".step")}


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def plain(train: Run) -> Path:
    """The run that no guard touches."""
    return train(*SHORT, "guards=none", name="plain")


def fires_at_step_1(plain: Path, tag: str) -> list[str]:
    """Settings of the guard `gradient` so that it fires in step 1 and not in step 0."""
    first, second, *_ = (row[tag] for row in rows(plain / "metrics.jsonl"))
    assert first != second
    side = "above" if second > first else "below"
    return [
        f"guards.gradient.metric={tag}",
        f"guards.gradient.when={side}",
        f"guards.gradient.limit={(first + second) / 2}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["gradients/norm", "reward/mean"])
def test_a_skipped_update_leaves_the_weights_and_is_recorded(train: Run, plain: Path, tag: str) -> None:
    run_dir = train(*SHORT, *fires_at_step_1(plain, tag), "guards.gradient.action=skip")
    before, skipped = rows(run_dir / "metrics.jsonl")[:2]
    other, unskipped = rows(plain / "metrics.jsonl")[:2]
    assert before == other
    assert (skipped["skipped"], skipped["guard/fired"], skipped["guard/fired/gradient"]) == (1, 1, 1)
    assert skipped[tag] == unskipped[tag]
    assert skipped["reward/mean"] == unskipped["reward/mean"]
    assert "optimizer_steps" not in skipped
    assert weights(run_dir, 2) == weights(run_dir, 1) == weights(plain, 1) != weights(plain, 2)
    assert moments(run_dir, 2) == moments(run_dir, 1) == moments(plain, 1) != moments(plain, 2)


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["gradients/norm", "reward/mean"])
def test_a_halted_run_ends_at_its_last_whole_step_and_can_be_told_to_go_on(
    train: Run, plain: Path, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fires = fires_at_step_1(plain, tag)
    run_dir = train(*SHORT, *fires, "guards.gradient.action=halt", code=6)
    error = last_error(capsys)
    assert f"step 1: guards.gradient: {tag} is " in error
    assert "resume it with guards.gradient.action=warn" in error
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == ["step-000000", "step-000001"]
    assert len(rows(run_dir / "metrics.jsonl")) == 1
    before = record(run_dir)
    assert main(["resume", str(run_dir)]) == 6  # again, and nothing is done twice
    assert record(run_dir) == before
    assert main(["resume", str(run_dir), "guards.gradient.action=warn"]) == 0
    assert weights(run_dir, 4) == weights(plain, 4)
    warned = rows(run_dir / "metrics.jsonl")
    assert [{k: v for k, v in row.items() if "guard/" not in k} for row in warned] == rows(plain / "metrics.jsonl")
    assert [row.get("guard/fired/gradient") for row in warned][:2] == [None, 1.0]


@pytest.mark.slow
def test_a_halt_by_what_is_known_only_after_the_update_keeps_that_step(
    train: Run, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lr = rows(plain / "metrics.jsonl")[1]["lr"]  # it still rises
    rising = ["+guards.lr.metric=lr", "+guards.lr.when=above", f"+guards.lr.limit={lr * 0.99}"]
    run_dir = train(*SHORT, *rising, "+guards.lr.action=halt", code=6)
    assert "step 1: guards.lr: lr is" in last_error(capsys)
    assert [row.get("guard/fired/lr") for row in rows(run_dir / "metrics.jsonl")] == [None, 1.0]
    assert weights(run_dir, 2) == weights(plain, 2)


def test_a_guard_that_would_skip_by_what_is_known_too_late_is_refused(
    train: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        *SHORT, "+guards.lr.metric=lr", "+guards.lr.when=above", "+guards.lr.limit=1", "+guards.lr.action=skip", code=2
    )
    assert "guards.lr.action=skip: lr is known only after the update; warn and halt are allowed" in last_error(capsys)


@pytest.mark.slow
def test_a_rollback_takes_back_weights_and_optimizer_but_no_time(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble_at({3}, monkeypatch.setattr)
    run_dir = train(*SHORT, *ROLLBACK, "run.max_steps=6", "run.checkpoint_every=2", "rollout.tasks_per_step=2")
    metrics = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1, 2, 3, 4, 5]
    taken_back = metrics[3]
    assert (taken_back["guard/rollback"], taken_back["guard/rolled_back_to"], taken_back["skipped"]) == (1, 2, 1)
    assert taken_back["guard/fired/trouble"] == 1
    assert "reward/mean" in taken_back
    assert [row.get("guard/rollback") for row in metrics] == [None, None, None, 1, None, None]
    assert weights(run_dir, 4) == weights(run_dir, 2) != weights(run_dir, 6)
    assert moments(run_dir, 4) == moments(run_dir, 2) != moments(run_dir, 6)
    met = [{r.task for r in read_trajectories(run_dir / "trajectories" / f"train-{step:06d}.jsonl")} for step in (2, 4)]
    assert met[0] != met[1]
    assert metrics[4]["lr"] != metrics[2]["lr"]


@pytest.mark.slow
def test_the_checkpoint_to_go_back_to_is_one_before_all_trouble_and_is_never_pruned(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three bad steps in a row are too many; those of 2 and 3 have begun with bad weights."""
    trouble_at({2, 3, 4}, monkeypatch.setattr)
    arguments = [*ROLLBACK, "+guards.trouble.patience=3", "run.max_steps=6", "run.keep_last=1", "run.keep_best=false"]
    run_dir = train(*SHORT, *arguments)
    assert [row.get("guard/rolled_back_to") for row in rows(run_dir / "metrics.jsonl")] == [*[None] * 4, 1, None]
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == ["step-000005", "step-000006"]


@pytest.mark.slow
def test_too_many_rollbacks_halt_the_run_until_it_is_allowed_more(
    train: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble_at({1, 3}, monkeypatch.setattr)
    run_dir = train(*SHORT, *ROLLBACK, "run.max_rollbacks=1", code=6)
    assert "step 3: guards.trouble: test/trouble is 1, above 0.5. The run went back 1 times already" in last_error(
        capsys
    )
    before = record(run_dir)
    assert main(["resume", str(run_dir)]) == 6
    assert record(run_dir) == before
    assert main(["resume", str(run_dir), "run.max_rollbacks=2"]) == 0
    back = [row.get("guard/rolled_back_to") for row in rows(run_dir / "metrics.jsonl")]
    assert back == [None, 0.0, None, 2.0]


@pytest.mark.slow
def test_without_a_good_checkpoint_a_rollback_is_a_halt(
    train: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble_at({0}, monkeypatch.setattr)
    run_dir = train(*SHORT, *ROLLBACK, code=6)
    assert "No checkpoint before it is known to be good" in last_error(capsys)
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == ["step-000000"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_goes_back_again_to_the_byte(start: Path, tmp_path: Path) -> None:
    def live(instant: str, *arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.e2e.trouble", "1,2,3", instant, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    arguments = ["train", *SMALL_WORLD, "model=path", f"model.path='{start}'", *SHORT, *ROLLBACK]
    arguments += ["+guards.trouble.patience=3", "run.max_steps=6", "run.checkpoint_every=2"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert live("none", *arguments, f"run.dir='{whole}'") == 0
    assert live("before rollback", *arguments, f"run.dir='{killed}'") == -signal.SIGKILL
    for instant in ("after rollback", "after judgement", "before checkpoint", "none"):
        assert live(instant, "resume", str(killed)) == (0 if instant == "none" else -signal.SIGKILL)
    expected, found = record(whole), record(killed)
    assert [n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)] == []
    assert rows(killed / "metrics.jsonl")[3]["guard/rolled_back_to"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_steps_that_overlap_go_back_and_are_resumed_the_same(
    train: Run, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """What was begun ahead samples from the weights that are given up: it is done again from the others."""
    trouble_at({3}, monkeypatch.setattr, late=late)
    overlap = [*SHORT, *ROLLBACK, "run.max_steps=6", "algorithm.max_staleness=1"]
    whole = train(*overlap, name="whole")
    metrics = rows(whole / "metrics.jsonl")
    assert metrics[3]["guard/rolled_back_to"] == 1  # step 2 sampled from these, no whole step from those of 2
    assert weights(whole, 4) == weights(whole, 1)
    assert [row.get("policy/staleness_max") for row in metrics] == [0, 1, 1, None, 0, 1]
    assert ["policy/stale_logprob_gap_max" in row for row in metrics] == [False, True, True, late, False, True]
    assert [row["step"] for row in metrics if "guard/fired/logprob_gap" in row] == []
    for step in (3, 4):
        again = train(*overlap, name=f"again-{step}")
        for later in range(step + 1, 7):
            checkpoint = again / "checkpoints" / f"step-{later:06d}"
            checkpoint.rename(again / checkpoint.name)  # as a killed process would have left it
        assert main(["resume", str(again)]) == 0
        expected, found = record(whole), record(again)
        assert [n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)] == []


@pytest.mark.slow
@pytest.mark.parametrize("place", ["weights", "moments"])
def test_no_checkpoint_is_made_of_what_is_not_finite(
    train: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    step, name = AdamW.step, "model.layers.0.mlp.up_proj.weight"

    def damaging(self: AdamW, **kwargs: float) -> None:
        step(self, **kwargs)
        tensor = self.state_tensors()[f"{name}.exp_avg"] if place == "moments" else self._parameters[name].detach()
        tensor[3, 3] = torch.nan

    async def blind(*_: object) -> dict[str, float]:
        return {}

    monkeypatch.setattr(AdamW, "step", damaging)
    monkeypatch.setattr(training, "refuse_stale_weights", blind)  # it would be the first to see damaged weights
    run_dir = train(*SHORT, code=6)
    suffix = ".exp_avg" if place == "moments" else ""
    assert last_error(capsys) == f"agentgrpo: step 1: {name}{suffix} is not finite; no checkpoint is written"
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == ["step-000000"]
    monkeypatch.undo()
    assert main(["resume", str(run_dir)]) == 0


@pytest.mark.slow
def test_a_step_refused_by_the_trainer_is_skipped_and_no_number_of_it_stays(
    train: Run, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward, calls = Trainer._backward, iter(range(1000))

    def poisoned(self: Trainer, *args: object, **kwargs: object) -> None:
        backward(self, *args, **kwargs)  # type: ignore[arg-type]
        if next(calls) == 1:
            gradient = self.policy.model.model.layers[0].mlp.up_proj.weight.grad
            assert gradient is not None
            gradient[0, 0] = torch.inf

    monkeypatch.setattr(Trainer, "_backward", poisoned)
    run_dir = train(*SHORT)
    first, second = rows(run_dir / "metrics.jsonl")[:2]
    assert first == rows(plain / "metrics.jsonl")[0]
    assert second["skipped"] == 1
    assert weights(run_dir, 2) == weights(run_dir, 1) == weights(plain, 1)
    assert moments(run_dir, 2) == moments(run_dir, 1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_go_back_together(start: Path, tmp_path: Path, strategy: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    settings = ["model=path", f"model.path='{start}'", *SHORT, *ROLLBACK, f"hardware.strategy={strategy}"]
    arguments = ["train", *SMALL_WORLD, *settings, "run.max_steps=5", f"run.dir='{tmp_path / 'run'}'"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, "-m", "tests.e2e.trouble", "3", "none", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    back = [row.get("guard/rolled_back_to") for row in rows(tmp_path / "run" / "metrics.jsonl")]
    assert back == [None, None, None, 2, None]
    assert weights(tmp_path / "run", 4) == weights(tmp_path / "run", 2) != weights(tmp_path / "run", 5)
    assert moments(tmp_path / "run", 4) == moments(tmp_path / "run", 2) != moments(tmp_path / "run", 5)
