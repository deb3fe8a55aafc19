"""The parts for replaying episodes: built from the run's own configuration, on weights that it kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentgrpo.config.build import PartNode
from agentgrpo.config.suite import members_of
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Passage
from agentgrpo.engines.base import SamplingParams
from agentgrpo.models.loading import Start
from agentgrpo.records.run_dir import RunDir, TrajectoryFile
from agentgrpo.records.screen import Bar, Screen
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import Divergence
from agentgrpo.reports.replay.forced import Forced
from agentgrpo.reports.replay.live import Live
from agentgrpo.reports.replay.reciting import Reciting
from agentgrpo.reports.replay.weights import RecordedWeights
from agentgrpo.run.build import VERSIONS, Run, build_run, load_inputs, prepare_start
from agentgrpo.run.equipment import Equipment
from agentgrpo.run.parts import with_weights
from agentgrpo.run.session import probe_services
from agentgrpo.run.settings import settings_of
from agentgrpo.services.secret import nothing_is_sent
from agentgrpo.training.canary import TOLERANCE, have_sample, is_pooled
from agentgrpo.training.checkpoint import STATE, read_state
from agentgrpo.training.process_group import Alone

_NOTHING = {"vdb": [Passage(id="none", text="nothing")], "web": [Passage(id="none", text="nothing")]}
"""Corpora for retrievers that are never queried."""
_UNUSED: Mapping[str, Any] = {
    "tools": {},
    "retriever": {"name": "embedded"},
    "cassette": {"mode": "live"},
    "judge": {"name": "judger", "judger": {"name": "ground_truth"}},
    "reward": {"name": "weighted", "terms": {"correctness": {"weight": 1.0}}},
}
"""Replacements for parts that record mode never uses, and for settings that would count their calls."""


def _refuse_driven(environment: Mapping[str, Any]) -> None:
    if PartNode("environment", environment).says("is_driven"):
        raise ConfigError(
            f"environment={environment['name']}: an external program makes the requests, so a replay needs "
            "that program; run it again with --tools live"
        )


def _as_recorded(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment without its tests of episodes."""
    return {"environment": {key: node for key, node in environment.items() if key != "tests"}}


