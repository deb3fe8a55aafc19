"""Access to files within one directory, safe against any path and against swaps during the lookup.

Every path is looked up from a descriptor of the directory: by openat2 if the kernel has it (Linux 5.6), else folder by
folder, never through a link, a mount or `..`. A file is accessed only through the descriptor of its folder. It is read
only if it is a regular file with exactly one name, the requested one, so a hard link cannot expose a file from outside.
No call blocks: pipes and devices are refused. These guarantees hold only while no other party can rename folders out of
the directory; the sandbox gives nobody that power.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

MAX_PATH = 1024
"""Maximum bytes of a path."""
MAX_NAME = 240
"""Maximum bytes of a name in a path: a little below the file systems' limit, because a file is first written under a
longer name.
"""
MAX_DEPTH = 16
"""Maximum number of folders in a path."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH
_ATTEMPTS = 8
_LOOKS = 12
"""Number of looks at an inode; before Linux 6.13 its times advance in steps of milliseconds."""


class PathRefused(Exception):
    """The path is never allowed."""


class FileProblem(Exception):
    """The path is allowed, but the entry there is of the wrong kind or unusable."""


class FileMissing(FileProblem):
    """There is no file at the path."""


class DirectoryEntry(NamedTuple):
    name: str
    num_bytes: int | None
    """Size in bytes; None if the entry is not a regular file."""
    is_folder: bool


def shown(path: str) -> str:
    """The path for a message: one line, at most about 100 characters."""
    path = path if len(path) <= 100 else f"{path[:100]}..."
    return path if path.isprintable() else repr(path)


def parts_of(path: str) -> tuple[str, ...]:
    """Return the names in a path relative to the directory; an empty tuple for the directory itself. Blanks around the
    path are ignored. Raises PathRefused."""
    path = path.strip()
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise PathRefused(f"{shown(path)} is no path") from None
    if path.startswith("/"):
        raise PathRefused(f"{shown(path)} is absolute; paths are relative to the workspace")
    parts = tuple(p for p in path.split("/") if p not in ("", "."))
    if ".." in parts:
        raise PathRefused(f"{shown(path)} has .. in it; paths stay in the workspace")
    if "\0" in path or len(encoded) > MAX_PATH or len(parts) > MAX_DEPTH:
        raise PathRefused(f"{shown(path)} is no path")
    if any(len(p.encode("utf-8")) > MAX_NAME for p in parts):
        raise PathRefused(f"{shown(path)}: a name is too long")
    return parts


