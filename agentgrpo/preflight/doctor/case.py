"""The subject of the examination: a configuration, and the parts that earlier checks have built from it."""

from __future__ import annotations

import copy
import io
import re
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgrpo.config.build import build_node
from agentgrpo.config.registry import ROOT
from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.errors import AgentGrpoError, line_of
from agentgrpo.core.types import Episode, ScoredGroup
from agentgrpo.preflight.doctor.finding import Skipped
from agentgrpo.preflight.doctor.recording import RecordingEngine
from agentgrpo.preflight.plan.estimate import Plan, estimate
from agentgrpo.records.screen import Screen
from agentgrpo.run.build import Run, build_run, load_inputs, prepare_start
from agentgrpo.run.settings import settings_of
from agentgrpo.training.process_group import Alone

STREAM = "train/0"
"""The stream of the run's first step, from which the sampled episodes come."""
_KEY = re.compile(rf"\b(?:{'|'.join(ROOT)})(?:\.[A-Za-z_]\w*)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Groups of the first step, rolled out and scored by the doctor."""

    scored: Sequence[ScoredGroup]
    recording: RecordingEngine
    generation_s: float
    reward_s: float

    @property
    def episodes(self) -> list[Episode]:
        """Episodes without an infrastructure failure."""
        return [e for group in self.scored for e in group.group.episodes if e.failure is None]


class _Ear(Screen):
    """Collects the builders' notes instead of printing them, and reports slow stages on stderr."""

    def __init__(self) -> None:
        super().__init__("quiet", Console(file=io.StringIO()))
        self.lines: list[str] = []
        self.stages: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text.removeprefix("note: "))

    def stage(self, title: str, total: int | None) -> None:
        if not self.stages:
            print("agentgrpo doctor: the start weights are made first, and kept for the run", file=sys.stderr)
        self.stages.append(title)
        print(f"agentgrpo doctor: {title}", file=sys.stderr, flush=True)


@dataclass
class Case:
    """config: the composed configuration. folder: holds all files written here; the run's own directory is not
    touched."""

    config: Mapping[str, Any]
    snapshot: str
    folder: Path
    heard: list[str] = field(default_factory=list)
    """Notes from the builders."""
    made_start: bool = False
    """True if the start weights were made here, not found."""
    broken: dict[str, str] = field(default_factory=dict)
    """Dotted key of a part that could not be built -> why."""
    _built: Run | None = None
    _sample: Sample | None = None

    @property
    def tried(self) -> dict[str, Any]:
        """The configuration with its run directory in `folder`. A cassette that would record is copied there too,
        because some requests of the doctor are made up and of no use to the run. Recorded responses are replayed."""
        config = copy.deepcopy(dict(self.config))
        config["run"]["dir"] = str(self.folder)
        tape = config["cassette"]
        if tape["mode"] == "fill" and tape["path"] is not None:
            given, own = Path(tape["path"]).expanduser(), self.folder / "cassette"
            for end in ("", "-wal"):  # the latest entries may be in the -wal file
                if Path(f"{given}{end}").is_file():
                    shutil.copyfile(f"{given}{end}", f"{own}{end}")
            tape["path"] = str(own)
        return config

    @cached_property
    def run(self) -> RunSettings:
        run: RunSettings = build_node("run", self.config["run"])
        return run

    @cached_property
    def rollout(self) -> RolloutSettings:
        rollout: RolloutSettings = build_node("rollout", self.config["rollout"])
        return rollout

    @cached_property
    def plan(self) -> Plan:
        """Raises ConfigError if the model's shape is unknown."""
        return estimate(self.config)

    def build(self, config: Mapping[str, Any]) -> None:
        """Build everything as a run does. Raises the errors that a run would raise."""
        ear = _Ear()
        try:
            inputs = load_inputs(settings_of(config), self.snapshot, ear, Alone())
            self._built = build_run(inputs, prepare_start(inputs))
        finally:
            self.heard, self.made_start = ear.lines, self.made_start or bool(ear.stages)

    @property
    def is_built(self) -> bool:
        return self._built is not None

    @property
    def built(self) -> Run:
        """Raises Skipped if the run could not be built."""
        if self._built is None:
            raise Skipped("needs: parts, which could not be built")
        return self._built

    @property
    def sample(self) -> Sample:
        """Raises Skipped if nothing was rolled out."""
        _ = self.built
        if self._sample is None:
            raise Skipped("needs: episodes, which could not be sampled")
        return self._sample

    @property
    def episodes(self) -> list[Episode]:
        """Episodes of the sample. Raises Skipped if all of them failed."""
        if not self.sample.episodes:
            raise Skipped("needs: episodes, and all of them failed")
        return self.sample.episodes

    def keep(self, sample: Sample) -> None:
        self._sample = sample

    async def close(self) -> None:
        if self._built is not None:
            await self._built.examiner(test=False, dev=False).close()


def told(error: BaseException) -> str:
    """An error in one line; for an unexpected exception also the file and line that raised it."""
    if isinstance(error, AgentGrpoError):
        return " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{line_of(error)}{where}"


def key_in(text: str) -> str:
    """The first setting that a message names, or ""."""
    found = _KEY.search(text)
    return found[0] if found else ""
