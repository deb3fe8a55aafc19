"""Durable file operations. Each can be watched and made to fail; an OSError becomes a StorageError."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from agentgrpo.core.errors import AgentGrpoError, CheckpointError, RunDirectoryError, StorageError
from agentgrpo.core.secrets import masked_bytes

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FREE_SPACE = "; free space (or raise the quota), then go on: a run with `agentgrpo resume`, all else as it was begun"
_ADVICE: Mapping[int | None, str] = {
    errno.EIO: "the disk or its connection failed; look at the system's log, and go on elsewhere from a copy",
    errno.EROFS: "the file system may only be read; mount it so that it can be written, or give another place",
    errno.EACCES: "this user may not; change the permissions, or give another place",
}


class Operation(NamedTuple):
    """A durable operation about to happen. `kind` is mkdir, write, fsync, rename, truncate or delete; for a transaction
    begin or commit."""

    kind: str
    path: Path
    size: int = 0
    """Bytes to write; 0 for every other kind."""


Hook = Callable[[Operation], int | None]

_hook: Hook | None = None


@contextmanager
def injected(hook: Hook) -> Iterator[None]:
    """Fault injection: within the block `hook` is called before every durable operation of this process. It may raise,
    or return how many bytes of a write the file system takes."""
    global _hook
    outer, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = outer


def before(kind: str, path: Path, size: int = 0) -> int:
    """Announce one operation to the hook; returns how many of the `size` bytes to write."""
    taken = _hook(Operation(kind, path, size)) if _hook else None
    return size if taken is None else taken


def storage_error(path: Path, needed: int, cause: object) -> StorageError:
    """The error for a write of `needed` bytes (0 = unknown) to `path` that failed because of `cause`."""
    number = cause.errno if isinstance(cause, OSError) else None
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    needs = f"{needed} bytes needed, " if needed else ""
    if number in _ADVICE:
        error = StorageError(f"{path}: {reason}: {_ADVICE[number]}")
    else:
        advice = _FREE_SPACE if number in _OUT_OF_SPACE else ""
        error = StorageError(f"{path}: {reason}: {needs}{_free_bytes(path)} bytes free{advice}")
    error.errno = number
    return error


@contextmanager
def storage(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError about `path`."""
    try:
        yield
    except AgentGrpoError:
        raise
    except OSError as e:
        raise storage_error(path, needed, e) from e


def _free_bytes(path: Path) -> int:
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def require_free_space(path: Path, needed: int) -> None:
    """Raise StorageError unless the file system that holds (or will hold) `path` has `needed` bytes free."""
    if _free_bytes(path) < needed:
        raise storage_error(path, needed, OSError(errno.ENOSPC, "not enough free space"))


def write(fd: int, data: bytes, path: Path) -> None:
    """Write all of `data`. One call may take only part of it; a full file system is reported by the call after that."""
    rest = memoryview(data)
    while rest:
        taken = os.write(fd, rest[: before("write", path, len(rest))])
        if taken == 0:
            raise OSError(errno.EIO, "the file system takes no bytes")
        rest = rest[taken:]


def fsync(fd: int, path: Path) -> None:
    before("fsync", path)
    os.fsync(fd)


def fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(fd, path)
    except OSError as e:
        if e.errno != errno.EINVAL:  # how network file systems say that directories need no sync
            raise
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Rename `source`; this is durable only once the target's parent directory is synced."""
    before("rename", target)
    source.replace(target)


def delete_tree(path: Path) -> None:
    before("delete", path)
    shutil.rmtree(path)


def beside(path: Path, kind: str) -> Path:
    """Return a sibling of `path` whose name `sweep_leftovers` recognises; `kind` is tmp or old."""
    return path.with_name(f".{kind}-{secrets.token_hex(4)}-{path.name}")


def ensure_directory(path: Path) -> None:
    """Create `path` and its missing parents, and sync the entry of each."""
    if path.is_dir():
        return  # the usual case
    with storage(path):
        for directory in reversed([p for p in (path, *path.parents) if not p.exists()]):
            before("mkdir", directory)
            directory.mkdir(exist_ok=True)
            fsync_directory(directory.parent)


# --- Durable files: replaced as a whole, or logs that only grow. Known secrets are masked (core.secrets).


def write_atomic(path: Path, data: bytes) -> None:
    """Create or replace `path`: readers see the old bytes or all of the new ones."""
    write_each_atomic({path: data})


