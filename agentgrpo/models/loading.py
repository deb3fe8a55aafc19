"""Loads policies from folders: a whole model, or an adapter with its base model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from agentgrpo.config.hardware import Hardware
from agentgrpo.core.durable import MANIFEST, verify_directory
from agentgrpo.core.errors import CheckpointError, ConfigError, did_you_mean
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.models.gguf import converted, converted_folder, is_gguf
from agentgrpo.training.adapters import adapter_base, has_adapter, load_adapter
from agentgrpo.training.checkpoint import STATE, LoadedCheckpoint, read_state
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.reference import Reference
from agentgrpo.training.remote_code import plain_config, trusted_class, trusted_config

# --- The start weights of a run: their folder, and the hash by which a later process recognises them.

READ_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Start:
    """A model folder; every checkpoint of the run stores the folder and its hash."""

    folder: Path

    def state(self) -> dict[str, str]:
        digest = sha256()
        found = (f for kind in ("safetensors", "json", "py") for f in self.folder.glob(f"*.{kind}") if f.is_file())
        for path in sorted(found):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while part := file.read(READ_BYTES):  # memory need not hold the model a second time
                    digest.update(part)
        return {"folder": str(self.folder), "sha256": digest.hexdigest()}


def saved_start(checkpoint: Path) -> dict[str, str] | None:
    """The `state` of the start weights of a checkpoint's run; None if the folder is not a run's checkpoint."""
    file = checkpoint / STATE
    return dict(read_state(checkpoint)["state"]["start"]) if file.is_file() else None


def verified(saved: Mapping[str, str], need: str) -> Path:
    """The folder of the start weights. Raises CheckpointError unless it still holds them. need: the part that needs
    them, for the error."""
    found = Start(Path(saved["folder"]))
    if not found.folder.is_dir() or found.state() != saved:
        raise CheckpointError(
            f"{need} needs the start weights, and {saved['folder']} no longer holds them; put the folder back"
        )
    return found.folder


_snapshot = partial(
    snapshot_download,
    allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py"],
    ignore_patterns=["original/*", "consolidated*"],  # the same weights once more
)
"""The folder in the hub's cache with only the loadable files of a model: no pickles, no formats of other programs."""


def local_folder(path: str, revision: str | None = None) -> Path:
    """The folder for a user's `path`: the path itself, the cache's folder of a model converted from GGUF, or the hub
    cache's folder of the model with that name (at that commit, tag or branch). Raises ConfigError for the revision of a
    folder, and for a revision that is not in the cache."""
    if is_gguf(path):
        return converted_folder(path, revision)
    folder = _folder_of(path, revision)
    if folder.exists():
        return folder
    try:
        cached = _cached(path, revision)
    except HFValidationError:
        cached = None
    if cached is None and revision is not None:
        raise ConfigError(
            f"model.path={path}, model.revision={revision}: the hub's cache does not hold it; download it: "
            f"hf download {path} --revision {revision}"
        )
    return cached or folder  # a missing folder fails when it is loaded


def fetched_folder(path: str, revision: str | None = None, *, tell: Callable[[str], None]) -> Path:
    """Like local_folder, for a model whose weights are needed now. A model of the hub that is not wholly in the cache
    is downloaded, and a GGUF model is converted; `tell` gets a note before. Raises ConfigError if there is no such
    model, or it cannot be downloaded."""
    if is_gguf(path):
        return converted(path, revision, tell=tell)
    folder = _folder_of(path, revision)
    if folder.exists():
        return folder
    try:
        cached = _cached(path, revision)
    except HFValidationError as e:
        raise ConfigError(
            f"model.path={path}: no such folder, and not the name of a model of the hub; give a folder with "
            "config.json and safetensors, or a name such as Qwen/Qwen2.5-0.5B-Instruct"
        ) from e
    if cached is not None and _is_whole(cached):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(_not_fetched(path, revision, None))
    tell(
        f"note: {path} is no folder, nor is all of it in the hub's cache; downloading it from {constants.ENDPOINT}: "
        "minutes, once"
    )
    try:
        fetched = Path(_snapshot(path, revision=revision))
    except Exception as e:  # the HTTP client, the disk, ...: any error means that the model is missing
        raise ConfigError(_not_fetched(path, revision, e)) from e
    if not _is_whole(fetched):
        raise ConfigError(_not_fetched(path, revision, None))
    return fetched


def _folder_of(path: str, revision: str | None) -> Path:
    folder = Path(path).expanduser()
    if folder.exists() and revision is not None:
        raise ConfigError(f"model.revision={revision}, but model.path={path} is a folder; leave one of them out")
    return folder.absolute()


