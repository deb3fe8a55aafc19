"""The parts of the configuration that a plan needs: the model without weights, the engine's limits, a step's work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from agentgrpo.config.build import ModelPath, build_node, takes
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import AgentGrpoError, ConfigError, MalformedRows
from agentgrpo.engines.cache import CacheShape, budget_within, bytes_of
from agentgrpo.engines.limits import refuse_context, refuse_other_attention
from agentgrpo.models.loading import config_of, local_folder, refuse_other_shape, weightless
from agentgrpo.preflight.plan.device import BOUND, GIB, EngineFacts
from agentgrpo.preflight.plan.workload import StepWork
from agentgrpo.run.warm_start import WarmStart
from agentgrpo.tasks.base import MixedDataset, TaskDataset
from agentgrpo.tasks.dialogue import CHUNKS, QUESTIONS, chunks_of
from agentgrpo.training.adapters import add_adapter, freeze
from agentgrpo.training.policy import DTYPES
from agentgrpo.training.remote_code import plain_config, trusted_config


def model_of(part: WarmStart | ModelPath, *, seed: int) -> tuple[PreTrainedModel, str]:
    """The model that would train, without weights, and the source of its shape."""
    config, source = _config(part)
    trusted = isinstance(part, ModelPath) and part.trust_remote_code
    model = weightless(config, local_folder(part.path, part.revision) if trusted else None)  # type: ignore[union-attr]
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
    folder = local_folder(part.path, part.revision)
    if (folder / "config.json").is_file():
        refuse_other_shape(folder, part.shape, trust_remote_code=part.trust_remote_code)
        return (trusted_config if part.trust_remote_code else plain_config)(folder), str(folder)
    if part.shape is None:
        raise ConfigError(
            f"plan: {part.path} is no model folder on this machine, and model.shape says nothing of the model; give a "
            "folder with config.json, or a preset with a shape, such as model=qwen3_4b or model=smollm2_135m. A GGUF "
            "file or package becomes a folder in the cache when agentgrpo train first reads it"
        )
    return config_of(part.shape), "model.shape"


def engine_of(config: Mapping[str, Any], model: PreTrainedModel) -> EngineFacts:
    node, own = config["engine"], int(model.config.get_text_config().max_position_embeddings)
    of_node = None if "model" in node else node.get("max_context")  # an endpoint's model is another model
    limits = (of_node, config["environment"].get("max_context"), own)
    contexts = [int(limit) for limit in limits if limit is not None]
    refuse_context(int(of_node or own), own, None)  # the engine refuses this too, so no run would start
    refuse_other_attention(model, int(of_node or own))
    urls = node.get("urls") if takes("engine", node, "urls") else None
    servers = len(urls) if isinstance(urls, list | tuple) else int(urls is not None)
    rollout: RolloutSettings = build_node("rollout", config["rollout"])
    shape = CacheShape.of(model)._replace(dtype=DTYPES[config["hardware"]["dtype"]])
    slots = int(node.get("slots") or rollout.max_concurrent_episodes)
    budget, memory_bytes = node.get("kv_budget"), device_memory(build_node("hardware", config["hardware"]))[0]
    if budget is None and memory_bytes is not None and takes("engine", node, "kv_budget"):
        budget = budget_within(
            memory_bytes,
            weight_bytes=sum(p.numel() for p in model.parameters()) * shape.dtype.itemsize,
            token_bytes=shape.token_bytes,
            longest=int(of_node or own),
        )
    return EngineFacts(slots=slots, kv_budget=budget, max_context=min(contexts), servers=servers)


def device_memory(hardware: Hardware) -> tuple[int | None, str]:
    """(device memory in bytes, its source); bytes are None if unknown."""
    if hardware.memory_gib is not None:
        return int(hardware.memory_gib * GIB), "hardware.memory_gib"
    if hardware.device == "cpu":
        return bytes_of(torch.device("cpu")), "this machine"
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name(0)
    return None, "unknown; give hardware.memory_gib"


def free_disk(folder: Path) -> int | None:
    """Free bytes on the disk where `folder` would be made; None if unknown."""
    there = next((f for f in (folder, *folder.parents) if f.is_dir()), None)
    found = None if there is None else os.statvfs(there)
    return None if found is None else found.f_bavail * found.f_frsize


def step_of(config: Mapping[str, Any], engine: EngineFacts) -> tuple[StepWork, float]:
    """(work of one step, mean number of questions asked about an episode's answer or memory)."""
    rollout: RolloutSettings = build_node("rollout", config["rollout"])
    chunks, questions, reason = _counted(config)
    turns, basis, contexts = _turns(config, chunks, reason)
    step = StepWork(
        episodes=rollout.tasks_per_step * rollout.group_size,
        turns=turns,
        turns_basis=basis,
        contexts=contexts,
        max_tokens=rollout.max_tokens,
        max_context=engine.max_context,
        rounds=1 + rollout.refill_rounds,
    )
    return step, fmean(questions) if questions else 1.0


def _counted(config: Mapping[str, Any]) -> tuple[list[int], list[int], str]:
    """(chunks per task, questions per task, the reason why the data was not read). Only training tasks that are read in
    chunks count."""
    if "max_turns" in config["environment"]:
        return [], [], ""
    try:
        dataset: TaskDataset = build_node("task", config["task"])
        tasks = [task for task in dataset.split("train") if CHUNKS in task.metadata]
    except (AgentGrpoError, OSError) as e:
        return [], [], f"; the data was not read: {e}"
    return [len(chunks_of(t)) for t in tasks], [len(t.metadata.get(QUESTIONS, ())) for t in tasks], ""


def data_notes(config: Mapping[str, Any]) -> list[str]:
    """Notes about the user's own questions, if the data is on this machine. Raises MalformedRows."""
    node = config["task"]
    if not any(takes("task", node, key) for key in ("questions", "sources")):
        return []
    try:
        dataset: TaskDataset = build_node("task", node)
    except MalformedRows:
        raise
    except (AgentGrpoError, OSError) as e:  # the data may be on the training machine
        return [f"the data was not read: {e}"]
    return list(dataset.notes) if isinstance(dataset, MixedDataset) else []


def _turns(config: Mapping[str, Any], chunks: list[int], reason: str) -> tuple[float, str, float]:
    """(sampled turns of an episode, how the figure is known, number of contexts)."""
    environment = config["environment"]
    if "max_turns" in environment:
        turns, said = float(environment["max_turns"]), f"{BOUND}, environment.max_turns"
        if environment.get("force_answer_on_deadend"):
            turns, said = turns + 1, f"{said} and one for a forced answer"
        fresh = (environment.get("context") or {}).get("name", "none")
        if fresh == "none":
            return turns, said, 1.0
        said = f"{said}; environment.context may open a context for each"
        return (turns, said, turns) if fresh == "drop" else (2 * turns - 1, f"{said}, and ask for a summary", turns)
    if chunks:
        mean = fmean(chunks)
        return mean, f"chunks of {len(chunks):,} tasks, counted: {min(chunks)} to {max(chunks)}", mean
    most = config["task"].get("max_chunks")
    if most is None:
        return 1.0, f"a guess{reason}", 1.0
    return float(most), f"{BOUND}, task.max_chunks{reason}", float(most)
