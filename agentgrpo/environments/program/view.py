"""The paths that the command of an agent sees in its sandbox: the system's programs, its interpreter, and code.

Code means Python files beside a script or on sys.path, and folders that hold such files. Data beside them is not shown,
because questions and hidden tests often lie there. The user adds paths with environment.show=[PATH].
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
"""Most interpreters in a chain: a script may name another script as its interpreter."""


def view_of(argv: Sequence[str], *, show: Sequence[str], run_files: Iterable[str], replaced: Mapping[str, str]) -> View:
    """Return the view. argv: the command, with absolute paths of files. show: paths chosen by the user. run_files:
    paths named elsewhere in the configuration, which are hidden. replaced: shown file -> file that appears instead.
    Raises ConfigError for a path in `show` that does not exist."""
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
    """Return the program that the kernel starts for this file: the file itself, or a script's interpreter."""
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
    """Return the files and folders of this machine that a configuration names, also by patterns such as data/*.jsonl.
    Values below the keys `but` are skipped."""
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
    """Yield the folders where an executable and its link targets are installed: /opt/node for /opt/node/bin/node."""
    for path in dict.fromkeys((executable, os.path.realpath(executable), binary_of(executable))):
        folder = Path(path).parent
        is_prefix = folder.name == "bin" and folder.parent not in (Path.home(), Path("/"))
        yield str(folder.parent if is_prefix else folder / Path(path).name)


def _around(word: str) -> Iterator[str]:
    """Yield a word that names a file or folder, and the code beside a script."""
    path = Path(word)
    if path.is_dir() or (path.is_file() and not path.suffix):
        yield word
    elif path.is_file():
        yield word
        yield from _code_in(str(path.parent), _CODE if path.suffix == ".py" else (path.suffix,))


def _code_in(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    if Path(folder).name in ("site-packages", "dist-packages"):  # data here belongs to installed packages
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
    """Return the paths that lie within no other path, the shortest first."""
    shown: list[str] = []
    for path in sorted({_absolute(path) for path in paths}, key=lambda p: (len(Path(p).parts), p)):
        if not _is_within(path, shown):
            shown.append(path)
    return tuple(shown)


def _absolute(path: str) -> str:
    """Return the absolute path without following links: the command looks for a path under the name it knows."""
    return os.path.abspath(path)  # noqa: PTH100


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