def write_each_atomic(files: Mapping[Path, bytes]) -> None:
    """Apply `write_atomic` to files of one directory, with a single sync of the directory. Each file is atomic, the
    group is not: after a crash any of them may be old. Raises ValueError for several directories."""
    directory, *others = {path.parent for path in files}
    if others:
        raise ValueError(f"{directory} and {others[0]}: files that are written together lie in one directory")
    ensure_directory(directory)
    temporaries = {path: beside(path, "tmp") for path in files}
    try:
        for path, data in files.items():
            with storage(path, len(data)):
                _write_new(temporaries[path], masked_bytes(data))
        for path, temporary in temporaries.items():
            with storage(path):
                rename(temporary, path)
        with storage(directory):
            fsync_directory(directory)
    except StorageError:
        for temporary in temporaries.values():
            with suppress(OSError):  # where nothing can be written, nothing can be removed
                temporary.unlink(missing_ok=True)  # a full disk needs the space
        raise


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write(fd, data, path)
        fsync(fd, path)
    finally:
        os.close(fd)


def append_lines(path: Path, lines: Sequence[str], *, synced: bool = True) -> int:
    """Append `lines` (without line ends) and return the file's new size in bytes. On an OSError nothing stays appended;
    a file whose last line is torn is refused, because the next line would be glued to it. With synced=False the lines
    survive a kill at once, but a power failure only after the next `sync` of the file."""
    if any("\n" in line for line in lines):
        raise ValueError(f"{path}: a line to append holds a line end")
    data = masked_bytes("".join(f"{line}\n" for line in lines).encode())
    ensure_directory(path.parent)
    with storage(path, len(data)):
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                raise OSError(errno.EIO, "the last line is torn: truncate the file to a row's end first")
            try:
                write(fd, data, path)
                if synced:
                    fsync(fd, path)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if is_new and synced:
            fsync_directory(path.parent)
    return size + len(data)


