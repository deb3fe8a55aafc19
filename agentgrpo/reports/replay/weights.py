"""Finds the weights that sampled an episode, if the run still has them.

policy_version of the sampled tokens = number of steps done when they were sampled
    --> checkpoints/step-N           the weights after N steps
    --> an earlier checkpoint        if the steps between changed nothing: skipped, or rolled back to it
    --> checkpoints/step-N+1         the sampler's weights, if steps overlap (algorithm.max_staleness=1)
    --> the start weights            for 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from agentgrpo.core.errors import ConfigError
from agentgrpo.models.export import holds_model, require_model
from agentgrpo.models.loading import saved_start, verified
from agentgrpo.records.metrics import METRICS
from agentgrpo.records.run_dir import RunDir, TrajectoryFile
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.run.parts import PREFIX
from agentgrpo.training.checkpoint import TENSORS

_EXAMINED = ("start", "end")
"""Policies whose evaluations use weights of the run; other policies have no weights."""
_EVALUATED = {"end": "ckpt", "start": "baseline"}
"""Policy -> key of evaluated.json."""
_FIRST = 64
"""Maximum number of episodes of a file that are searched for a policy_version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWeights:
    """Weights of one policy_version. Without `folder` and `start`: the start weights of the configuration."""

    version: int
    name: str
    """Name for people, for example checkpoints/step-000125."""
    folder: Path | None = None
    """A checkpoint or a model folder."""
    start: Path | None = None
    """The run's start weights at the path that its checkpoints record; the path may no longer exist if `folder` is
    given."""
    is_sampler: bool = False
    """True if the weights are the sampler's tensors in `folder`, whose trained weights are one step ahead."""

    def sampler(self) -> dict[str, Tensor] | None:
        """Name -> tensor of all trained parameters of the sampler; None unless `is_sampler`."""
        if self.folder is None or not self.is_sampler:
            return None
        tensors = load_file(self.folder / TENSORS)
        return {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}


class Kept:
    """The weights that a run has kept. given: weights to use in any case (--ckpt)."""

    def __init__(self, run: RunDir, given: Path | None) -> None:
        """Raises ConfigError if `given` contains no model."""
        if given is not None:
            require_model(given, f"--ckpt {given}")
        self._run, self._given = run, given
        self._checkpoints = {step: path for step, path in run.checkpoints().items() if holds_model(path)}

    def file(self, *, name: str | None, step: str | None) -> TrajectoryFile:
        """The trajectory file with this name or step; by default the newest training step whose weights are kept, or
        else the evaluation of the end weights. Raises ConfigError if there is no such file, or if its policy has no
        weights."""
        if name is None and step is None and self._given is None:
            files = self._run.trajectory_files()
            steps = [file for file in reversed(files) if file.step is not None and self._is_kept(file)]
            ends = [file for file in files if file.policy == "end" and self._is_kept(file)]
            if steps or ends:
                return (steps or ends)[0]
        found = self._run.trajectory_file(name=name, step=step)
        if found.step is None and found.policy not in _EXAMINED:
            raise ConfigError(f"{found.name} is from a policy without weights ({found.policy}); replay another --file")
        return found

    def weights(self, file: TrajectoryFile, records: Sequence[TrajectoryRecord]) -> RecordedWeights:
        """The weights that sampled all of `records`, which are from `file`. Raises ConfigError if they are not kept, or
        if the records have several versions."""
        versions = sorted({r.policy_version for r in records if r.policy_version is not None})
        if len(versions) > 1:
            raise ConfigError(
                f"{file.name}: these episodes were sampled from several weights, after {_listed(versions)} steps; "
                "replay them one at a time, with --episode"
            )
        version = versions[0] if versions else 0
        if self._given is not None:
            return RecordedWeights(version=version, name=str(self._given), folder=self._given, start=self._start)
        if not (self._run.path / METRICS).is_file() and not self._checkpoints:
            return self._evaluated(file, version)
        found = self._of(version)
        if found is None:
            replayable = [f.name for f in self._run.trajectory_files() if self._is_kept(f)]
            raise ConfigError(
                f"{file.name} was sampled from the weights after {version} steps, which the run has not kept. It kept "
                f"those after {_listed(self._checkpoints) or 'none'}, which can replay: "
                f"{', '.join(replayable) or 'nothing'}. Give weights with --ckpt; run.keep_last=N and "
                "run.checkpoint_every=N keep more"
            )
        return found

    def _evaluated(self, file: TrajectoryFile, version: int) -> RecordedWeights:
        """The weights that `agentgrpo eval` recorded as evaluated."""
        said = self._run.evaluated.get(_EVALUATED.get(file.policy, ""))
        if isinstance(said, str) and holds_model(Path(said)):
            return RecordedWeights(version=version, name=said, folder=Path(said))
        why = f"its weights are no longer in {said}" if said else "it does not say which weights it evaluated"
        raise ConfigError(f"{self._run.path} has not trained, and {why}; give the weights with --ckpt PATH")

    def _of(self, version: int) -> RecordedWeights | None:
        for same in self._equals(version):
            if (path := self._checkpoints.get(same)) is not None:
                return RecordedWeights(version=version, name=_named(path), folder=path, start=self._start)
            after = self._checkpoints.get(same + 1)
            if after is not None and _has_sampler(after):
                name = f"{_named(after)} (the sampler's, one step behind)"
                return RecordedWeights(version=version, name=name, folder=after, start=self._start, is_sampler=True)
            if same == 0:
                if not self._checkpoints:
                    return RecordedWeights(version=version, name="what the configuration starts from")
                start = verified(saved_start(self._newest) or {"folder": ""}, "replay from version 0")
                return RecordedWeights(version=version, name=f"{start} (start weights)", start=start)
        return None

    def _equals(self, version: int) -> Iterator[int]:
        """`version`, and earlier versions with the same weights."""
        rows = {int(row["step"]): row for row in self._run.metrics()}
        while True:
            yield version
            row = rows.get(version - 1, {})
            if not row.get("skipped"):
                return
            version = int(row.get("guard/rolled_back_to", version - 1))

    def _is_kept(self, file: TrajectoryFile) -> bool:
        """Judge by the first episodes only, without verifying start weights."""
        if file.step is None and file.policy not in _EXAMINED:
            return False
        some = islice(read_trajectories(file.path), _FIRST)
        version = next((r.policy_version for r in some if r.policy_version is not None), None)
        if version is None:
            return False
        known = {*self._checkpoints, 0}
        return any(same in known or _has_sampler(self._checkpoints.get(same + 1)) for same in self._equals(version))

    @property
    def _newest(self) -> Path:
        return self._checkpoints[max(self._checkpoints)]

    @cached_property
    def _start(self) -> Path | None:
        saved = saved_start(self._newest) if self._checkpoints else None
        return None if saved is None else Path(saved["folder"])


def _has_sampler(checkpoint: Path | None) -> bool:
    if checkpoint is None or not (checkpoint / TENSORS).is_file():
        return False
    try:
        with safe_open(checkpoint / TENSORS, framework="pt") as file:
            return any(name.startswith(PREFIX) for name in file.keys())  # noqa: SIM118 (it is not a mapping)
    except SafetensorError:
        return False


def _named(checkpoint: Path) -> str:
    return f"{checkpoint.parent.name}/{checkpoint.name}"


def _listed(steps: object) -> str:
    return ", ".join(map(str, steps))  # type: ignore[call-overload]
