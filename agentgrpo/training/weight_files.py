"""The trained weights as files, for engines that sample in other processes."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentgrpo.core.durable import MANIFEST, atomic_directory
from agentgrpo.training.adapters import adapter_tensors, has_adapter
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import ProcessGroup, once
from agentgrpo.training.sharding import gathered

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class PolicyFiles:
    """Implements WeightFiles for `policy`, on every process of `world`."""

    def __init__(self, policy: Policy, world: ProcessGroup) -> None:
        self._policy, self._world = policy, world
        self.is_adapter, self.device = has_adapter(policy.model), policy.model.device

    def write(self, folder: Path) -> str:
        """Write the weights. A collective if the policy is sharded. Raises StorageError on every process."""
        model = self._policy.model
        trained = adapter_tensors(model) if self.is_adapter else model.state_dict()
        weights = gathered(trained, keep=self._world.rank == 0)
        return once(self._world, lambda: self._written(folder, weights))

    def _written(self, folder: Path, weights: dict[str, Tensor]) -> str:
        with atomic_directory(folder) as directory:
            self._policy.save(directory, dict(weights))  # transformers empties the dict
            if not self.is_adapter:
                self._untie(directory, weights)
        return sha256((folder / MANIFEST).read_bytes()).hexdigest()

    def _untie(self, directory: Path, weights: dict[str, Tensor]) -> None:
        """Write tied output embeddings as a separate tensor: a server that packs them for its kernels has packed a
        copy, which is updated only if the files contain the tensor."""
        model = self._policy.model
        name = next(f"{n}.weight" for n, m in model.named_modules() if m is model.get_output_embeddings())
        index = directory / INDEX
        if index.is_file():
            listed = json.loads(index.read_bytes())
        else:
            with safe_open(directory / SINGLE, framework="pt") as file:
                listed = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), SHARDS[0])}
        if name in listed["weight_map"]:
            return
        if not index.is_file():
            (directory / SINGLE).rename(directory / SHARDS[0])
        head = "model-head.safetensors" if index.is_file() else SHARDS[1]
        save_file({name: weights[name].detach().clone().contiguous()}, directory / head, metadata={"format": "pt"})
        listed["weight_map"][name] = head
        index.write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        config = directory / "config.json"
        config.write_text(json.dumps(_untied(json.loads(config.read_bytes())), indent=2) + "\n", encoding="utf-8")


def _untied(config: Any) -> Any:
    """Return a model's config.json with tie_word_embeddings=false at every depth."""
    if not isinstance(config, dict):
        return config
    return {k: False if k == "tie_word_embeddings" else _untied(v) for k, v in config.items()}
