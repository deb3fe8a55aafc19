"""Exports a checkpoint as an ordinary model folder, for `agentgrpo export`."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoTokenizer

from agentgrpo.core.durable import MANIFEST, atomic_directory
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.loading import open_base
from agentgrpo.training.adapters import CONFIG as ADAPTER
from agentgrpo.training.adapters import load_adapter, merge_adapter
from agentgrpo.training.policy import load_policy
from agentgrpo.training.remote_code import loaded, plain_config


def holds_model(folder: Path) -> bool:
    """Whether `folder` holds a whole model or an adapter."""
    return (folder / "config.json").is_file() or (folder / ADAPTER).is_file()


def require_model(folder: Path, what: str) -> None:
    """Raises ConfigError if `folder`, called `what`, holds no model; the error lists the checkpoints beside it."""
    if holds_model(folder):
        return
    beside = sorted(p.name for p in folder.parent.glob("step-*") if holds_model(p)) if folder.parent.is_dir() else []
    there = f"; beside it are {', '.join(beside)}" if beside else ""
    raise ConfigError(f"{what} holds no model; give a checkpoint, such as RUN/checkpoints/step-000150{there}")


def export_model(checkpoint: Path, out: Path) -> None:
    """Write the model of `checkpoint` and its tokenizer to `out`, whole or not at all. An adapter is merged into its
    base and rounded once to the base's dtype; the files of a whole model are copied. Raises ConfigError if there is no
    model, or if `out` exists; CheckpointError for a damaged checkpoint; StorageError."""
    require_model(checkpoint, str(checkpoint))
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists, and nothing is overwritten; give a folder that does not exist")
    base = open_base(checkpoint)
    with atomic_directory(out.absolute()) as folder:
        if base is None:
            for file in sorted(f for f in checkpoint.iterdir() if f.is_file() and f.name != MANIFEST):
                shutil.copyfile(file, folder / file.name)
        else:
            dtype = plain_config(base).dtype
            model = load_policy(base).model
            load_adapter(model, checkpoint)
            merge_adapter(model)
            model.to(dtype or model.dtype).save_pretrained(folder)
            with loaded(checkpoint):
                tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
            tokenizer.save_pretrained(folder)
