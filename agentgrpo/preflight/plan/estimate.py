"""The plan of a run: all its figures, computed from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from agentgrpo.config.build import build_node
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.preflight.plan.calls import Episodes, PlannedCalls, calls_of, episodes_of
from agentgrpo.preflight.plan.device import ROLLOUT, UPDATE, EngineFacts, MemoryPlan
from agentgrpo.preflight.plan.money import is_counted, price_of
from agentgrpo.preflight.plan.parts import device_memory, engine_of, free_disk, model_of, step_of
from agentgrpo.preflight.plan.workload import Rate, StepWork, rate_of, seconds

PROCESSES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCost:
    """Maximum calls of one kind: in a step, and in the run with its evaluations."""

    calls: PlannedCalls
    of_step: float
    of_run: float
    price: tuple[float, str] | None
    is_counted: bool
    """True if the budget counts these calls."""

    def money(self, count: float) -> float:
        return count * self.price[0] if self.price else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """memory_bytes: memory of a device, or None if unknown; whose: its source. rate: a device's speed, or None if
    unknown.
    """

    config: Mapping[str, Any]
    model: PreTrainedModel
    source: str
    memory: MemoryPlan
    memory_bytes: int | None
    whose: str
    by_processes: Mapping[int, int]
    """Number of processes -> bytes needed on each device."""
    engine: EngineFacts
    step: StepWork
    rate: Rate | None
    hardware: Hardware
    rollout: RolloutSettings
    algorithm: Algorithm
    run: RunSettings
    episodes: Episodes
    costs: tuple[PlannedCost, ...]

    @property
    def fits(self) -> bool:
        return self.memory_bytes is None or self.memory.fits(self.memory_bytes)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of a step by part; empty if the device's speed is unknown."""
        if self.rate is None:
            return {}
        return seconds(
            self.step,
            self.memory,
            self.rate,
            recomputed=self.memory.recomputes,
            reference=self.algorithm.needs_reference,
            servers=self.engine.servers,
        )

    @property
    def run_seconds(self) -> float:
        """Seconds of all steps; 0 if the device's speed is unknown."""
        return sum(self.seconds.values()) * self.run.max_steps

    @property
    def disk_bytes(self) -> int:
        """Maximum bytes of tensors in the run directory: the kept checkpoints and one being written. With sampling
        servers also their weights: two versions and one being written."""
        kept = self.run.keep_last + self.run.keep_best + 1 if self.run.checkpoint_every else 0
        return kept * self.memory.checkpoint_bytes + (3 * self.sync_bytes if self.engine.servers else 0)

    @property
    def sync_bytes(self) -> int:
        """Bytes that a server reads for one version of the weights."""
        return self.memory.sync_bytes

    @property
    def free_bytes(self) -> int | None:
        """Free bytes on the disk where the run directory would be."""
        folder = "runs" if self.run.dir in (".", "not chosen yet") else self.run.dir
        return free_disk(Path(folder).absolute())

    @property
    def money(self) -> tuple[float, float]:
        """Maximum cost of a step and of the run; 0 without prices. Each search is a vdb or a web call, so only the
        dearer kind counts."""
        others = [c for c in self.costs if c.calls.kind not in ("vdb", "web")]
        searches = [c for c in self.costs if c.calls.kind in ("vdb", "web")]
        dearest = sorted(searches, key=lambda c: c.money(c.of_run))[-1:]
        return sum(c.money(c.of_step) for c in others + dearest), sum(c.money(c.of_run) for c in others + dearest)

    def to_json(self) -> dict[str, Any]:
        weights = self.memory.weights
        return {
            "model": {"source": self.source, "parameters": weights.total, "trained": weights.trained},
            "memory": {
                "processes": self.memory.processes,
                "strategy": self.hardware.strategy,
                "device_bytes": self.memory_bytes,
                "need_bytes": self.memory.need,
                "fits": self.fits if self.memory_bytes is not None else None,
                "rollout_bytes": self.memory.peak(ROLLOUT),
                "update_bytes": self.memory.peak(UPDATE),
                "lines": [
                    {"name": x.name, "bytes": x.num_bytes, "when": x.when, "basis": x.basis, "note": x.note}
                    for x in self.memory.lines()
                ],
                "by_processes": {str(n): need for n, need in self.by_processes.items()},
            },
            "step": {
                "episodes": self.episodes.of_step,
                "turns": self.step.turns,
                "sampled_tokens": self.step.rounds * self.step.sampled_tokens,
                "context_tokens": self.step.rounds * self.step.context_tokens,
                "seconds": dict(self.seconds),
                "rate": None if self.rate is None else self.rate.basis,
            },
            "run": {
                "steps": self.run.max_steps,
                "episodes": self.episodes.trained,
                "evaluation_episodes": self.episodes.evaluated,
                "disk_bytes": self.disk_bytes,
                "free_bytes": self.free_bytes,
                "checkpoint_bytes": self.memory.checkpoint_bytes,
                "money": self.money[1],
            },
            "calls": [
                {
                    "kind": c.calls.kind,
                    "where": c.calls.where,
                    "step": c.of_step,
                    "run": c.of_run,
                    "basis": c.calls.basis,
                    "money": c.money(c.of_run) if c.price else None,
                }
                for c in self.costs
            ],
        }


