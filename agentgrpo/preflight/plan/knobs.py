"""Settings that would help a run that exceeds a limit. Each candidate is changed and planned again, which shows how
much it saves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.config.build import resolve
from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.cache import bucketed
from agentgrpo.preflight.plan.estimate import PROCESSES, Plan, estimate
from agentgrpo.preflight.plan.limits import LONG_S, Overrun, overruns
from agentgrpo.run.first_look import SHORTER

LEAST = 0.01
"""A setting must save at least this share to be named."""
RANK = 16
SERVER = "http://127.0.0.1:8000"
USUAL = 8
"""Typical number of GPUs in a machine."""
LEAST_TOKENS, LEAST_CONTEXT = 64, 1024
"""Smallest suggested tokens of a turn and of an episode's context: below these most tasks cannot be solved."""
GPU: Mapping[str, Any] = {"device": "cuda", "memory_gib": 80.0, "peak_tflops": 312.0, "bandwidth_gib_s": 1899.0}
"""The values of the preset hardware=single_gpu: an A100."""
Settings = Mapping[str, Any]
"""Dotted key -> value; `--processes` is the flag, `engine` and `hardware` are presets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Settings, and the amount of the scarce resource that the run would take with them."""

    of: str
    """Kind of limit, as in limits.overruns: memory | disk | time | money | calls."""
    settings: Settings
    takes: float
    saves: float
    fits: bool

    @property
    def text(self) -> str:
        return " ".join(f"{key}{' ' if key.startswith('--') else '='}{_written(v)}" for key, v in self.settings.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "settings": dict(self.settings),
            "takes": self.takes,
            "saves": self.saves,
            "fits": self.fits,
        }


def helpful(config: Mapping[str, Any], plan: Plan) -> list[Knob]:
    """For every exceeded limit: settings that help, most helpful first. If none suffices alone, a combination that does
    follows. Empty if the plan fits."""
    return [knob for short in overruns(plan) for knob in _for(config, plan, short)]


def _for(config: Mapping[str, Any], plan: Plan, short: Overrun) -> list[Knob]:
    turned = [_turn(config, plan, short, settings) for settings in CANDIDATES[short.kind](plan)]
    helping = [k for k in turned if k is not None and k.saves > LEAST * short.takes]
    found = sorted(_fewest(helping), key=lambda k: -k.saves)
    if any(knob.fits for knob in found):
        return found
    together: dict[str, Any] = {}
    for knob in found:
        together |= knob.settings
        both = _turn(config, plan, short, together) if len(together) > 1 else None
        if both is not None and both.fits:
            return [*found, both]
    return found


def _fewest(knobs: Sequence[Knob]) -> list[Knob]:
    """Keep one of the knobs that change only the number of processes: the smallest that fits, else USUAL."""
    counted = [k for k in knobs if "--processes" in k.settings]
    chosen = next((k for k in counted if k.fits), None)
    chosen = chosen or next((k for k in counted if k.settings["--processes"] >= USUAL), None)
    return [k for k in knobs if k is chosen or "--processes" not in k.settings]


def _turn(config: Mapping[str, Any], plan: Plan, short: Overrun, settings: Settings) -> Knob | None:
    """Plan again with these settings and compare with the same limit; None if the settings are invalid."""
    changed = copy.deepcopy(dict(config))
    processes = plan.memory.processes
    for key, value in settings.items():
        if key == "--processes":
            processes = value
        elif key == "hardware":
            changed[key] = {**config[key], **GPU}
        elif key == "engine":
            changed[key] = {"name": value, "urls": [SERVER], "max_context": config[key].get("max_context")}
        else:
            *path, last = key.split(".")
            node = changed
            for name in path:
                node = node[name]
            node[last] = value
    same_model = None if any(key.startswith("model.") for key in settings) else (plan.model, plan.source)
    try:
        again = estimate(
            changed, processes=processes, model=same_model, rate=None if "hardware" in settings else plan.rate
        )
    except ConfigError:
        return None
    takes = short.measure(again)
    return Knob(
        of=short.kind, settings=dict(settings), takes=takes, saves=short.takes - takes, fits=takes <= short.limit
    )


