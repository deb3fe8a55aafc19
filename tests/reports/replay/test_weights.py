"""Which weights sampled an episode, and where a run still has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agentgrpo.core.errors import CheckpointError, ConfigError
from agentgrpo.core.types import ScoredGroup
from agentgrpo.models.loading import Start
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.reports.replay.weights import Kept, RecordedWeights
from tests import builders


def kept_run(tmp_path: Path, *steps: int, skipped: Mapping[int, Mapping[str, float]] | None = None) -> RunDir:
    """Checkpoints of these steps, and metrics of ten."""
    (tmp_path / "config.yaml").write_text("run: {}")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text("{}")
    for step in steps:
        folder = tmp_path / "checkpoints" / f"step-{step:06d}"
        (folder / "trainer").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        state = {"step": 0, "score": None, "state": {"start": Start(tmp_path / "start").state()}}
        (folder / "trainer" / "state.json").write_text(json.dumps(state))
    rows = [{"step": step, **(skipped or {}).get(step, {})} for step in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunDir(tmp_path)


def weights_of(run: RunDir, version: int | None) -> RecordedWeights:
    (run.path / "trajectories").mkdir(exist_ok=True)
    path = run.path / "trajectories" / "train-000009.jsonl"
    said = builders.sampled(3, version=version or 0)
    group = builders.group(builders.episode(None, builders.given(1), said))
    scored = [ScoredGroup(group=group, rewards=(None,))]
    write_trajectories(path, scored=scored, advantages=[[None]], dropped=[None], step=9, seed=0)
    kept = Kept(run, None)
    return kept.weights(kept.file(name=None, step="9"), list(read_trajectories(path)))


def test_the_checkpoint_of_as_many_steps_has_the_weights(tmp_path: Path) -> None:
    run = kept_run(tmp_path, 4, 8)
    folder = tmp_path / "checkpoints" / "step-000008"
    assert weights_of(run, 8) == RecordedWeights(
        version=8, name="checkpoints/step-000008", folder=folder, start=tmp_path / "start"
    )
    with pytest.raises(ConfigError, match=r"after 7 steps, which the run has not kept. It kept those after 4, 8"):
        weights_of(run, 7)


def test_steps_that_changed_nothing_are_no_other_weights(tmp_path: Path) -> None:
    run = kept_run(tmp_path, 4, skipped={4: {"skipped": 1.0}, 5: {"skipped": 1.0}})
    assert weights_of(run, 6).name == "checkpoints/step-000004"
    with pytest.raises(ConfigError, match="after 7 steps"):
        weights_of(run, 7)


def test_a_step_that_went_back_has_the_weights_that_it_went_back_to(tmp_path: Path) -> None:
    back = {"skipped": 1.0, "guard/rollback": 1.0, "guard/rolled_back_to": 2.0}
    assert weights_of(kept_run(tmp_path, 2, 5, skipped={5: back}), 6).name == "checkpoints/step-000002"


def test_the_sampler_s_weights_lie_beside_the_next_ones(tmp_path: Path) -> None:
    run = kept_run(tmp_path, 5)
    tensors = tmp_path / "checkpoints" / "step-000005" / "trainer" / "optimizer.safetensors"
    save_file({"w": torch.ones(1)}, tensors)
    with pytest.raises(ConfigError, match="after 4 steps"):
        weights_of(run, 4)
    save_file({"w": torch.ones(1), "sampler/w": torch.zeros(2)}, tensors)
    found = weights_of(run, 4)
    assert (found.is_sampler, found.name) == (True, "checkpoints/step-000005 (the sampler's, one step behind)")
    sampler = found.sampler()
    assert sampler is not None
    assert {name: t.tolist() for name, t in sampler.items()} == {"w": [0.0, 0.0]}
    assert weights_of(run, 5).sampler() is None


def test_the_start_weights_are_verified(tmp_path: Path) -> None:
    run = kept_run(tmp_path, 5)
    start = tmp_path / "start"
    assert weights_of(run, 0) == RecordedWeights(version=0, name=f"{start} (start weights)", start=start)
    (start / "config.json").write_text('{"other": 1}')
    with pytest.raises(CheckpointError, match=r"replay from version 0 needs the start weights, and .* no longer holds"):
        weights_of(run, 0)


def test_an_evaluation_of_its_own_needs_to_be_told(tmp_path: Path) -> None:
    run = kept_run(tmp_path)
    assert weights_of(run, 0) == RecordedWeights(version=0, name="what the configuration starts from")
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="does not say which weights it evaluated; give the weights with --ckpt PATH"):
        weights_of(RunDir(tmp_path), 0)


def test_an_evaluation_says_which_weights_it_is_of(tmp_path: Path) -> None:
    own, ckpt = tmp_path / "own", tmp_path / "ckpt"
    for folder in (own / "trajectories", ckpt):
        folder.mkdir(parents=True)
    (ckpt / "config.json").write_text("{}")
    (own / "evaluated.json").write_text(json.dumps({"ckpt": str(ckpt), "baseline": str(tmp_path / "gone")}))
    for policy in ("start", "end"):
        of = {"step": 0, "seed": 0, "split": "test"}
        path = own / "trajectories" / f"eval-{policy}-greedy.jsonl"
        write_trajectories(path, scored=[], advantages=[], dropped=[], **of)  # type: ignore[arg-type]
    kept = Kept(RunDir(own), None)
    found = kept.weights(kept.file(name="eval-end-greedy", step=None), [])
    assert found == RecordedWeights(version=0, name=str(ckpt), folder=ckpt)
    with pytest.raises(ConfigError, match=r"its weights are no longer in .*gone; give the weights with --ckpt PATH"):
        kept.weights(kept.file(name="eval-start-greedy", step=None), [])