def estimate(
    config: Mapping[str, Any],
    *,
    processes: int | None = None,
    model: tuple[PreTrainedModel, str] | None = None,
    rate: Rate | None = None,
) -> Plan:
    """Estimate the plan.

    processes: None = the fewest that fit with fsdp, else 1. model and rate: reused from an earlier plan with the same
    model and device. Raises ConfigError if the model's shape is unknown.
    """
    hardware: Hardware = build_node("hardware", config["hardware"])
    rollout: RolloutSettings = build_node("rollout", config["rollout"])
    run: RunSettings = build_node("run", config["run"])
    algorithm: Algorithm = build_node("algorithm", config["algorithm"])
    made, source = model or model_of(build_node("model", config["model"]), seed=run.seed)
    engine = engine_of(config, made)
    counts = sorted({*PROCESSES, *([processes] if processes else [])})
    plans = {
        n: MemoryPlan(made, hardware=hardware, algorithm=algorithm, rollout=rollout, engine=engine, processes=n)
        for n in counts
    }
    memory_bytes, whose = device_memory(hardware)
    chosen = processes or 1
    if processes is None and memory_bytes is not None and hardware.strategy == "fsdp":
        chosen = next((n for n, plan in plans.items() if plan.fits(memory_bytes)), 1)
    step, questions = step_of(config, engine)
    text = made.config.get_text_config()
    rate = rate or rate_of(hardware, hidden=text.hidden_size, intermediate=text.intermediate_size)
    episodes = episodes_of(run, rollout)
    return Plan(
        config=config,
        model=made,
        source=source,
        memory=plans[chosen],
        memory_bytes=memory_bytes,
        whose=whose,
        by_processes={n: plan.need for n, plan in plans.items()},
        engine=engine,
        step=step,
        rate=rate,
        hardware=hardware,
        rollout=rollout,
        algorithm=algorithm,
        run=run,
        episodes=episodes,
        costs=tuple(_cost(c, episodes, config) for c in calls_of(config, turns=step.turns, questions=questions)),
    )


def _cost(calls: PlannedCalls, episodes: Episodes, config: Mapping[str, Any]) -> PlannedCost:
    of_run = episodes.trained * calls.per_episode + episodes.evaluated * calls.per_evaluation
    return PlannedCost(
        calls=calls,
        of_step=episodes.of_step * calls.per_episode,
        of_run=of_run,
        price=price_of(calls, config),
        is_counted=is_counted(calls, config),
    )