def _memory(plan: Plan) -> Iterator[Settings]:
    h, e, config = plan.hardware, plan.engine, plan.config
    if not h.activation_checkpointing:
        yield {"hardware.activation_checkpointing": True}
    if h.dtype == "float32" and (plan.algorithm.correction != "none" or config["demonstrations"]["name"] != "none"):
        yield {"hardware.dtype": "bfloat16"}
        if h.mixed_precision == "no":
            yield {"hardware.mixed_precision": "bf16"}
    if config["model"]["lora"]["rank"] is None and not config["model"]["freeze"]:
        yield {"model.lora.rank": RANK}
    if (h.tokens_per_micro_batch or 0) > e.max_context:
        yield {"hardware.tokens_per_micro_batch": e.max_context}
    if e.max_context > 2048:
        key = "environment" if config["environment"].get("max_context") else "engine"
        yield {f"{key}.max_context": max(2048, e.max_context // 2)}
    if h.head_chunk_tokens > 128:
        yield {"hardware.head_chunk_tokens": 128}
    if plan.algorithm.max_staleness:
        yield {"algorithm.max_staleness": 0}
    if not e.servers:
        yield from _keys_and_values(plan)
    for n in PROCESSES:
        if n > plan.memory.processes:
            yield {"--processes": n} | ({} if h.strategy == "fsdp" else {"hardware.strategy": "fsdp"})


def _keys_and_values(plan: Plan) -> Iterator[Settings]:
    """The largest KV budget that fits, or the smallest possible one; and the vLLM engine if it is available."""
    least = bucketed(plan.engine.max_context)
    room = plan.memory.room(plan.memory_bytes or 0) // plan.memory.kv_token_bytes // 1024 * 1024
    yield {"engine.kv_budget": max(least, room)}
    try:
        resolve("engine", "vllm", "engine")
    except ConfigError:
        return
    yield {"engine": "vllm"}


def _disk(plan: Plan) -> Iterator[Settings]:
    yield {"run.keep_last": 1}
    yield {"run.keep_best": False}
    yield {"run.keep_last": 1, "run.keep_best": False}
    if plan.config["model"]["lora"]["rank"] is None and not plan.config["model"]["freeze"]:
        yield {"model.lora.rank": RANK}


def _time(plan: Plan) -> Iterator[Settings]:
    """Settings for fewer or shorter steps: a half or a quarter of each. On a CPU also the settings of a short first
    run, and a GPU."""
    r, h, config, node = plan.rollout, plan.hardware, plan.config, plan.config["model"]
    yield {"run.max_steps": max(SHORTER["run.max_steps"], int(LONG_S / sum(plan.seconds.values())))}
    if r.tasks_per_step > 1:
        yield {"rollout.tasks_per_step": r.tasks_per_step // 2}
    if r.group_size > 3:
        yield {"rollout.group_size": r.group_size // 2}
    if r.max_tokens > LEAST_TOKENS:
        yield {"rollout.max_tokens": max(LEAST_TOKENS, r.max_tokens // 4)}
    if (config["environment"].get("max_turns") or 0) > SHORTER["environment.max_turns"]:
        yield {"environment.max_turns": SHORTER["environment.max_turns"]}
    if plan.engine.max_context > LEAST_CONTEXT:
        key = "environment" if config["environment"].get("max_context") else "engine"
        yield {f"{key}.max_context": max(LEAST_CONTEXT, plan.engine.max_context // 4)}
    if plan.algorithm.needs_reference:
        yield {"algorithm.kl_coef": 0.0}
    if node["lora"]["rank"] is None and not node["freeze"]:
        yield {"model.lora.rank": RANK}
    if h.device == "cpu":
        groups = {**config, "run.eval": config["run"]["eval"]}
        parts = {key: key.rpartition(".") for key in SHORTER}
        shorter = {key: v for key, v in SHORTER.items() if (groups[parts[key][0]].get(parts[key][2]) or 0) > v}
        if len(shorter) > 1:
            yield shorter
        yield {"hardware": "single_gpu"}


def _spending(plan: Plan) -> Iterator[Settings]:
    """Settings for fewer calls: a half of each, and as many steps as the limit allows."""
    r, run, environment = plan.rollout, plan.run, plan.config["environment"]
    for short in overruns(plan):
        if short.each_step and short.kind != "time":
            fixed = short.takes - run.max_steps * short.each_step
            yield {"run.max_steps": max(1, int((short.limit - fixed) / short.each_step))}
    if r.tasks_per_step > 1:
        yield {"rollout.tasks_per_step": r.tasks_per_step // 2}
    if r.group_size > 3:
        yield {"rollout.group_size": r.group_size // 2}
    if "max_search_limit" in environment:
        limit = environment["max_turns"] if environment["max_search_limit"] is None else environment["max_search_limit"]
        yield {
            "environment.max_search_limit": max(1, limit // 2),
            "environment.max_search_limit_cap": max(1, limit // 2),
        }
    if run.final_eval:
        yield {"run.final_eval": False}
    if run.eval_every:
        yield {"run.eval_every": 0}


CANDIDATES: Mapping[str, Callable[[Plan], Iterator[Settings]]] = {
    "memory": _memory,
    "disk": _disk,
    "time": _time,
    "money": _spending,
    "calls": _spending,
}


def _written(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
