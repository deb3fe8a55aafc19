"""Settings that conflict with each other, and missing packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes
from agentgrpo.training.learning_rate import too_low, usual_rate

HIGH_LR, LARGE_LR = 1e-2, 1e-4
"""HIGH_LR is too high for any model; LARGE_LR is high for full training of LARGE parameters or more."""
LARGE = 100_000_000
EXTRAS: Mapping[str, tuple[str, str]] = {
    "environment.openenv": ("websockets", "openenv"),
    "environment.program": ("uvicorn", "serve"),
    "environment.verifiers": ("uvicorn", "serve"),
    "retriever.qdrant": ("qdrant_client", "qdrant"),
    "retriever.pgvector": ("psycopg", "postgres"),
    "tools.mcp": ("mcp", "mcp"),
    "model.lora": ("peft", "lora"),
}
"""Chosen part -> (the module that it imports, the extra that installs it)."""


def look_at_schedule(case: Case, found: CheckNotes) -> None:
    """Steps, learning rate, checkpoints and evaluations."""
    optimizer, run, rollout = case.config["optimizer"], case.run, case.rollout
    lr, warmup = optimizer.get("lr"), optimizer.get("warmup_steps", 0)
    found.facts |= {"lr": lr, "warmup steps": warmup, "steps": run.max_steps}
    if warmup >= run.max_steps:
        found.problem(
            f"optimizer.warmup_steps={warmup} of run.max_steps={run.max_steps}",
            why="the learning rate never comes to what is set",
            key="optimizer.warmup_steps",
        )
    elif warmup > run.max_steps / 2:
        found.note(
            f"optimizer.warmup_steps={warmup} of run.max_steps={run.max_steps}",
            why="most of the run is spent below the learning rate that is set",
            key="optimizer.warmup_steps",
        )
    if optimizer.get("name") == "adamw":
        _learning_rate(case, found)
    if rollout.temperature == 0:
        found.problem(
            "rollout.temperature=0: all episodes of a group are the same",
            why="there is nothing to compare, and no gradient",
            key="rollout.temperature",
        )
    if not run.checkpoint_every or run.checkpoint_every > run.max_steps:
        found.note(
            f"run.checkpoint_every={run.checkpoint_every} of run.max_steps={run.max_steps}: no checkpoint before the "
            "end",
            why="a run that is stopped has to begin again",
            key="run.checkpoint_every",
        )


def _learning_rate(case: Case, found: CheckNotes) -> None:
    weights, is_adapter = case.plan.memory.weights, case.config["model"]["lora"]["rank"] is not None
    optimizer = case.config["optimizer"]
    given = optimizer["lr"]
    lr = usual_rate(weights.total, is_adapter=is_adapter) if given is None else float(given)
    found.facts["lr"] = lr
    low = too_low(optimizer, weights.total, case.run.max_steps, is_adapter=is_adapter)
    if low and case.config["demonstrations"]["name"] == "none":
        found.note(low, why="the run would cost what it costs, and end where it began", key=f"{_LR}=null")
    if lr > HIGH_LR:
        found.problem(f"optimizer.lr={lr:g}", why="no policy gradient has been seen to hold at such a rate", key=_LR)
        return
    if given is not None and weights.trained >= LARGE and lr > LARGE_LR:
        found.note(
            f"optimizer.lr={lr:g} for {weights.trained:,} trained weights",
            why="whole models of this size are mostly trained at 1e-6 to 1e-5; the policy may fall apart",
            key=_LR,
        )


_LR = "optimizer.lr"


def look_at_extras(case: Case, found: CheckNotes) -> None:
    """Packages that the chosen parts need beyond the required ones."""
    needed = {}
    for chosen, (module, extra) in EXTRAS.items():
        if chosen in set(_chosen(case.config)):
            needed[module] = find_spec(module) is not None
            if not needed[module]:
                found.problem(
                    f"{chosen} needs the package {module}, which is not installed: pip install 'agentgrpo[{extra}]'",
                    why="the run would end as soon as it is needed",
                    key=chosen,
                )
    for tracker in case.run.log_with:
        needed[tracker] = find_spec(tracker) is not None
        if not needed[tracker]:
            found.note(
                f"run.log_with names {tracker}, which is not installed",
                why="its board would stay empty; metrics.jsonl is written all the same",
                key="run.log_with",
            )
    found.facts["installed"] = needed


def _chosen(config: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{group}.{config[group].get('name')}" for group in ("environment", "retriever"))
    yield from (f"tools.{node.get('name', key)}" for key, node in config["tools"].items())
    if (config["model"].get("lora") or {}).get("rank") is not None:
        yield "model.lora"
