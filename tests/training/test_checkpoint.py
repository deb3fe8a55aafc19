"""Checkpoints: whatever happens to a run, it goes on to the same bytes, and the last good checkpoint is never lost."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.core import durable
from agentgrpo.core.durable import RunLock
from agentgrpo.core.errors import CheckpointError, ConfigError, StorageError
from agentgrpo.core.types import RewardResult, ScoredGroup
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.training.checkpoint import CheckpointStore
from tests.builders import episode, group
from tests.test_durable import Crash, Machine, names


def write_model(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type":"toy"}')
    (folder / "model.safetensors").write_bytes(bytes(range(200)))


def save(
    store: CheckpointStore, step: int, *, score: float | None = None, logs: Sequence[Mapping[str, Any]] = ()
) -> Path:
    return store.save(
        step,
        write_model=write_model,
        tensors={"w": torch.full((3,), float(step))},
        state={"logs": list(logs)},
        score=score,
    )


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.name[5:]) for path in store.candidates()]


# --- saving and loading ---


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "exp_avg": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).T,
        "step": torch.tensor(7),
        "half": torch.tensor([1e-3, float("inf")], dtype=torch.bfloat16),
        "rng": torch.arange(16, dtype=torch.uint8),
    }
    cursor = {"epoch": 1, "index": 7}
    state = {"step": 40, "lr": 0.1 + 0.2, "cursor": cursor, "names": ["a", None, True], "logs": []}
    store = CheckpointStore(run_dir=tmp_path)
    path = store.save(40, write_model=write_model, tensors=tensors, state=state, score=0.5)
    assert path == tmp_path / "checkpoints" / "step-000040"
    assert names(path) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "trainer",
        "trainer/optimizer.safetensors",
        "trainer/state.json",
    ]
    loaded = store.latest()
    assert (loaded.step, loaded.path, loaded.state) == (40, path, state)
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)
    assert {p.stat().st_mode & 0o077 for p in path.rglob("*.*")} == {path.stat().st_mode & 0o066}


@pytest.mark.parametrize("state", [{"a": (1, 2)}, {"a": {1: "x"}}])
def test_a_state_that_would_come_back_changed_is_refused(tmp_path: Path, state: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"checkpoint state \['a'\] would not come back equal"):
        CheckpointStore(run_dir=tmp_path).save(1, write_model=write_model, tensors={}, state=state)


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        CheckpointStore(run_dir=tmp_path).save(1, write_model=write_model, tensors={}, state={}, score=float("nan"))


def test_keep_last_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep_last=0: at least 1"):
        CheckpointStore(run_dir=tmp_path, keep_last=0)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=2)
    kept = []
    for step, score in ((0, None), (10, 0.1), (20, 0.9), (30, 0.5), (40, None), (50, 0.9), (60, 0.2), (70, None)):
        save(store, step, score=score)
        kept.append(steps(store))
    assert kept == [[0], [10, 0], [20, 10], [30, 20], [40, 30, 20], [50, 40], [60, 50], [70, 60, 50]]
    assert store.best() == tmp_path / "checkpoints" / "step-000050"
    CheckpointStore(run_dir=tmp_path, keep_last=1, keep_best=False).prune()
    assert steps(store) == [70]
    assert store.best() is None


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=3)
    for step in (999_999, 1_000_000):
        save(store, step)
    (tmp_path / "checkpoints" / "step-12").mkdir()
    (tmp_path / "checkpoints" / "notes").mkdir()
    assert steps(store) == [1_000_000, 999_999]


def test_nothing_is_pruned_unless_the_newest_is_whole(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=3)
    for step in (1, 2, 3):
        path = save(store, step)
    flip(path / "model.safetensors", 5)
    with pytest.raises(CheckpointError, match=r"step-000003/model.safetensors: expected sha256"):
        CheckpointStore(run_dir=tmp_path, keep_last=1).prune()
    assert steps(store) == [3, 2, 1]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path)
    save(store, 5, score=0.1)
    save(store, 5, score=0.7)
    assert names(tmp_path / "checkpoints").count("step-000005") == len(list((tmp_path / "checkpoints").iterdir())) == 1
    assert json.loads((tmp_path / "checkpoints/step-000005/trainer/state.json").read_text())["score"] == 0.7


# --- finding the last good one ---


def test_latest_falls_back_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=4)
    for step in (1, 2, 3, 4):
        save(store, step)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-000004" / "manifest.json").unlink()
    flip(checkpoints / "step-000003" / "trainer" / "optimizer.safetensors", 70)
    with caplog.at_level(logging.WARNING):
        loaded = store.latest()
    assert loaded.step == 2
    assert loaded.tensors["w"].tolist() == [2.0, 2.0, 2.0]
    first, second = (record.getMessage() for record in caplog.records)
    assert "step-000004 is not valid" in first
    assert "manifest.json: No such file" in first
    assert "step-000003/trainer/optimizer.safetensors: expected sha256" in second
    with pytest.raises(CheckpointError, match="never completed"):
        store.latest(strict=True)


def test_a_run_without_a_valid_checkpoint_never_silently_restarts(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoints holds no valid checkpoint; restore one") as caught:
        store.latest()
    assert caught.value.exit_code == 4
    flip(save(store, 1) / "config.json", 0)
    with pytest.raises(CheckpointError, match="holds no valid checkpoint"):
        store.latest()


def test_a_model_folder_without_trainer_state_cannot_be_resumed(tmp_path: Path) -> None:
    with durable.atomic_directory(tmp_path / "checkpoints" / "step-000001") as folder:
        write_model(folder)
    with pytest.raises(CheckpointError, match=r"without trainer/optimizer.safetensors; it can be evaluated"):
        CheckpointStore(run_dir=tmp_path).load(tmp_path / "checkpoints" / "step-000001")


def test_a_checkpoint_whose_log_lost_rows_is_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n" * 4)
    for step, size in ((1, 6), (2, 12)):
        hashed = sha256(b"{}\n" * (size // 3)).hexdigest()
        save(store, step, logs=[{"file": "metrics.jsonl", "bytes": size, "sha256": hashed}])
    assert store.latest().step == 2
    os.truncate(tmp_path / "metrics.jsonl", 11)
    assert store.latest().step == 1
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged: it has 11 bytes and had 12, when this"):
        store.latest(strict=True)


def test_a_checkpoint_whose_log_was_changed_is_passed_over(tmp_path: Path) -> None:
    store, log = CheckpointStore(run_dir=tmp_path), MetricsLog(tmp_path)
    for step in range(2):
        log.step(step, {"reward/mean": 0.5})
        save(store, step + 1, logs=log.logs())
    flip(tmp_path / "metrics.jsonl", 40)  # of the second row
    assert store.latest().step == 1
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged: its content does not match"):
        store.latest(strict=True)
    flip(tmp_path / "metrics.jsonl", 10)
    with pytest.raises(CheckpointError, match="holds no valid checkpoint"):
        store.latest()


def test_logs_reach_no_file_outside_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "precious").write_text("data\n")
    store = CheckpointStore(run_dir=run)
    path = save(store, 1, logs=[{"file": "../precious", "bytes": 0, "sha256": ""}])
    with pytest.raises(CheckpointError, match=r"'../precious' is no file of this run"):
        store.rewind(store.load(path))
    assert (tmp_path / "precious").read_text() == "data\n"


def test_any_flipped_byte_of_a_checkpoint_is_found_before_it_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path)
    path = save(store, 1)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    chance = random.Random(0)
    for _ in range(100):
        file = chance.choice(files)
        at = chance.randrange(file.stat().st_size)
        flip(file, at)
        with pytest.raises(CheckpointError):
            store.load(path)
        flip(file, at)
    assert store.load(path).step == 1


# --- full disks ---


def test_preflight_wants_room_for_three(tmp_path: Path) -> None:
    CheckpointStore(run_dir=tmp_path).preflight(1000)
    with pytest.raises(StorageError, match="3000000000000000 bytes needed"):
        CheckpointStore(run_dir=tmp_path).preflight(10**15)


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=1)
    save(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match=r"step-000002: .*File too large.* bytes free"):
            store.save(2, write_model=lambda folder: None, tensors={"w": torch.zeros(100_000)}, state={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path / "checkpoints")[0] == "step-000001"
    assert steps(store) == [1]
    assert store.latest().step == 1


# --- a whole run: killed anywhere, the same bytes ---


def record(run_dir: Path, step: int, weights: torch.Tensor) -> None:
    reward = RewardResult(total=float(weights[0]), terms={}, dimensions={}, correctness=0.0)
    write_trajectories(
        run_dir / "trajectories" / f"train-{step:06d}.jsonl",
        scored=[ScoredGroup(group=group(episode()), rewards=(reward,))],
        advantages=[[0.5]],
        dropped=[None],
        step=step,
        seed=0,
    )


def run(run_dir: Path, *, last: int, every: int) -> None:
    """A toy training run, started or resumed: `last` steps, a checkpoint every `every`."""
    with RunLock(run_dir):
        store = CheckpointStore(run_dir=run_dir, keep_last=1, keep_best=False)
        metrics = MetricsLog(run_dir)
        if store.candidates():
            checkpoint = store.latest()
            store.rewind(checkpoint)
            begin, weights = checkpoint.step, checkpoint.tensors["w"]
        else:
            begin, weights = 0, torch.ones(3)
            keep(store, 0, weights, metrics)
        for step in range(begin, last):
            weights = weights * 1.1 + step
            record(run_dir, step, weights)
            metrics.clock(step, {"time/train": time.monotonic()})
            metrics.step(step, {"reward/mean": float(weights[0])})
            if (step + 1) % every == 0:
                keep(store, step + 1, weights, metrics)


def keep(store: CheckpointStore, step: int, weights: torch.Tensor, metrics: MetricsLog) -> None:
    store.save(step, write_model=write_model, tensors={"w": weights}, state={"logs": metrics.logs()})


def outcome(run_dir: Path) -> dict[str, bytes]:
    """Every file of the run that must repeat, by its path."""
    return {
        name: (run_dir / name).read_bytes()
        for name in names(run_dir)
        if (run_dir / name).is_file() and "timings" not in name and not name.startswith(("orphans/", "run.lock"))
    }


def clock_steps(run_dir: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run_dir / "timings.jsonl").read_text().splitlines()]


def dies(run_dir: Path, at: int, *, torn: bool) -> bool:
    run_dir.mkdir(exist_ok=True)
    machine = Machine(run_dir, at, torn=torn)
    try:
        with durable.injected(machine):
            run(run_dir, last=3, every=2)
    except Crash:
        machine.lose_power()
        return True
    return False


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_at_any_operation_of_a_run_leaves_no_trace(tmp_path: Path) -> None:
    operations: list[durable.Operation] = []
    (tmp_path / "whole").mkdir()
    with durable.injected(operations.append):
        run(tmp_path / "whole", last=3, every=2)
    expected = outcome(tmp_path / "whole")
    assert len(expected) == 9
    assert len(operations) > 60
    for at, op in enumerate(operations, start=1):
        for torn in (False, True) if op.kind == "write" else (False,):
            run_dir = tmp_path / f"{at}-{torn}"
            assert dies(run_dir, at, torn=torn)
            run(run_dir, last=3, every=2)
            assert outcome(run_dir) == expected, f"{op}, torn {torn}"
            assert clock_steps(run_dir) == [0, 1, 2]


@pytest.mark.usefixtures("no_fsync")
def test_crashes_while_resuming_leave_no_trace(tmp_path: Path) -> None:
    run(tmp_path / "whole", last=3, every=2)
    expected = outcome(tmp_path / "whole")
    chance = random.Random(0)
    resumes_that_died = 0
    for number in range(40):
        run_dir = tmp_path / str(number)
        assert dies(run_dir, chance.randint(1, 60), torn=chance.random() < 0.5)
        for _ in range(3):
            resumes_that_died += dies(run_dir, chance.randint(1, 25), torn=chance.random() < 0.5)
        run(run_dir, last=3, every=2)
        assert outcome(run_dir) == expected
    assert resumes_that_died > 60


@pytest.mark.usefixtures("no_fsync")
def test_at_every_instant_after_the_first_checkpoint_one_is_valid(tmp_path: Path) -> None:
    def check(op: durable.Operation) -> None:
        valid = 0
        for path in (tmp_path / "checkpoints").iterdir():  # a replaced one counts: it is put back
            try:
                durable.verify_directory(path)
            except CheckpointError:
                continue
            valid += not path.name.startswith(".tmp")
        assert valid >= 1, op

    store = CheckpointStore(run_dir=tmp_path, keep_last=1, keep_best=False)
    save(store, 1)
    with durable.injected(check):
        for step in (2, 3, 3, 4):
            save(store, step)


def test_rewinding_sets_aside_what_came_later(tmp_path: Path) -> None:
    store = CheckpointStore(run_dir=tmp_path, keep_last=9)
    metrics = MetricsLog(tmp_path)
    for step in range(4):
        record(tmp_path, step, torch.ones(1))
        metrics.clock(step, {"time/train": 1.0})
        metrics.step(step, {"reward/mean": 0.5})
        save(store, step + 1, logs=metrics.logs())
        metrics.clock(step + 1, {"time/checkpoint": 1.0})
    trajectories = tmp_path / "trajectories"
    for name in ("eval-dev-000002.jsonl", "eval-dev-000003.jsonl", "eval-start-greedy.jsonl", ".tmp-0123abcd-x.jsonl"):
        (trajectories / name).write_text("{}\n")
    store.rewind(store.load(tmp_path / "checkpoints" / "step-000002"))
    assert (tmp_path / "metrics.jsonl").read_text() == ('{"step":0,"reward/mean":0.5}\n{"step":1,"reward/mean":0.5}\n')
    assert clock_steps(tmp_path) == [0, 1, 1]
    assert names(trajectories) == [
        "eval-dev-000002.jsonl",
        "eval-start-greedy.jsonl",
        "train-000000.jsonl",
        "train-000000.timings.jsonl",
        "train-000001.jsonl",
        "train-000001.timings.jsonl",
    ]
    assert steps(store) == [2, 1]
    orphans = [path.name for path in sorted((tmp_path / "orphans").iterdir())]
    assert [name[:18] if name.startswith(("metrics", "timings")) else name for name in orphans] == [
        "eval-dev-000003.jsonl",
        "metrics-0000000058",
        "step-000003",
        "step-000004",
        "timings-0000000089",
        "train-000002.jsonl",
        "train-000002.timings.jsonl",
        "train-000003.jsonl",
        "train-000003.timings.jsonl",
    ]
    assert store.latest().step == 2


def _kill_many(root: Path, kills: int) -> None:
    """Runs of the toy, killed at random instants until `kills` have hit, each compared with a run that was not."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a kill loses nothing that was written, and the runs are many
    fork = multiprocessing.get_context("fork")
    run(root / "whole", last=8, every=3)
    began = time.monotonic()
    run(root / "timed", last=8, every=3)
    seconds = time.monotonic() - began
    expected = outcome(root / "whole")
    chance = random.Random(0)
    hits = runs = 0
    while hits < kills:
        runs += 1
        run_dir = root / f"run-{runs}"
        done = False
        while not done:
            child = fork.Process(target=run, args=(run_dir,), kwargs={"last": 8, "every": 3})
            child.start()
            child.join(chance.uniform(0.0, 1.1 * seconds) if hits < kills else None)
            if child.is_alive():
                child.kill()
                child.join()
            done = child.exitcode == 0
            assert done or child.exitcode == -signal.SIGKILL
            hits += not done
        assert outcome(run_dir) == expected, run_dir
        assert clock_steps(run_dir) == list(range(8))
    print(f"{hits} kills, {runs} runs")


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_sigkill_at_random_instants_leaves_no_trace(tmp_path: Path, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.test_checkpoint", str(tmp_path), str(kills)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= kills


if __name__ == "__main__":
    _kill_many(Path(sys.argv[1]), int(sys.argv[2]))
