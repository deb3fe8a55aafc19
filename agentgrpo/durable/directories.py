"""Durable directories: sealed by a manifest of sizes and hashes that is written last."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgrpo.durable.files import write_atomic
from agentgrpo.durable.operations import (
    before,
    beside,
    delete_tree,
    ensure_directory,
    fsync,
    fsync_directory,
    rename,
    storage,
)
from agentgrpo.errors import CheckpointError

MANIFEST = "manifest.json"
_FORMAT = 1
_LEFTOVER = re.compile(r"\.(tmp|old)-[0-9a-f]{8}-(.+)", re.DOTALL)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Fill the yielded temporary directory by any means; on leaving the block it is sealed with a manifest and becomes
    `path`, replacing an older `path` in such a way that one of the two always survives. After an error it is removed.

        with atomic_directory(run_dir / "checkpoints" / "step-000040") as directory:
            model.save_pretrained(directory)
    """
    ensure_directory(path.parent)
    temporary = beside(path, "tmp")
    with storage(path):
        try:
            before("mkdir", temporary)
            temporary.mkdir()
            yield temporary
            _seal(temporary)
            replaced = beside(path, "old") if path.exists() else None
            if replaced:
                rename(path, replaced)  # a crash after this line: sweep_leftovers renames it back
            rename(temporary, path)
            fsync_directory(path.parent)
            if replaced:
                delete_tree(replaced)
        except Exception:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _seal(directory: Path) -> None:
    mode = directory.stat().st_mode & 0o666  # what the umask leaves; safetensors creates its files as 0600
    files: dict[str, dict[str, Any]] = {}
    directories = [directory]
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            directories.append(path)
            continue
        with path.open("rb") as f:
            os.fchmod(f.fileno(), mode)
            fsync(f.fileno(), path)
            digest = hashlib.file_digest(f, "sha256").hexdigest()
            files[path.relative_to(directory).as_posix()] = {"sha256": digest, "size": f.tell()}
    for path in reversed(directories):
        fsync_directory(path)
    write_atomic(directory / MANIFEST, _manifest_bytes(files))


def _manifest_bytes(files: object) -> bytes:
    own = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return (json.dumps({"files": files, "format": _FORMAT, "sha256": own}, indent=1, sort_keys=True) + "\n").encode()


def verify_directory(path: Path, *, only: Collection[str] | None = None) -> set[str]:
    """Read every file of the manifest (or those named in `only`) again and compare; returns their names. Raises
    CheckpointError naming the file, what was expected and what was found. Other files may lie there too."""
    manifest = path / MANIFEST
    try:
        data = manifest.read_bytes()
        files = json.loads(data)["files"]
        if data != _manifest_bytes(files):  # the spelling too: a flipped byte must not pass as white space
            raise ValueError("not the bytes that were written")
        expected = {name: (entry["sha256"], entry["size"]) for name, entry in files.items()}
    except OSError as e:
        raise CheckpointError(f"{manifest}: {e.strerror}: the directory was never completed") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{manifest}: damaged: {e}") from e
    names = set(expected if only is None else only)
    if missing := sorted(names - set(expected)):
        raise CheckpointError(f"{manifest}: does not list {missing[0]}")
    for name in sorted(names):
        digest, size = expected[name]
        try:
            with (path / name).open("rb") as f:
                found, found_size = hashlib.file_digest(f, "sha256").hexdigest(), f.tell()
        except OSError as e:
            raise CheckpointError(f"{path / name}: expected sha256 {digest} ({size} bytes), found: {e.strerror}") from e
        if (found, found_size) != (digest, size):
            raise CheckpointError(
                f"{path / name}: expected sha256 {digest} ({size} bytes), found {found} ({found_size} bytes)"
            )
    return names


def remove_directory(path: Path) -> None:
    """Delete `path`; it disappears at once, its files after that."""
    trash = beside(path, "tmp")
    with storage(path):
        rename(path, trash)
        fsync_directory(path.parent)
        delete_tree(trash)


def sweep_leftovers(directory: Path) -> None:
    """Remove what crashed writers left in `directory`, and put back what one was about to replace. Only for the process
    that owns the directory (RunLock): the temporary files of a living writer look the same."""
    if not directory.is_dir():
        return
    with storage(directory):
        for path in sorted(directory.iterdir()):
            match = _LEFTOVER.fullmatch(path.name)
            if match and match[1] == "old" and not path.with_name(match[2]).exists():
                rename(path, path.with_name(match[2]))
                fsync_directory(directory)
            elif match and path.is_dir():
                delete_tree(path)
            elif match:
                before("delete", path)
                path.unlink()
