"""From folders to policies: a whole model, or an adapter with the base that it changes."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from agentgrpo.durable import MANIFEST, verify_directory
from agentgrpo.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.hardware import Hardware
from agentgrpo.recipes.start import saved_start, verified
from agentgrpo.training.adapters import adapter_base, has_adapter, load_adapter
from agentgrpo.training.checkpoint import LoadedCheckpoint
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.reference import Reference


def local_folder(path: str, revision: str | None = None) -> Path:
    """The folder that a user means: a path, or where the hub's cache holds the model of that name (at that commit, tag
    or branch). Raises ConfigError for the revision of a folder, and for one that is not in the cache."""
    folder = Path(path).expanduser()
    if folder.exists() and revision is not None:
        raise ConfigError(f"model.revision={revision}, but model.path={path} is a folder; leave one of them out")
    if folder.exists():
        return folder.absolute()
    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as e:
        if revision is not None:
            raise ConfigError(
                f"model.path={path}, model.revision={revision}: the hub's cache does not hold it; download it: "
                f"hf download {path} --revision {revision}"
            ) from e
    return folder.absolute()  # load_policy says what is wrong with it


def open_policy(folder: Path, hardware: Hardware, *, code: Path | None = None) -> Policy:
    """The policy in a model folder or checkpoint, verified byte by byte where it has a manifest. code: the folder whose
    Python files the user trusts, for a model that needs such. Raises CheckpointError for a damaged one, also where the
    base of an adapter is no longer what it was trained on; ConfigError."""
    base = open_base(folder)
    policy = load_policy(base or folder, dtype=hardware.dtype, device=hardware.device, code=code)
    if base is not None:
        load_adapter(policy.model, folder)
    return policy


def open_base(folder: Path) -> Path | None:
    """The folder of the model that the adapter in `folder` changes, verified; None where `folder` holds a whole one."""
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
    """What the KL term is measured against, where there is one; of a run that is resumed as it was at `checkpoint`.
    Raises CheckpointError where that cannot be had."""
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