def _cached(path: str, revision: str | None) -> Path | None:
    """The model's folder in the hub's cache, if it is there. Raises HFValidationError for an invalid name."""
    try:
        return Path(_snapshot(path, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as e:
        found = getattr(e, "snapshot_path", None)  # files are missing, but perhaps no weights
        return None if found is None else Path(found)


def _is_whole(folder: Path) -> bool:
    """Whether all weights are there: another program may have downloaded only the tokenizer."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    return all((folder / name).is_file() for name in json.loads(index.read_bytes())["weight_map"].values())


def _not_fetched(path: str, revision: str | None, error: Exception | None) -> str:
    command = f"hf download {path}" + (f" --revision {revision}" if revision else "")
    other = f"download it where there is a network ({command}), or give a folder: model.path=FOLDER"
    given = f"model.path={path}" + (f", model.revision={revision}" if revision else "")
    if constants.HF_HUB_OFFLINE:
        why, remedy = "and HF_HUB_OFFLINE forbids to ask the hub for it", other
    elif error is None:
        why, remedy = "and the hub did not give all of its weights as safetensors", other
    elif isinstance(error, GatedRepoError):
        why = "and the hub gives it only to those who have accepted its terms"
        remedy = f"do so at {constants.ENDPOINT}/{path}, then hf auth login"
    elif isinstance(error, RevisionNotFoundError):
        why, remedy = "and the model on the hub has no such revision", "give one that it has, or leave it out"
    elif isinstance(error, RepositoryNotFoundError):
        why = "and the hub shows no model of that name"
        remedy = "give a folder or a name that it has; for a model that is private first hf auth login"
    else:
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        reason = next(iter(str(cause).splitlines()), "") or type(cause).__name__
        why, remedy = f"and the hub did not give it ({reason})", other
    return f"{given}: there is no such folder, the hub's cache does not hold it whole, {why}; {remedy}"


def open_policy(folder: Path, hardware: Hardware, *, code: Path | None = None) -> Policy:
    """The policy in a model folder or checkpoint, verified byte by byte if it has a manifest. code: the folder whose
    Python files the user trusts, for a model that needs its own code. Raises CheckpointError for a damaged checkpoint,
    or if an adapter's base has changed since its training; ConfigError."""
    base = open_base(folder)
    policy = load_policy(base or folder, dtype=hardware.dtype, device=hardware.device, code=code)
    if base is not None:
        load_adapter(policy.model, folder)
    return policy


def open_base(folder: Path) -> Path | None:
    """The verified folder of the base model of the adapter in `folder`; None if `folder` holds a whole model."""
    if (folder / MANIFEST).is_file():
        verify_directory(folder)
    base = adapter_base(folder)
    if base is None:
        return None
    start = saved_start(folder)
    return local_folder(base) if start is None else verified(start, f"the adapter in {folder}")


def open_reference(
    policy: Policy,
    algorithm: Algorithm,
    checkpoint: LoadedCheckpoint | None,
    hardware: Hardware,
    *,
    code: Path | None = None,
) -> Reference | None:
    """The reference model of the KL term; None if the algorithm needs no reference. In a resumed run it is restored as
    it was at `checkpoint`. Raises CheckpointError if it cannot be restored."""
    if not algorithm.needs_reference:
        return None
    start = None
    if checkpoint is not None and algorithm.reference == "frozen" and not has_adapter(policy.model):
        start = open_policy(verified(checkpoint.state["start"], "the KL term"), hardware, code=code)
    reference = Reference(
        policy,
        start=start,
        kind=algorithm.reference,
        decay=algorithm.reference_decay,
        every=algorithm.reference_every,
    )
    if checkpoint is not None:
        reference.load_state_tensors(checkpoint.tensors)
    return reference


# --- A model's shape without its weights: from `model.shape`, from its config.json, or from both if they agree.

LONGEST = "max_position_embeddings"


def config_of(shape: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration with these keys of a config.json, model_type among them. Raises ConfigError for keys that this
    type of model does not have."""
    kind = shape.get("model_type")
    facts = {key: value for key, value in shape.items() if key != "model_type"}
    try:
        known = AutoConfig.for_model(str(kind)).to_dict()
    except ValueError as e:
        raise ConfigError(f"model.shape.model_type={kind}: transformers has no such model; qwen3 is one") from e
    if odd := sorted(facts.keys() - known.keys()):
        near = did_you_mean(odd[0], known)
        raise ConfigError(f"model.shape.{odd[0]}: a {kind} has no such key in its config.json; leave it out.{near}")
    return AutoConfig.for_model(str(kind), **facts)


def refuse_other_shape(folder: Path, shape: Mapping[str, Any] | None, *, trust_remote_code: bool = False) -> None:
    """Raise ConfigError if the model in `folder` has another shape. Only its number of positions may be larger, as in
    some variants of a model."""
    if shape is None:
        return
    found = (trusted_config if trust_remote_code else plain_config)(folder).to_dict()
    for key, value in shape.items():
        if key == LONGEST and int(found.get(key) or 0) >= value:
            continue
        if found.get(key) != value:
            raise ConfigError(
                f"model.shape.{key}={value}, but the model in {folder} has {key}={found.get(key)}; choose the preset "
                "of that model, or set model.shape=null"
            )


def weightless(config: PretrainedConfig, code: Path | None = None) -> PreTrainedModel:
    """The model on the meta device: its tensors have shapes, but neither memory nor values. code: see
    policy.load_policy."""
    with torch.device("meta"):
        own = AutoModelForCausalLM.from_config if code is None else trusted_class(code)._from_config
        model: PreTrainedModel = own(config)
    return model