class Replayed:
    """A single replay. `notes`: conditions that its result depends on, a line each."""

    def __init__(
        self,
        config: Mapping[str, Any],
        snapshot: str,
        run: RunDir,
        weights: RecordedWeights,
        screen: Screen,
        scratch: Path,
        *,
        tools: str,
    ) -> None:
        """scratch: replaces the run's directory for all files written."""
        self._weights, self._tools = weights, tools
        self.notes: list[str] = []
        config = {**config, "run": {**config["run"], "dir": str(scratch), "profile": False}}
        with ExitStack() as building:
            if tools == "record":
                for alone in members_of(config).values() or [config]:
                    _refuse_driven(alone["environment"])
                config |= _UNUSED
                config |= _as_recorded(config["environment"])
                unused = {*_UNUSED, "prices"}
                config["suite"] = {
                    name: {k: v for k, v in node.items() if k not in unused}
                    | (_as_recorded(node["environment"]) if "environment" in node else {})
                    for name, node in config["suite"].items()
                }
                config["run"]["eval"] = {**config["run"]["eval"], "prices": {}}
                building.enter_context(nothing_is_sent())
            elif config["cassette"]["mode"] == "fill":
                config["cassette"] = {**config["cassette"], "mode": "strict"}
                self.notes.append("services answer from the cassette; cassette.mode=live asks them again")
            # record mode only samples again: it queries no service and starts no part
            equip = (lambda settings, *_: Equipment(settings.tree, _NOTHING)) if tools == "record" else None
            inputs = load_inputs(settings_of(config), snapshot, screen, Alone(), equip=equip)
            known = weights.start or weights.folder
            start = prepare_start(inputs) if known is None else Start(known)
            self._built = build_run(inputs, start, weights=weights.folder)
        self._tolerance = self._tolerance_of(run)
        self.notes += [*_other_versions(run), *(_other_data(run, self._built) if tools == "live" else ())]

    def _tolerance_of(self, run: RunDir) -> float | None:
        """Tolerance for log-probs: 0.0 = bit for bit; None = the engine promises neither the same tokens nor the same
        log-probs."""
        if is_pooled(self._built.engine):
            self.notes.append(f"the engine promises no bits: log-probs of recorded tokens, to {TOLERANCE} nats")
            return None
        if run.environment.get("determinism", "exact") != "exact" or not self._is_deterministic:
            self.notes.append(f"the engine promises no bits of log-probs here: they may be {TOLERANCE} nats off")
            return TOLERANCE
        return 0.0

    @property
    def _is_deterministic(self) -> bool:
        return bool(self._built.settings.engine.tree.get("deterministic", True))

    async def replay(
        self, file: TrajectoryFile, records: Sequence[TrajectoryRecord], bar: Bar
    ) -> list[Divergence | None]:
        """The first divergence of each episode, or None. Raises EngineError, ConfigError."""
        built, weights = self._built, self._weights
        examiner = built.examiner(test=False, dev=False)
        with ExitStack() as held:
            if (sampler := weights.sampler()) is not None:
                held.enter_context(with_weights(built.policy, sampler))
            try:
                if self._tools == "live":
                    await probe_services(examiner, built.world)
                await have_sample(built.engine, built.policy, built.canary_ids, weights.version)
                return await self._replay(file, records, bar)
            finally:
                await examiner.close()

    async def _replay(
        self, file: TrajectoryFile, records: Sequence[TrajectoryRecord], bar: Bar
    ) -> list[Divergence | None]:
        built, tolerance = self._built, self._tolerance
        stream, sampling = self._sampling_of(file)
        given: dict[str, Any] = {"stream": stream, "sampling": sampling, "rollout": built.rollout, "bar": bar}
        given["decode"] = built.renderer.decode
        if self._tools == "record":
            return await Forced(built.engine, built.runner, tolerance=tolerance, **given).replay(records)
        runner = built.runner
        if tolerance is None:
            runner = replace(runner, engine=Reciting(records, built.engine))
            self.notes.append("the policy's turns are the recorded ones; --tools record looks at its log-probs")
        self.notes.append("the reward was computed anew, with the judge asked again")
        tasks = built.dataset.split("test" if file.step is None else "train")
        live = Live(runner, built.reward, tasks, tolerance=tolerance or 0.0, **given)
        return await live.replay(records)

    def _sampling_of(self, file: TrajectoryFile) -> tuple[str, SamplingParams]:
        """(stream, sampling parameters) of the file's episodes, as in run.train and run.examine."""
        sampling = self._built.sampling
        if file.step is not None:
            return f"train/{file.step}", sampling
        temperature = 0.0 if file.mode == "greedy" else self._built.run.eval.temperature
        return f"eval/test/{file.mode}", replace(sampling, temperature=temperature)


def _other_data(run: RunDir, built: Run) -> list[str]:
    """Notes for data that changed since the run's checkpoints: tasks, corpora, tool descriptions."""
    saved = next((path for path in reversed(run.checkpoints().values()) if (path / STATE).is_file()), None)
    then = {} if saved is None else read_state(saved)["state"]["fingerprints"]
    now = built.fixed_state({})["fingerprints"]
    return [f"the {name} changed since the run" for name in sorted(then) if then[name] != now.get(name)]


def _other_versions(run: RunDir) -> list[str]:
    """Notes for packages whose versions changed, which may change the last bits."""
    before: Mapping[str, str] = run.environment.get("versions", {})
    return [
        f"{name} was {before[name]}, is now {version(name)}: the last bits may differ"
        for name in VERSIONS
        if name in before and before[name] != version(name)
    ]
