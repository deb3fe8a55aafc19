"""Every file of a run directory and of a checkpoint in every way that somebody may have made it: whoever reads it gets
an answer in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.e2e.conftest import run_once
from tests.e2e.test_corruption import SHORT
from tests.hostile import WAYS, answer, sign

STEP = ["rollout.tasks_per_step=2", "rollout.group_size=2"]
CHECKPOINT = "checkpoints/step-000002"
READERS = {
    "show": ["show", "RUN"],
    "list": ["show", "RUN", "--list"],
    "view": ["view", "RUN"],
    "report": ["report", "RUN"],
    "diff": ["diff", "RUN", "RUN"],
    "replay": ["replay", "RUN", "--step", "1", "--all"],
    "resume": ["resume", "RUN"],
}
LOADERS = {
    "resume": ["resume", "RUN"],
    "eval": ["eval", "--ckpt", f"RUN/{CHECKPOINT}", "run.dir=OUT", "run.eval.tasks=2", "run.eval.samples_per_task=1"],
    "replay": ["replay", "RUN", "--step", "1", "--all"],
    "export": ["export", "--ckpt", f"RUN/{CHECKPOINT}", "--merge", "OUT"],
}
FILES = (
    *("config.yaml", "environment.json", "metrics.jsonl", "timings.jsonl", "seals.jsonl", "eval.json", "run.lock"),
    *("eval-start.json", "stopped.json", "evaluated.json", "trajectories/train-000001.jsonl"),
    *("trajectories/train-000001.timings.jsonl", "trajectories/eval-end-greedy.jsonl"),
)
WEIGHTS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
    *("manifest.json", "README.md", "trainer/state.json", "trainer/optimizer.safetensors"),
)


@pytest.fixture(scope="module")
def once(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_once(start, tmp_path_factory, *SHORT, *STEP)
    for name in ("stopped.json", "evaluated.json"):  # of runs that were stopped, or evaluated apart
        (run / name).write_text('{"step": 1, "max_steps": 2, "reason": "x", "raised": "", "ckpt": null}\n')
    return run


def put(once: Path, tmp_path: Path, file: str, way: Callable[[Path], None], *, signed: bool) -> Path:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    shutil.copytree(once, run)
    way(run / file)
    if signed:
        sign(run)
    return run


def answered(argv: list[str], run: Path) -> str | None:
    """What is wrong with the answer."""
    given = [word.replace("RUN", str(run)).replace("OUT", str(run.with_name("out"))) for word in argv]
    said = answer(given, run.with_name("said"))
    return None if said.is_answer else f"{said.code}: {' '.join(said.lines[-1:])}"


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_a_run(once: Path, tmp_path: Path, file: str) -> None:
    verbs, bad = islice(cycle(READERS), FILES.index(file), None), {}  # each verb meets each way, in some file
    for name, way in WAYS.items():
        verb = next(verbs)
        run = put(once, tmp_path, file, way, signed=False)
        if (wrong := answered(READERS[verb], run)) is not None:
            bad[name, verb] = wrong
    assert bad == {}


@pytest.mark.slow
@pytest.mark.parametrize("file", WEIGHTS)
def test_a_file_of_a_checkpoint_whose_hashes_are_right(once: Path, tmp_path: Path, file: str) -> None:
    verbs, bad = islice(cycle(LOADERS), WEIGHTS.index(file), None), {}
    for name, way in WAYS.items():
        verb = next(verbs)
        run = put(once, tmp_path, f"{CHECKPOINT}/{file}", way, signed=file != "manifest.json")
        if (wrong := answered(LOADERS[verb], run)) is not None:
            bad[name, verb] = wrong
    assert bad == {}


@pytest.mark.slow
def test_a_template_without_end_is_refused_by_whoever_renders_it(once: Path, tmp_path: Path) -> None:
    loops = "{% for i in range(90000) %}" * 3 + "x" + "{% endfor %}" * 3
    for argv in (LOADERS["eval"], LOADERS["replay"]):
        run = put(once, tmp_path, f"{CHECKPOINT}/README.md", Path.unlink, signed=False)
        for folder in (run / "checkpoints").iterdir():
            (folder / "chat_template.jinja").write_text(loops)
        sign(run)
        given = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")) for word in argv]
        said = answer(given, tmp_path / "said")
        assert said.code == 2, said
        assert "the chat template takes more than 3 seconds" in said.lines[-1]
