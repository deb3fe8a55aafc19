"""run.dry_run=true: what a run would take of memory, tokens and disk, from its configuration alone.

Nothing is loaded, downloaded or written: the model is a shape, and the data is counted only where it lies on this
machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from agentgrpo.build import ModelPath, build_node
from agentgrpo.dialogue import CHUNKS, chunks_of
from agentgrpo.errors import AgentGrpoError, ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.hardware import Hardware, Launch
from agentgrpo.recipes.loading import local_folder
from agentgrpo.recipes.plan import (
    ALWAYS,
    BOUND,
    EXACT,
    GIB,
    LARGE_SHARE,
    ROLLOUT,
    UPDATE,
    EngineFacts,
    MemoryPlan,
    StepPlan,
    Weights,
    table,
)
from agentgrpo.recipes.shape import config_of, refuse_other_shape, weightless
from agentgrpo.recipes.warm_start import WarmStart
from agentgrpo.settings import RolloutSettings, RunSettings
from agentgrpo.tasks.base import TaskDataset
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.freezing import freeze

PROCESSES = (1, 2, 4, 8, 16, 32, 64)


def dry_run(config: Mapping[str, Any], launch: Launch) -> list[str]:
    """The plan, as lines. Raises ConfigError where the model's shape cannot be known."""
    hardware: Hardware = build_node("hardware", config["hardware"])
    rollout: RolloutSettings = build_node("rollout", config["rollout"])
    run: RunSettings = build_node("run", config["run"])
    algorithm: Algorithm = build_node("algorithm", config["algorithm"])
    model, source = model_of(build_node("model", config["model"]), seed=run.seed)
    engine = _engine(config, model)
    plans = {
        n: MemoryPlan(model, hardware=hardware, algorithm=algorithm, rollout=rollout, engine=engine, processes=n)
        for n in sorted({*PROCESSES, launch.size})
    }
    memory, whose = _device_memory(hardware)
    chosen = launch.size
    if launch.size == 1 and memory is not None:
        chosen = next((n for n, plan in plans.items() if plan.fits(memory)), 1)
    step = _step(config, rollout, engine)
    weights = plans[chosen].weights
    return [
        "plan: nothing was loaded, downloaded or written",
        f"model ({source}): {weights.total:,} parameters, {weights.trained:,} of them trained; {hardware.dtype}",
        "",
        f"memory of one device, {_processes(chosen)}, {hardware.strategy}:",
        *_memory(plans[chosen]),
        *_verdict(plans, chosen, memory, whose),
        "",
        f"a step ({config['task']['name']}, {config['agent']['name']}):",
        *_work(step, weights, rollout, hardware, algorithm),
        f"{run.max_steps:,} steps: {step.episodes * run.max_steps:,} episodes",
        *_disk(plans[chosen], run),
    ]


def model_of(part: WarmStart | ModelPath, *, seed: int) -> tuple[PreTrainedModel, str]:
    """The model that would train, without weights, and where its shape is from."""
    config, source = _config(part)
    model = weightless(config)
    if part.lora.rank is not None:
        with torch.device("meta"):
            add_adapter(model, part.lora, base="", seed=seed)
    freeze(model, part.freeze)
    return model, source


def _config(part: WarmStart | ModelPath) -> tuple[PretrainedConfig, str]:
    if isinstance(part, WarmStart):
        facts = {
            "model_type": "qwen3",
            "vocab_size": part.vocab_size,
            "hidden_size": part.hidden_size,
            "num_hidden_layers": part.num_layers,
            "intermediate_size": part.intermediate_size,
            "num_attention_heads": part.num_heads,
            "num_key_value_heads": part.num_kv_heads,
            "head_dim": part.hidden_size // part.num_heads,
            "max_position_embeddings": part.max_positions,
            "tie_word_embeddings": True,
        }
        return config_of(facts), f"warm start, a vocabulary of {part.vocab_size} words at most"
    folder = local_folder(part.path)
    if (folder / "config.json").is_file():
        refuse_other_shape(folder, part.shape)
        return AutoConfig.from_pretrained(folder), str(folder)
    if part.shape is None:
        raise ConfigError(
            f"run.dry_run=true: {part.path} is no model folder, and model.shape says nothing of the model; give a "
            "folder with config.json, or a preset with a shape, such as model=qwen3_4b"
        )
    return config_of(part.shape), "model.shape"


def _engine(config: Mapping[str, Any], model: PreTrainedModel) -> EngineFacts:
    node, own = config["engine"], int(model.config.get_text_config().max_position_embeddings)
    limits = (node.get("max_context"), config["agent"].get("max_context"), own)
    contexts = [int(limit) for limit in limits if limit is not None]
    return EngineFacts(slots=int(node.get("slots", 1)), kv_budget=node.get("kv_budget"), max_context=min(contexts))


