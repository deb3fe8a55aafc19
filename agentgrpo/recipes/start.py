"""The start weights of a run: where they are, and how a later process knows them again."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Start:
    """A model folder, and the hash of it, which every checkpoint of the run names."""

    folder: Path

    def state(self) -> dict[str, str]:
        digest = sha256()
        for path in sorted([*self.folder.glob("*.safetensors"), *self.folder.glob("*.json")]):
            digest.update(path.name.encode() + path.read_bytes())
        return {"folder": str(self.folder), "sha256": digest.hexdigest()}
