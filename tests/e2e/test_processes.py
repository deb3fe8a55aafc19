"""The same run on two processes, through the command line: the same results, one voice, one end."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgrpo.cli.main import main
from agentgrpo.training.checkpoint import CheckpointStore
from tests.e2e.conftest import SMALL_WORLD, Run, rows
from tests.e2e.forked import forked
from tests.training.several import free_port

RUN = [
    "run.eval_every=0",
    "run.final_eval=false",
    "rollout.tasks_per_step=3",
    "rollout.group_size=4",
    "optimizer.eps=1e-4",  # Adam would make a whole step of a gradient that is nothing but the order of summation
    "hardware=multi_gpu",
    "hardware.device=cpu",
    "hardware.threads=1",
]
MODULE = ["-m", "agentgrpo"]
PYTHON = [sys.executable, "-W", "ignore"]


class Started:
    """Processes that are ended at the latest with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[str]] = []

    def _start(self, command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        process = subprocess.Popen(
            [*PYTHON, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._directory,
            env=environment | {"OMP_NUM_THREADS": "1"} | variables,
        )
        self._started.append(process)
        return process

    def launch(self, *arguments: str) -> subprocess.Popen[str]:
        """Two processes by `accelerate launch`."""
        flags = ["--multi_gpu", "--num_processes", "2", "--main_process_port", str(free_port())]
        return self._start(["-m", "accelerate.commands.launch", *flags, *MODULE, *arguments])

    def ranks(self, *arguments: str) -> list[subprocess.Popen[str]]:
        """The same two as they are, so that each one's exit code is seen."""
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return [self._start([*MODULE, *arguments], RANK=r, LOCAL_RANK=r, **common) for r in ("0", "1")]

    def one(self, *arguments: str) -> subprocess.Popen[str]:
        return self._start([*MODULE, *arguments])

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.end()


@pytest.fixture
def arguments(start: Path) -> list[str]:
    return ["train", *SMALL_WORLD, "model=path", f"model.path='{start}'", *RUN]


def wait_for_rows(run_dir: Path, count: int, process: subprocess.Popen[str]) -> None:
    log, deadline = run_dir / "metrics.jsonl", time.monotonic() + 150
    while not (log.exists() and log.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def weights(run_dir: Path, step: int) -> dict[str, float]:
    tensors = load_file(run_dir / "checkpoints" / f"step-{step:06d}" / "model.safetensors")
    return {f"{name}[{i}]": float(x) for name, t in tensors.items() for i, x in enumerate(t.flatten()[:500])}


def assert_same_run(run_dir: Path, other: Path, *, steps: int) -> None:
    """Up to the order of summation. (Of a prompt that two processes share each forwards a copy.)"""
    for row, expected in zip(rows(run_dir / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True):
        assert row.keys() == expected.keys()
        for tag in row.keys() - {"tokens/forwarded"}:
            assert math.isclose(row[tag], expected[tag], rel_tol=1e-4, abs_tol=1e-5), tag
    found, expected_weights = weights(run_dir, steps), weights(other, steps)
    assert max(abs(found[name] - x) for name, x in expected_weights.items()) < 1e-5


def said_by_two(processes: Started, arguments: Sequence[str], folder: Path, how: str) -> str:
    """What two processes say on stdout that `accelerate launch` starts, or are forked as it would start them."""
    if how == "launched":
        return processes.launch(*arguments).communicate(timeout=200)[0]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    said = [folder / f"said-{rank}" for rank in "01"]
    with ExitStack() as stack:
        both = [
            stack.enter_context(forked(arguments, folder, said[int(rank)], RANK=rank, LOCAL_RANK=rank, **common))
            for rank in "01"
        ]
        for process in both:
            process.join(200)
        assert [process.exitcode for process in both] == [0, 0], [path.read_text() for path in said]
    return "".join(path.read_text() for path in said)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["forked", pytest.param("launched", marks=pytest.mark.slow)])
def test_two_processes_train_as_one_does_and_speak_with_one_voice(
    train: Run, processes: Started, arguments: list[str], tmp_path: Path, how: str
) -> None:
    short = ["run.max_steps=2", "run.screen=plain"]
    alone = train(*RUN, *short, name="alone")
    output = said_by_two(processes, [*arguments, *short], tmp_path, how)
    [run_dir] = (tmp_path / "runs").iterdir()  # nobody has named it: the first process has
    assert [output.count(f"{said}: ") for said in ("run directory", "next")] == [1, 1], output
    assert output.count("training step 1/2") == 1
    assert_same_run(run_dir, alone, steps=2)
    for step in (0, 1):
        name = f"trajectories/train-{step:06d}.jsonl"
        assert (
            (run_dir / name).read_bytes().count(b"\n") == (alone / name).read_bytes().count(b"\n") == 13
        )  # with a head


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stopped_and_resumed_on_two_one_and_two_processes(
    train: Run, processes: Started, arguments: list[str], tmp_path: Path
) -> None:
    steps = "run.max_steps=8"
    whole, run_dir = train(*RUN, steps, name="whole"), tmp_path / "stopped"
    launcher = processes.launch(*arguments, steps, f"run.dir='{run_dir}'")
    wait_for_rows(run_dir, 1, launcher)
    launcher.terminate()
    _, errors = launcher.communicate(timeout=60)
    assert errors.count("agentgrpo: stopped by SIGTERM; go on with: ") == 1
    done = CheckpointStore(run_dir=run_dir).latest(strict=True).step
    assert 1 <= done == len(rows(run_dir / "metrics.jsonl")) < 6

    alone = processes.one("resume", str(run_dir))
    wait_for_rows(run_dir, done + 1, alone)
    alone.terminate()
    _, errors = alone.communicate(timeout=60)
    assert alone.returncode == 75, errors

    done = CheckpointStore(run_dir=run_dir).latest(strict=True).step
    both = processes.ranks("resume", str(run_dir), "hardware.strategy=fsdp")
    wait_for_rows(run_dir, done + 1, both[0])
    both[1].terminate()  # the other one hears of it
    assert [(p.communicate(timeout=60), p.returncode)[1] for p in both] == [75, 75]

    assert main(["resume", str(run_dir)]) == 0
    assert_same_run(run_dir, whole, steps=8)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_run_in_time_and_it_can_be_resumed(
    processes: Started, arguments: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    run_dir, timeout_s = tmp_path / "run", 4.0
    settings = ["run.max_steps=500", f"hardware.process_timeout_s={timeout_s}", f"run.dir='{run_dir}'"]
    first, second = processes.ranks(*arguments, *settings)
    wait_for_rows(run_dir, 1, first)
    began = time.monotonic()
    second.send_signal(number)
    _, errors = first.communicate(timeout=60)
    seconds = time.monotonic() - began
    assert first.returncode == 7, errors
    said = errors.splitlines()[-1]
    how = "is gone" if number == signal.SIGKILL else "gives no sign of life for 4 s"
    # the phase is that of its last sign: on a fast machine a whole step fits between two of them
    assert re.fullmatch(
        r"agentgrpo: rank 1 of 2 was last at: the [a-z ]+( step \d+)? and "
        + re.escape(how)
        + "; the run ends on all processes and can be resumed",
        said,
    )
    assert seconds < timeout_s + 5.0
    checkpoint = CheckpointStore(run_dir=run_dir).latest(strict=True)
    assert checkpoint.step <= len(rows(run_dir / "metrics.jsonl"))
    assert main(["resume", str(run_dir), f"run.max_steps={checkpoint.step + 1}"]) == 0


@pytest.mark.slow
def test_a_mistake_is_named_once(processes: Started, arguments: list[str]) -> None:
    both = processes.ranks(*arguments, "rollout.top_p=0.9", "run.dir=r")
    errors = [p.communicate(timeout=100)[1] for p in both]
    assert [p.returncode for p in both] == [2, 2], errors
    assert [(e.count("agentgrpo: "), e.count("\n")) for e in errors] == [(1, 1), (0, 0)]
    assert "rollout.top_p=0.9" in errors[0]


@pytest.mark.parametrize("rank, said", [("0", 1), ("1", 0)])
def test_a_sweep_is_no_work_for_processes_that_belong_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: int
) -> None:
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "-m", "run.seed=0,1"]) == 2
    assert capsys.readouterr().err.count("a sweep by 2 processes; start them for one run after the other") == said