def _device_memory(hardware: Hardware) -> tuple[int | None, str]:
    """Bytes, and whose they are; None where nobody knows."""
    if hardware.memory_gib is not None:
        return int(hardware.memory_gib * GIB), "hardware.memory_gib"
    if hardware.device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine"
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name(0)
    return None, "unknown; give hardware.memory_gib"


def _memory(plan: MemoryPlan) -> list[str]:
    lines = sorted(plan.lines(), key=lambda line: -line.num_bytes)
    rows = [(line.name, _gib(line.num_bytes), line.when, line.basis, line.note) for line in lines]
    phase = max((ROLLOUT, UPDATE), key=plan.peak)
    largest = max((line for line in lines if line.when in (ALWAYS, phase)), key=lambda line: line.num_bytes)
    return [
        *table([("", "GiB", "when", "basis", ""), *rows]),
        f"  most at once: {_gib(plan.need)} GiB, in the {phase}; {largest.name} {largest.num_bytes / plan.need:.0%}",
    ]


def _verdict(plans: Mapping[int, MemoryPlan], chosen: int, memory: int | None, whose: str) -> list[str]:
    by_size = ", ".join(f"{n}: {_gib(plan.need)}" for n, plan in plans.items())
    if memory is None:
        return [f"  memory of the device: {whose}", f"  GiB by number of processes: {by_size}"]
    fits = "fits" if plans[chosen].fits(memory) else "DOES NOT FIT"
    return [
        f"  {fits}: {_gib(memory)} GiB ({whose}), of which {LARGE_SHARE:.0%} are counted on",
        f"  GiB by number of processes: {by_size}",
    ]


def _step(config: Mapping[str, Any], rollout: RolloutSettings, engine: EngineFacts) -> StepPlan:
    turns, basis, contexts = _turns(config)
    return StepPlan(
        episodes=rollout.tasks_per_step * rollout.group_size,
        turns=turns,
        turns_basis=basis,
        contexts=contexts,
        max_tokens=rollout.max_tokens,
        max_context=engine.max_context,
    )


def _turns(config: Mapping[str, Any]) -> tuple[float, str, float]:
    """(sampled turns of an episode, how that is known, in how many contexts)."""
    if "max_turns" in config["agent"]:
        return float(config["agent"]["max_turns"]), f"{BOUND}, agent.max_turns", 1.0
    try:
        dataset: TaskDataset = build_node("task", config["task"])
        chunks = [len(chunks_of(task)) for task in dataset.split("train") if CHUNKS in task.metadata]
    except (AgentGrpoError, OSError) as e:
        chunks, reason = [], f"; the data was not read: {e}"
    else:
        reason = ""
    if chunks:
        mean = fmean(chunks)
        return mean, f"chunks of {len(chunks):,} tasks, counted: {min(chunks)} to {max(chunks)}", mean
    most = config["task"].get("max_chunks")
    if most is None:
        return 1.0, f"a guess{reason}", 1.0
    return float(most), f"{BOUND}, task.max_chunks{reason}", float(most)


def _work(
    step: StepPlan, weights: Weights, rollout: RolloutSettings, hardware: Hardware, algorithm: Algorithm
) -> list[str]:
    flops = step.flops(weights, recomputed=hardware.activation_checkpointing, reference=algorithm.needs_reference)
    most = max(flops, key=lambda name: flops[name])
    total = sum(flops.values())
    shares = ", ".join(f"{name} {value:.3g}" for name, value in flops.items() if value)
    return [
        f"  episodes: {step.episodes:,} = {rollout.tasks_per_step} tasks x {rollout.group_size} attempts ({EXACT})",
        f"  turns of an episode: {step.turns:.3g} ({step.turns_basis})",
        f"  sampled tokens: {step.sampled_tokens:,} ({BOUND}, {step.max_tokens:,} a turn)",
        f"  tokens of contexts: {step.context_tokens:,} ({BOUND}, {step.max_context:,} a context)",
        f"  products with the weights, FLOP: {shares} ({BOUND}); {most} {flops[most] / total:.0%}",
    ]


def _disk(plan: MemoryPlan, run: RunSettings) -> list[str]:
    if not run.checkpoint_every:
        return ["no checkpoints (run.checkpoint_every=0)"]
    kept = run.keep_last + run.keep_best
    size = plan.checkpoint_bytes
    most = f"{kept} are kept and one is being written: {_gib((kept + 1) * size)} GiB in the run directory"
    return [f"a checkpoint: {_gib(size)} GiB of tensors ({EXACT}); {most}"]


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.2f}" if num_bytes >= GIB / 10 else f"{num_bytes / GIB:.4f}"