def read_within(root: Path, path: str, *, max_bytes: int) -> tuple[bytes, bool]:
    """Return the first max_bytes bytes of a regular file, and whether it has more. Raises PathRefused, FileProblem."""
    with _found(path), _named(root, path) as (folder, name):
        fd = os.open(name, _FILE, dir_fd=folder)
        try:
            opened = os.fstat(fd)
            if not stat.S_ISREG(opened.st_mode):
                raise FileProblem(f"{shown(path)} is {'a folder' if stat.S_ISDIR(opened.st_mode) else 'no file'}")
            if opened.st_nlink != 1:
                raise FileProblem(f"{shown(path)} is a link; links are not followed")
            for _ in range(_LOOKS):
                if _facts(opened) != _facts(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    raise FileProblem(f"{shown(path)} is being changed")
            os.set_blocking(fd, True)
            return _read(fd, max_bytes)
        finally:
            os.close(fd)


def write_within(root: Path, path: str, content: bytes, *, max_files: int) -> None:
    """Write the file atomically, and create its folders. Raises PathRefused; FileProblem, also if the directory would
    hold more than max_files files and folders."""
    with _found(path), _named(root, path, make=True) as (folder, name):
        entry = _entry(folder, name)
        if entry is not None and entry.num_bytes is None:
            raise FileProblem(f"{shown(path)} is {'a folder' if entry.is_folder else 'no file'}")
        with _folder(root, ()) as top:
            if entry is None and _count(top, max_files) >= max_files:
                raise FileProblem(f"the workspace is full: at most {max_files} files")
        # Written as a draft and renamed, so the write never follows whatever the name has become meanwhile.
        draft = f"{name}.{os.urandom(6).hex()}"
        fd = os.open(draft, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise


def list_within(root: Path, path: str, *, max_entries: int) -> list[DirectoryEntry]:
    """The entries of a folder, sorted by name. Raises PathRefused; FileProblem, also if there are more than max_entries
    entries.
    """
    with _found(path), _folder(root, parts_of(path)) as folder:
        names: list[str] = []
        with os.scandir(folder) as found:
            for each in found:
                if len(names) == max_entries:
                    raise FileProblem(f"{shown(path)} holds more than {max_entries} files")
                names.append(each.name)
        return [entry for name in sorted(names) if (entry := _entry(folder, name)) is not None]


# --- lookups


@contextmanager
def _found(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"no file {shown(path)}") from None
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.EXDEV, errno.ENOTDIR):  # the error depends on the lookup method
            raise FileProblem(f"{shown(path)} leads over a file or a link; links are not followed") from None
        raise FileProblem(f"{shown(path)}: {os.strerror(e.errno or 0)}") from e


@contextmanager
def _named(root: Path, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder that contains the path, and the last name of the path."""
    *folders, name = parts_of(path) or ("",)
    if not name:
        raise PathRefused("the path is empty; name a file")
    with _folder(root, folders, make=make) as folder:
        yield folder, name


@contextmanager
def _folder(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    fd = os.open(root, _FOLDER)
    try:
        if parts and (make or not has_openat2()):
            fd = walk(fd, parts, make=make)
        elif parts:
            fd = jump(fd, parts)
        yield fd
    finally:
        os.close(fd)


def walk(top: int, parts: Sequence[str], *, make: bool = False) -> int:
    """Return a descriptor of a folder within `top`, opening one folder after the other; `make` creates missing folders.
    Closes `top` on success; on failure the caller still owns it. Raises OSError (ELOOP, ENOTDIR for a link)."""
    at = os.dup(top)
    device = os.fstat(top).st_dev
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=at)
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
            if os.fstat(at).st_dev != device:
                raise OSError(errno.EXDEV, "another file system")
    except BaseException:
        os.close(at)
        raise
    os.close(top)
    return at


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def jump(top: int, parts: Sequence[str]) -> int:
    """Like `walk`, in one system call."""
    fd = _openat2(top, "/".join(parts))
    for _ in range(_ATTEMPTS):
        if fd != -errno.EAGAIN:
            break
        fd = _openat2(top, "/".join(parts))  # something was renamed meanwhile
    if fd == -errno.EAGAIN:
        return walk(top, parts)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    os.close(top)
    return fd


def _openat2(top: int, path: str) -> int:
    """Return a descriptor, or the negative error number."""
    how = _How(flags=_FOLDER, mode=0, resolve=_RESOLVE)
    call = ctypes.c_long(_OPENAT2), top, path.encode("utf-8"), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    fd: int = _libc().syscall(*call)
    return fd if fd >= 0 else -ctypes.get_errno()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def has_openat2() -> bool:
    """Whether openat2 works: it needs Linux 5.6, and a container may forbid it."""
    if os.uname().sysname != "Linux":
        return False
    fd = os.open("/", _FOLDER)
    try:
        found = _openat2(fd, ".")
    finally:
        os.close(fd)
    if found >= 0:
        os.close(found)
    return found >= 0


# --- entries


def _facts(found: os.stat_result) -> tuple[int, ...]:
    """Facts of an inode that stay equal while its names do. A link count of one proves nothing: the opened name may be
    gone and the remaining one may lie outside. Restoring the name for the next look changes the inode's ctime."""
    return found.st_dev, found.st_ino, found.st_nlink, found.st_ctime_ns


def _read(fd: int, max_bytes: int) -> tuple[bytes, bool]:
    content = bytearray()
    while len(content) <= max_bytes and (more := os.read(fd, max_bytes + 1 - len(content))):
        content += more
    return bytes(content[:max_bytes]), len(content) > max_bytes


def _entry(folder: int, name: str) -> DirectoryEntry | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    regular = stat.S_ISREG(found.st_mode)
    return DirectoryEntry(name, found.st_size if regular else None, stat.S_ISDIR(found.st_mode))


def _count(folder: int, limit: int) -> int:
    """Count the files and folders within `folder`, up to `limit`."""
    with os.scandir(folder) as found:
        entries = []
        for each in found:
            entries.append(each)
            if len(entries) >= limit:
                return limit
        total = len(entries)
        for each in entries:
            if total < limit and each.is_dir(follow_symlinks=False):
                with suppress(OSError), _below(folder, each.name) as below:
                    total += _count(below, limit - total)
    return min(total, limit)


@contextmanager
def _below(folder: int, name: str) -> Iterator[int]:
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)
