"""Episodes recorded by earlier runs, token by token: rejection sampling from existing trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Message, Task
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.rollout.demonstrations.base import Demonstrations, demonstrated
from agentgrpo.rollout.loop import PolicyRunner


class Found(NamedTuple):
    """A recorded episode and its location."""

    path: Path
    record: TrajectoryRecord

    @property
    def id(self) -> str:
        return f"{self.path}:{self.record.id}"


class RecordedRuns:
    """The episodes in those trajectory files of `runs` whose names match `files`: train-* are from training,
    eval-end-sampled from an evaluation. min_reward: the minimum reward of an episode. best: keep only the best episode
    of each group, the first one if several are equally good."""

    def __init__(
        self, *, runs: tuple[str, ...], files: str = "train-*", min_reward: float | None = None, best: bool = False
    ) -> None:
        """Raises ConfigError or DataError for runs that cannot be read, and if no episode is left."""
        groups: dict[tuple[Path, str], list[Found]] = {}
        for found in (found for run in runs for found in _read(RunDir(Path(run)), files)):
            groups.setdefault((found.path, found.record.group), []).append(found)
        some = [f for group in groups.values() for f in (_best(group) if best else group) if _is_good(f, min_reward)]
        if not some:
            count = sum(map(len, groups.values()))
            raise DataError(
                f"demonstrations.runs={list(runs)}: none of {count} episodes is left with min_reward={min_reward}, "
                f"best={str(best).lower()}; lower min_reward, or give other runs or files"
            )
        self._found = {f.id: f for f in some}
        ids = [(f.id, [branch.token_ids for branch in f.record.branches]) for f in some]
        self.fingerprint = sha256(repr(ids).encode("utf-8", "surrogatepass")).hexdigest()

    def by(self, policy: PolicyRunner, settings: RolloutSettings) -> Demonstrations:
        """Raises ConfigError if the policy's tokenizer differs from the one of the runs."""
        room = policy.engine.max_context
        for path, record in self._found.values():
            for segment in (segment for branch in record.branches for segment in branch.segments):
                if policy.renderer.decode(segment.token_ids) != segment.text:
                    raise ConfigError(
                        f"{path}, episode {record.id}: its token ids say something else to this model's tokenizer; "
                        "train a model with the tokenizer of that run, or give conversations: demonstrations=chat"
                    )
        fit = [f for f in self._found.values() if all(len(b.token_ids) <= room for b in f.record.branches)]
        long = len(self._found) - len(fit)
        note = f"{long} of {len(self._found)} recorded episodes are longer than {room} tokens, the context of the model"
        if not fit:
            raise DataError(f"{note}; give shorter ones")

        async def show(tasks: Sequence[Task]) -> list[EpisodeGroup]:
            return [
                EpisodeGroup(task=t, episodes=(demonstrated(_episode(t, self._found[t.id].record)),)) for t in tasks
            ]

        notes = [f"{note}, and are left out"] if long else []
        return Demonstrations(tasks=[_task(f) for f in fit], show=show, notes=notes)


def _read(run: RunDir, files: str) -> Iterator[Found]:
    """Yield the episodes that were scored and have sampled tokens."""
    if problems := run.problems():
        raise DataError(f"{problems[0]}; nothing is learned from a damaged run: give others")
    matching = [file for file in run.trajectory_files() if fnmatchcase(file.name, files)]
    if not matching:
        names = [file.name for file in run.trajectory_files()]
        raise ConfigError(
            f"demonstrations.files={files}: {run.path} has no such trajectories, but {', '.join(names) or 'none'}"
        )
    for file in matching:
        for record in read_trajectories(file.path):
            if record.reward is not None and any(b.num_sampled_tokens for b in record.branches):
                yield Found(file.path, record)


def _best(group: Sequence[Found]) -> list[Found]:
    return [max(group, key=lambda found: found.record.reward or 0.0)]


def _is_good(found: Found, min_reward: float | None) -> bool:
    return min_reward is None or (found.record.reward or 0.0) >= min_reward


def _task(found: Found) -> Task:
    record = found.record
    return Task(
        id=found.id,
        messages=tuple(Message(role=m["role"], content=m["content"]) for m in record.prompt_messages),
        references=tuple(map(str, record.references)),
        metadata=record.metadata,
        data_source=record.data_source,
    )


def _episode(task: Task, record: TrajectoryRecord) -> Episode:
    return Episode(
        task=task,
        sample_index=0,
        branches=record.branches,
        answer=record.answer,
        exit=Exit(record.agent["exit"]),
        metrics=record.metrics,
        environment=record.environment["name"],
    )