def sync(path: Path) -> None:
    """Make lines that `append_lines` left unsynced in `path` survive a power failure. A missing file is ignored."""
    if not path.exists():
        return
    with storage(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            fsync(fd, path)
        finally:
            os.close(fd)
        fsync_directory(path.parent)


def require_length(path: Path, offset: int) -> None:
    """Raise CheckpointError if the log is shorter than `offset` bytes. A missing file has length 0."""
    size = path.stat().st_size if path.exists() else 0
    if size < offset:
        raise CheckpointError(f"{path}: {size} bytes, but the checkpoint was taken at {offset}: rows are missing")


def truncate_to(path: Path, offset: int, orphans_dir: Path) -> None:
    """Cut the log `path` back to `offset` bytes, the end of a row. The rows beyond are first saved in `orphans_dir`.
    Raises CheckpointError if the file is shorter than `offset` or has no row end there."""
    require_length(path, offset)
    if not path.exists():
        return
    with storage(path), path.open("rb") as f:
        f.seek(max(offset - 1, 0))
        row_end = f.read(1) if offset else b"\n"
        beyond = f.read()
    if row_end != b"\n":
        raise CheckpointError(f"{path}: byte {offset} is not the end of a row, so the checkpoint is not of this file")
    if not beyond:
        return
    digest = hashlib.sha256(beyond).hexdigest()[:8]  # the same rows after a second crash get the same name
    write_atomic(orphans_dir / f"{path.stem}-{offset:010d}-{digest}{path.suffix}", beyond)
    with storage(path):
        fd = os.open(path, os.O_WRONLY)
        try:
            before("truncate", path)
            os.ftruncate(fd, offset)
            fsync(fd, path)
        finally:
            os.close(fd)


def set_aside(path: Path, orphans_dir: Path) -> Path:
    """Move a file or directory into `orphans_dir`, under a name that is free there; returns the new path."""
    ensure_directory(orphans_dir)
    target, number = orphans_dir / path.name, 0
    while target.exists():
        number += 1
        target = orphans_dir / f"{path.name}.{number}"
    with storage(target):
        rename(path, target)
        fsync_directory(orphans_dir)
        fsync_directory(path.parent)
    return target


# --- Durable directories: sealed by a manifest of sizes and hashes that is written last.

MANIFEST = "manifest.json"
_FORMAT = 1
_LEFTOVER = re.compile(r"\.(tmp|old)-[0-9a-f]{8}-(.+)", re.DOTALL)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Fill the yielded temporary directory by any means. On leaving the block it is sealed with a manifest and becomes
    `path`; if it replaces an older `path`, one of the two always survives. After an error or Ctrl-C it is removed.
    Leftovers of killed processes beside `path` are removed first.

        with atomic_directory(run_dir / "checkpoints" / "step-000040") as directory:
            model.save_pretrained(directory)
    """
    ensure_directory(path.parent)
    sweep_dead(path.parent)
    temporary = beside(path, "tmp")
    with storage(path), ExitStack() as held:
        try:
            before("mkdir", temporary)
            held.enter_context(_new_directory(temporary))
            yield temporary
            _seal(temporary)
            replaced = beside(path, "old") if path.exists() else None
            if replaced:
                rename(path, replaced)  # a crash after this line: sweep_leftovers renames it back
            rename(temporary, path)
            fsync_directory(path.parent)
            if replaced:
                delete_tree(replaced)
        except (Exception, KeyboardInterrupt):
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def _new_directory(path: Path) -> Iterator[None]:
    """Make a directory and lock it until the block is left or this process dies. It is made again if sweep_dead removes
    it before it is locked."""
    fd = -1
    while fd < 0 or not _is_at(fd, path):
        if fd >= 0:
            os.close(fd)
        path.mkdir()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def _seal(directory: Path) -> None:
    mode = directory.stat().st_mode & 0o666  # as the umask allows; safetensors creates its files as 0600
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
    """Compare every file of the manifest (or those named in `only`) with its size and hash; returns their names. Raises
    CheckpointError with the file, the expected and the found values. Other files may lie there too."""
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
    """Delete `path`: it is renamed away at once, its files are deleted after that."""
    trash = beside(path, "tmp")
    with storage(path):
        rename(path, trash)
        fsync_directory(path.parent)
        delete_tree(trash)


def sweep_leftovers(directory: Path) -> None:
    """Remove leftovers of crashed writers in `directory`, and restore a directory that one was about to replace. Only
    for the process that owns `directory` (RunLock): the temporary files of a living writer look the same."""
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


def sweep_dead(directory: Path) -> None:
    """Remove the directories that killed processes have left half-written in `directory`. Other processes may be
    writing there: a living writer locks its directory. Directories that cannot be locked or removed stay."""
    for path in directory.glob(".tmp-*"):
        if not _LEFTOVER.fullmatch(path.name):
            continue
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(fd)


# --- One process per run directory.

_held: set[int] = set()


def _forget_in_child() -> None:
    for fd in _held:  # otherwise a forked child would keep the lock of a dead parent
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class RunLock:
    """Hold `run_dir` for this process until `release`, or until the process dies in any way. The lock is the kernel's
    (flock); the file's text only names the holder. Leftovers of killed writers are swept from the directory. Raises
    RunDirectoryError if another process, or this process already, holds the lock."""

    def __init__(self, run_dir: Path) -> None:
        ensure_directory(run_dir)
        path = run_dir / "run.lock"
        with storage(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(self._fd, path):  # a refused run has removed its file in between
                    raise BlockingIOError
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, json.dumps(_this_process()).encode(), 0)
            except BlockingIOError:
                holder = _describe_holder(os.pread(self._fd, 4096, 0))
                os.close(self._fd)
                raise RunDirectoryError(
                    f"{run_dir} is in use by {holder}; wait for it, stop it, or choose another run.dir"
                ) from None
            except OSError:
                os.close(self._fd)
                raise
        _held.add(self._fd)
        try:
            sweep_leftovers(run_dir)
        except StorageError:
            self.release()
            raise

    def release(self) -> None:
        if self._fd in _held:
            _held.discard(self._fd)
            os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def _is_at(fd: int, path: Path) -> bool:
    """Return whether `fd` is open on the file at `path`: a lock on a removed file keeps nobody out."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def _this_process() -> dict[str, Any]:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    boot = boot_id.read_text().strip() if boot_id.exists() else ""
    return {"boot_id": boot, "host": socket.gethostname(), "pid": os.getpid()}


def _describe_holder(text: bytes) -> str:
    try:
        holder = json.loads(text)
        here = holder["boot_id"] == _this_process()["boot_id"]
        return f"process {holder['pid']}" + ("" if here else f" on host {holder['host']}")
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has the lock but has not written its name yet


# --- A file too large for memory, written piece by piece and still atomic.


@contextmanager
def atomic_stream(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes bytes; on leaving the block they become `path`, replacing an older file. After an
    error nothing of them is left; an OSError is raised as StorageError."""
    ensure_directory(path.parent)
    temporary = beside(path, "tmp")
    with storage(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                yield lambda data: write(fd, data, temporary)
                fsync(fd, temporary)
            finally:
                os.close(fd)
            rename(temporary, path)
            fsync_directory(path.parent)
        except (Exception, KeyboardInterrupt):
            temporary.unlink(missing_ok=True)
            raise
