"""Three hundred random corruptions over all files of a run directory: each is found, or has nothing to do with the run.

Found: by who resumes (the newest checkpoint is refused), or by who reads (a warning, or a refusal that names the file).
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import yaml

from agentgrpo.core.errors import AgentGrpoError, CheckpointError
from agentgrpo.records.run_dir import RunDir
from agentgrpo.training.checkpoint import CheckpointStore
from tests.e2e.conftest import run_once

SHORT = [
    "run.max_steps=2",
    "run.checkpoint_every=1",
    "run.eval_every=0",
    "run.eval.tasks=4",
    "run.eval.samples_per_task=2",
]
STEP = ["rollout.tasks_per_step=2", "rollout.group_size=2", "run.profile=true", "run.log_with=[tensorboard]"]
CLOCKS = ("timings.jsonl", "profile.jsonl")
"""Ends of names of files that hold seconds alone: no figure, no weight and no decision comes of them."""


@pytest.fixture(scope="module")
def once(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(start, tmp_path_factory, *SHORT, *STEP)


def corrupt(path: Path, chance: random.Random) -> str:
    """One of what disks, copies and editors do to a file; says what."""
    data = path.read_bytes()
    kinds = ["grown"] if not data else ["bit", "byte", "cut", "zeroed", "grown", "doubled", "gone", "emptied"]
    kind, at = chance.choice(kinds), chance.randrange(len(data) or 1)
    if kind == "gone":
        path.unlink()
        return kind
    changed = {
        "bit": lambda: data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :],
        "byte": lambda: data[:at] + bytes([(data[at] + chance.randrange(1, 256)) % 256]) + data[at + 1 :],
        "cut": lambda: data[:at],
        "zeroed": lambda: data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :],
        "grown": lambda: data[:at] + b"7" + data[at:],
        "doubled": lambda: data + data,
        "emptied": lambda: b"",
    }[kind]()
    path.write_bytes(changed)
    return f"{kind} at {at} of {len(data)}" if changed != data else "nothing"


def found(run: Path) -> str | None:
    """What says that the run is damaged; None where nothing does."""
    try:
        directory = RunDir(run)
        if problems := directory.problems():
            return problems[0]
        directory.metrics()
        _ = directory.environment, directory.evaluated, directory.stopped
        if directory.evaluation is None:
            return "there is no evaluation any more"
        saved = CheckpointStore(run_dir=run).latest(strict=True)
        for path in CheckpointStore(run_dir=run).candidates():
            CheckpointStore(run_dir=run).load(path)
        if directory.config != saved.state["config"]:  # refused by who resumes (run.drift)
            return "the configuration is not that of the checkpoint"
    except (AgentGrpoError, CheckpointError) as e:
        return str(e)
    return None


def is_no_matter(name: str, whole: Path, damaged: Path) -> bool:
    """Whether nothing that is computed or decided depends on what has changed."""
    if name.endswith(CLOCKS) or name == "run.lock" or name.startswith(("tensorboard/", "diagnostics/")):
        return True
    if name == "seals.jsonl":  # all that it still says is so, or it would have been found
        return damaged.exists()
    if name == "config.yaml" and damaged.exists():
        return bool(yaml.safe_load(whole.read_bytes()) == yaml.safe_load(damaged.read_bytes()))
    return False


@pytest.mark.slow
def test_no_corruption_is_silent(once: Path, tmp_path: Path) -> None:
    assert found(once) is None
    files = sorted(p.relative_to(once).as_posix() for p in once.rglob("*") if p.is_file() and not p.is_symlink())
    chance, silent, kinds = random.Random(0), [], set()
    for number in range(300):
        run = tmp_path / f"{number}"
        shutil.copytree(once, run, symlinks=True)
        name = files[number % len(files)]
        what = corrupt(run / name, chance)
        kinds.add(what.partition(" ")[0])
        if what != "nothing" and found(run) is None and not is_no_matter(name, once / name, run / name):
            silent.append(f"{name}: {what}")
        shutil.rmtree(run)
    assert silent == []
    assert len(kinds) >= 8
