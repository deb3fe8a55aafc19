"""seals.jsonl: sizes and hashes of a run's files when they were written, so that no damaged file passes for whole.

    {"file":"trajectories/train-000012.jsonl","bytes":48211,"sha256":"9f86d0..."}

The last row of a file counts. Logs that grow have no row: each checkpoint holds a Seal of metrics.jsonl, and of
seals.jsonl itself, at the time of the checkpoint. A resumed run checks these two first, then all files by their rows.
Files with clocks are not sealed, so that two equal runs have equal seals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agentgrpo.core.durable import append_lines, sync
from agentgrpo.core.errors import DataError
from agentgrpo.core.secrets import masked

SEALS = "seals.jsonl"
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of a file, or of the first `bytes` bytes of a file that grows."""

    file: str
    """Relative to the run's directory, with slashes."""
    bytes: int
    sha256: str

    @classmethod
    def of(cls, run_dir: Path, name: str) -> Seal:
        """Compute the seal of a file; a missing file has no bytes."""
        path = run_dir / name
        size = path.stat().st_size if path.exists() else 0
        return cls(name, size, _sha256(path, size))

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Seal:
        """Parse a row. Raises ValueError, also for a name that leads out of the run's directory."""
        found = cls(**row)
        if not (isinstance(found.file, str) and isinstance(found.bytes, int) and isinstance(found.sha256, str)):
            raise ValueError("a name, a number of bytes and a hash are needed")
        if PurePosixPath(found.file).is_absolute() or ".." in PurePosixPath(found.file).parts or found.bytes < 0:
            raise ValueError(f"{found.file!r} is no file of this run")
        return found

    def problem(self, run_dir: Path, *, grows: bool = False) -> str | None:
        """The damage of the file, with its name; None if the file is unchanged."""
        path = run_dir / self.file
        size = path.stat().st_size if path.is_file() else None
        if size is None and self.bytes:
            return f"{path} is missing"
        if size is not None and (size < self.bytes or (size > self.bytes and not grows)):
            return f"{path} is damaged: it has {size} bytes and had {self.bytes}"
        if _sha256(path, self.bytes) != self.sha256:
            return f"{path} is damaged: its content does not match what was written"
        return None


def seal(run_dir: Path, *paths: Path) -> None:
    """Append the seals of these files, in this order. The rows are on the disk once a checkpoint is (see `prefix`)."""
    rows = (asdict(Seal.of(run_dir, path.relative_to(run_dir).as_posix())) for path in paths)
    append_lines(run_dir / SEALS, [json.dumps(row, separators=(",", ":")) for row in rows], synced=False)


def seal_again(run_dir: Path, path: Path) -> None:
    """Seal a file that each start of a run writes, unless the file is as its last row says."""
    if seals_of(run_dir).get(path.name) != Seal.of(run_dir, path.name):
        seal(run_dir, path)


def prefix(run_dir: Path, name: str) -> Seal:
    """The seal of a growing log, for a checkpoint; the log is on the disk when this returns."""
    sync(run_dir / name)
    return Seal.of(run_dir, name)


def seals_of(run_dir: Path) -> dict[str, Seal]:
    """File -> its last seal; {} for a run without seals, such as a run of an earlier version. An incomplete last row is
    left out, since it is being written. Raises DataError."""
    path = run_dir / SEALS
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = Seal.read(json.loads(line))
        except (ValueError, TypeError, RecursionError) as e:
            raise DataError(f"{path} is damaged: row {number}: {e}") from e
        found[row.file] = row
    return found


def problems(run_dir: Path) -> Iterator[str]:
    """The damage of the sealed files of a run, a sentence for each file."""
    try:
        seals = seals_of(run_dir)
    except DataError as e:
        yield str(e)
    else:
        yield from (problem for s in seals.values() if (problem := s.problem(run_dir)) is not None)


# --- JSON with a hash of itself, for files that differ between equal runs: eval.json has bills.


def signed(content: Mapping[str, Any]) -> str:
    """The text of a JSON file with a hash of its content, in which known secrets are masked."""
    content = json.loads(masked(json.dumps(content)))
    return json.dumps({**content, "sha256": _of_content(content)}, indent=2) + "\n"


def is_whole(content: Mapping[str, Any]) -> bool:
    """Whether the content is as `signed` wrote it."""
    return content.get("sha256") == _of_content({k: v for k, v in content.items() if k != "sha256"})


def _of_content(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path, size: int) -> str:
    """The hash of the first `size` bytes."""
    digest = hashlib.sha256()
    if size:
        with path.open("rb") as f:
            while size and (block := f.read(min(_BLOCK, size))):
                digest.update(block)
                size -= len(block)
    return digest.hexdigest()
