"""The start weights of a run: where they are, and how a later process knows them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from agentgrpo.errors import CheckpointError
from agentgrpo.training.checkpoint import STATE

READ_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Start:
    """A model folder, and the hash of it, which every checkpoint of the run names."""

    folder: Path

    def state(self) -> dict[str, str]:
        digest = sha256()
        for path in sorted(f for kind in ("safetensors", "json", "py") for f in self.folder.glob(f"*.{kind}")):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while part := file.read(READ_BYTES):  # a whole model need not fit once more
                    digest.update(part)
        return {"folder": str(self.folder), "sha256": digest.hexdigest()}


def saved_start(checkpoint: Path) -> dict[str, str] | None:
    """The `state` of the weights that the run of a checkpoint started from; None for a model folder of other origin."""
    file = checkpoint / STATE
    return dict(json.loads(file.read_bytes())["state"]["start"]) if file.is_file() else None


def verified(saved: Mapping[str, str], need: str) -> Path:
    """The folder of the start weights. Raises CheckpointError unless it still holds them; `need`: who asks."""
    found = Start(Path(saved["folder"]))
    if not found.folder.is_dir() or found.state() != saved:
        raise CheckpointError(
            f"{need} needs the start weights, and {saved['folder']} no longer holds them; put the folder back"
        )
    return found.folder
