"""Which Python runs the programs, and the least of this machine that it needs to start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.errors import ConfigError

_LIBRARIES = ("/usr/lib", "/usr/lib64")
_DESCRIBE = """
import json, os, sys
for name in ("_ctypes", "_ssl", "_sqlite3", "_bz2", "_lzma", "_hashlib", "_decimal", "zlib", "resource"):
    try:
        __import__(name)
    except ImportError:
        pass
with open("/proc/self/maps") as maps:
    mapped = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
print(json.dumps({"version": sys.version_info[:2], "executable": os.path.realpath(sys.executable),
    "folders": [p for p in sys.path if os.path.isdir(p)], "libraries": sorted(p for p in mapped if p[0] == "/")}))
"""
"""Imports what links against libraries of the system, and tells which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    executable: str
    shown: tuple[str, ...]
    """Absolute paths, bound read-only at the same place: never a home or a checkout, unless Python itself lives there,
    and then only its own library."""
    hidden: tuple[str, ...]
    """Folders within `shown` that are covered: what others have installed."""
    links: tuple[tuple[str, str], ...]
    """(target, path) of links that lead to what is shown."""


def find_interpreter(path: str | None, uid: int | None) -> Interpreter:
    """The Python at `path`, or else this very one, or else the system's: the first that the user `uid` (None = this
    one) can start. Raises ConfigError."""
    candidates = [path] if path else [os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"]
    problems = []
    for candidate in dict.fromkeys(os.path.realpath(c) for c in candidates):
        if not Path(candidate).is_file():
            problems.append(f"{candidate} is not there")
        elif uid is not None and not _is_open_to_all(Path(candidate)):
            problems.append(f"{candidate} lies where only its owner can go, and programs run as another user")
        else:
            found = _describe(candidate)
            if isinstance(found, Interpreter):
                return found
            problems.append(found)
    raise ConfigError(
        f"no Python for the sandbox: {'; '.join(problems)}. Install one (apt-get install python3), or "
        "name one: python=PATH"
    )


def _describe(path: str) -> Interpreter | str:
    """The interpreter, or what is wrong with it."""
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-B", "-c", _DESCRIBE], capture_output=True, text=True, timeout=30, check=True, env={}
        )
        facts = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        return f"{path} does not run: {e}"
    if facts["version"] < [3, 9]:
        return f"{path} is Python {'.'.join(map(str, facts['version']))}; 3.9 or newer is needed"
    libraries = [Path(p) for p in facts["libraries"]]
    own = [*map(Path, facts["folders"]), *libraries, Path(facts["executable"])]
    shown = [p for p in _LIBRARIES if Path(p).is_dir() and not Path(p).is_symlink()]
    links = [(str(Path(f"/{n}").readlink()), f"/{n}") for n in ("lib", "lib64") if Path(f"/{n}").is_symlink()]
    shown += [f"/{n}" for n in ("lib", "lib64") if Path(f"/{n}").is_dir() and not Path(f"/{n}").is_symlink()]
    for each in sorted(own, key=lambda p: len(p.parts)):
        if not any(Path(os.path.realpath(each)).is_relative_to(known) for known in shown):
            shown.append(str(each))
            links += _names_of(each) if each in libraries else ()
    hidden = [str(p / n) for p in own for n in ("site-packages", "dist-packages") if (p / n).is_dir()]
    outside = [p for p in hidden if any(Path(p).is_relative_to(s) for s in shown) and not p.startswith("/usr/lib/")]
    return Interpreter(executable=facts["executable"], shown=tuple(shown), hidden=tuple(outside), links=tuple(links))


def _names_of(library: Path) -> list[tuple[str, str]]:
    """The links beside a library that lead to it: programs ask for it by one of them."""
    beside = (p for p in library.parent.iterdir() if p.is_symlink() and p.name.startswith(library.name.split(".so")[0]))
    return [(str(library), str(p)) for p in sorted(beside) if p.resolve() == library]


def _is_open_to_all(path: Path) -> bool:
    readable = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & readable == readable and all(p.stat().st_mode & stat.S_IXOTH for p in path.parents)
