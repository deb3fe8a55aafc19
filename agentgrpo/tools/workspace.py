"""The directory of one attempt: created when a tool first asks for it, removed when the attempt is over, however it
ends.

    <temporary directory>/agentgrpo-tools-<pid>-<start time>-<random>/    0700, one per process that has needed one
        00000000/                                                        one per attempt that has needed one

A process holds a lock on its root directory; the kernel releases the lock when the process dies, however it dies. The
next start removes roots that no process holds. A reused pid, or a pid of another container, cannot mislead it.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Self, TypeVar, cast

from agentgrpo.core.errors import DataError, ToolError
from agentgrpo.core.types import Task
from agentgrpo.tasks.files import FILES, problem_of
from agentgrpo.tools.resources import AttemptResources

# --- Remove a directory that a policy's programs have filled, whatever they did in it.
# `shutil.rmtree` fails on directories that cannot be read and recurses once a level, so a one-line program could leave
# its workspace behind or exhaust the trainer's stack and descriptors. Call this only when no program uses the directory
# any more.

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove `path` and everything in it, at any depth, with one descriptor and one level's names at a time. Links are
    removed, not followed. Does nothing if `path` does not exist. Raises OSError if something remains."""
    if not os.path.lexists(path):
        return
    _open_up(path.lstat().st_mode, path, None)
    here, names = os.open(path, _DIRECTORY), list[str]()
    try:
        while True:
            inner = _remove_files(here)
            if inner is not None:
                here = _step(here, inner)
                names.append(inner)
            elif names:
                here = _step(here, "..")
                os.rmdir(names.pop(), dir_fd=here)
            else:
                break
    finally:
        os.close(here)
    path.rmdir()


def _remove_files(directory: int) -> str | None:
    """Remove the entries of `directory` up to its first subdirectory; make that accessible and return its name."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_up(entry.stat(follow_symlinks=False).st_mode, entry.name, directory)
                return entry.name
            os.unlink(entry.name, dir_fd=directory)
    return None


def _step(directory: int, name: str) -> int:
    """Return a descriptor of `name` in `directory`, and close `directory`."""
    found = os.open(name, _DIRECTORY, dir_fd=directory)
    os.close(directory)
    return found


def _open_up(mode: int, name: Path | str, directory: int | None) -> None:
    """Give the owner all permissions on the directory."""
    if stat.S_ISDIR(mode) and stat.S_IMODE(mode) & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=directory)


PREFIX = "agentgrpo-tools-"
T = TypeVar("T")
_ATTEMPTS = 100
_LOG = logging.getLogger(__name__)


class EpisodeWorkspace:
    """Implements tools.base.Workspace for one attempt; use it with `async with`. Created by Workspaces.open, not
    directly.
    """

    def __init__(self, workspaces: Workspaces, task: Task, seed: str, attempt: int, files: Mapping[str, str]) -> None:
        self.task, self.seed, self.key = task, seed, f"{seed}|{attempt}"
        self._workspaces, self._files = workspaces, files
        self._path: Path | None = None
        self._is_over = False
        self._resources = AttemptResources(self.key)
        self._ending: asyncio.Task[None] | None = None

    @property
    def path(self) -> Path:
        """Raises ToolError if the directory cannot be created, or if the episode is over."""
        if self._is_over:
            raise ToolError(f"episode {self.key} is over: its workspace is gone")
        if self._path is None:
            path = self._workspaces.new_directory()
            try:
                _write(path, self._files)
            except OSError as e:
                clear_away(path)
                raise ToolError(f"workspace {path}: {e.strerror}; is the temporary directory full?") from e
            self._path = path
        return self._path

    @property
    def keeps_any(self) -> bool:
        return bool(self._resources)

    async def resource(self, owner: object, open: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        return await self._resources.get(owner, open)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Completes even if the episode is cancelled, or is cancelled during this call."""
        if self._path is None and not self._resources:
            self._is_over = True
            return
        self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        """Remove the directory in a thread: a program may have left so many files that removal would delay other
        episodes.
        """
        try:
            await self._resources.close()
        finally:
            self._is_over = True
            if self._path is not None:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, clear_away, self._path))


class Workspaces:
    """Creates the workspaces of a run's episodes, one for every attempt. The constructor removes the directories that
    dead processes left in `parent` (null = the directory for temporary files). Call `close` at the end."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self._root: Path | None = None
        self._pid = os.getpid()
        self._clear: weakref.finalize[..., Workspaces] | None = None
        self._numbers = itertools.count()
        sweep(self._parent)

    def open(self, task: Task, *, seed: str, attempt: int = 0) -> EpisodeWorkspace:
        """Return the workspace of one attempt at the episode that `seed` names. attempt: 1 for the first retry. Raises
        DataError if the task's metadata.files is not a mapping of names inside the workspace to texts."""
        return EpisodeWorkspace(self, task, seed, attempt, _checked_files(task))

    def new_directory(self) -> Path:
        """Create an empty directory, mode 0700, for one attempt. Raises ToolError."""
        try:
            if self._root is None or self._pid != os.getpid():  # a forked child needs its own root
                self._pid = os.getpid()
                self._root, lock = _locked_root(self._parent)
                self._clear = weakref.finalize(self, _clear, self._root, lock, self._pid)
            path = self._root / f"{next(self._numbers):08d}"
            path.mkdir(mode=0o700)
        except OSError as e:
            raise ToolError(f"no workspace can be made in {self._parent}: {e.strerror}") from e
        return path

    async def close(self) -> None:
        """Remove the root; also done at the end of the process. A forked child never removes its parent's root."""
        if self._clear is not None:
            self._clear()
        self._root = None


def sweep(parent: Path) -> None:
    """Remove the roots in `parent` that belong to this user and that no process holds."""
    for path in parent.glob(f"{PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone already, owned by another user, or not a directory
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                continue
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            clear_away(path)
        except OSError:
            continue  # its process is alive
        finally:
            os.close(fd)


def _locked_root(parent: Path) -> tuple[Path, int]:
    """Return a new root and the descriptor that holds its lock; a root that a concurrent sweep took is not returned."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{_start_time()}-", dir=parent))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with suppress(BlockingIOError):  # a sweeper holds it and is about to remove it
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink and path.exists():
                return path, fd
        os.close(fd)
    raise OSError(f"{_ATTEMPTS} new directories in {parent} were removed at once")


def _start_time() -> str:
    """Start time of this process in clock ticks since boot; with the pid it identifies the process for good."""
    try:
        return Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def _clear(root: Path, lock: int, pid: int) -> None:
    if pid == os.getpid():
        clear_away(root)
        os.close(lock)


def clear_away(path: Path) -> None:
    """Remove `path` and everything in it, now or at the next start."""
    try:
        remove_tree(path)
    except OSError as e:
        _LOG.warning("workspace %s cannot be removed now: %s; the next start tries again", path, e)


def _checked_files(task: Task) -> Mapping[str, str]:
    files = task.metadata.get(FILES) or {}
    if problem := problem_of(files):
        raise DataError(f"task {task.id}: {problem}")
    return cast(Mapping[str, str], files)


def _write(workspace: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "replace"))
