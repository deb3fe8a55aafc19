"""The paths that the command of an agent sees in its sandbox: the system's programs, its interpreter, and code.

Code is a Python file beside a script or on sys.path, and a folder that holds such files. Data beside it is not shown:
the questions and their hidden tests often lie there. A user names further paths: environment.show=[PATH].
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.tools.sandbox.isolation import View

_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_CODE = (".py", ".so")
_MAX_INTERPRETERS = 4
"""A script may name a script as its interpreter, and so on."""


def view_of(argv: Sequence[str], *, show: Sequence[str], run_files: Iterable[str], replaced: Mapping[str, str]) -> View:
    """argv: the command, files named by absolute paths. show: paths of the user's choice. run_files: paths that the
    configuration names elsewhere, which are covered. Raises ConfigError for a path in `show` that is not there."""
    for path in show:
        if not Path(path).exists():
            raise ConfigError(f"environment.show: {path} is not there; name a file or folder of this machine")
    system = [path for path in _SYSTEM if Path(path).is_dir()]
    links = [(str(Path(path).readlink()), path) for path in system if Path(path).is_symlink()]
    wanted = [
        *(path for path in system if not Path(path).is_symlink()),
        *(sys.prefix, sys.base_prefix, sys.exec_prefix),
        *_folders_of(argv[0]),
        *(path for folder in sys.path if folder and Path(folder).is_dir() for path in _code_in(folder, _CODE)),
        *(path for word in argv if Path(word).is_absolute() for path in _around(word)),
        *(_absolute(path) for path in show),
    ]
    shown = _outermost(path for path in wanted if path != "/")
    covered = {path for name in run_files for path in (_absolute(name), os.path.realpath(name))}
    covered -= {_absolute(path) for path in show}
    return View(
        shown=shown,
        covered=tuple(sorted(path for path in covered if _is_within(path, shown) and path not in argv)),
        links=tuple(links),
        replaced=replaced,
    )


def binary_of(command: str) -> str:
    """The program that the kernel starts for this file: itself, or the interpreter that a script names."""
    path = os.path.realpath(command)
    for _ in range(_MAX_INTERPRETERS):
        with Path(path).open("rb") as file:
            line = file.readline(256)
        if not line.startswith(b"#!"):
            break
        words = os.fsdecode(line[2:]).split()
        if not words:
            break
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), words[0])
        found = shutil.which(named) if Path(words[0]).name == "env" else words[0]
        if found is None or not Path(found).is_file():
            break
        path = os.path.realpath(found)
    return path


def files_named_in(tree: Any, *, but: Sequence[str] = ()) -> tuple[str, ...]:
    """The files and folders of this machine that a configuration names, patterns such as data/*.jsonl too; not those
    below the keys `but`."""
    return tuple(dict.fromkeys(path for text in _texts(tree, frozenset(but)) for path in _existing(text)))


def _texts(node: Any, but: frozenset[str]) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if key not in but:
                yield from _texts(value, but)
    elif isinstance(node, Sequence):
        for value in node:
            yield from _texts(value, but)


def _existing(text: str) -> list[str]:
    path = str(Path(text).expanduser()) if text else ""
    if not 0 < len(path) < 4096 or "\0" in path or path in (".", "/"):
        return []
    return [path] if os.path.lexists(path) else glob(path) if os.sep in path else []  # noqa: PTH207, an absolute one too


def _folders_of(executable: str) -> Iterator[str]:
    """Where it and the programs that its links lead to are installed: /opt/node of /opt/node/bin/node."""
    for path in dict.fromkeys((executable, os.path.realpath(executable), binary_of(executable))):
        folder = Path(path).parent
        is_prefix = folder.name == "bin" and folder.parent not in (Path.home(), Path("/"))
        yield str(folder.parent if is_prefix else folder / Path(path).name)


def _around(word: str) -> Iterator[str]:
    """A word of the command that names a file or a folder, and the code that a script finds beside it."""
    path = Path(word)
    if path.is_dir() or (path.is_file() and not path.suffix):
        yield word
    elif path.is_file():
        yield word
        yield from _code_in(str(path.parent), _CODE if path.suffix == ".py" else (path.suffix,))


def _code_in(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    if Path(folder).name in ("site-packages", "dist-packages"):  # its data belongs to what is installed
        yield folder
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if (entry.name.endswith(suffixes) and entry.is_file()) or (
            entry.is_dir() and not entry.name.startswith(".") and _has_code(entry.path, suffixes)
        ):
            yield entry.path


def _has_code(folder: str, suffixes: tuple[str, ...]) -> bool:
    try:
        return any(path.name.endswith(suffixes) for path in Path(folder).iterdir())
    except OSError:
        return False


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie within others; a folder before what is in it."""
    shown: list[str] = []
    for path in sorted({_absolute(path) for path in paths}, key=lambda p: (len(Path(p).parts), p)):
        if not _is_within(path, shown):
            shown.append(path)
    return tuple(shown)


def _absolute(path: str) -> str:
    """Without links being followed: a path is shown where it is looked for."""
    return os.path.abspath(path)  # noqa: PTH100


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
