"""What somebody may have put into a run directory: each of its files in twenty ways, and the command line in a child
process that has little memory and no more time than a test can wait for."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from agentgrpo.cli.main import main
from agentgrpo.core.durable import MANIFEST, _manifest_bytes
from agentgrpo.training.checkpoint import STATE

WAIT_S = 60.0
REFUSED_S = 10.0
"""CPU seconds within which a refusal must come."""
MEMORY = 4 * 2**30
_NUMBER = re.compile(r"(?<=[:\[ ])-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,\]}\s])")


_FRACTION = re.compile(r"(?<=[:\[ ])-?\d+\.\d+(?:e-?\d+)?(?=[,\]}\s])")


def _numbers(text: str, which: re.Pattern[str] = _NUMBER) -> Callable[[Path], None]:
    return lambda path: (path.write_text(which.sub(text, path.read_text("utf-8", "replace"))), None)[1]


def _bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(data), None)[1]


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _nested(path: Path) -> None:
    path.write_text("[" * 100_000 if path.suffix != ".yaml" else "a: " + "[" * 3000 + "]" * 3000)


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


WAYS: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "cut": _cut,
    "null": _bytes(b"null\n"),
    "number": _bytes(b"7\n"),
    "text": _bytes(b'"x"\n'),
    "list": _bytes(b"[1, [2]]\n"),
    "object": _bytes(b"{}\n"),
    "no text": _bytes(b"\xff\xfe\x00\x80{}"),
    "zeros": _bytes(bytes(1000)),
    "nested": _nested,
    "all huge": _numbers("9" * 5000),
    "all large": _numbers("9" * 400),
    "all negative": _numbers("-7"),
    "all NaN": _numbers("NaN"),
    "all texts": _numbers('"x"'),
    "fractions are lists": _numbers("[1]", _FRACTION),
    "folder": _instead(Path.mkdir),
    "nowhere": _instead(lambda path: path.symlink_to("/nowhere/x")),
    "circle": _instead(lambda path: path.symlink_to(path.name)),
    "pipe": _instead(os.mkfifo),
    "device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "gone": Path.unlink,
}


def sign(run: Path) -> None:
    """Make all hashes right again, as whoever has made the directory would."""
    for checkpoint in (run / "checkpoints").glob("step-*"):
        with suppress(
            ValueError, TypeError, LookupError, OSError, RecursionError
        ):  # nobody can: it is no such file any more
            row = json.loads((checkpoint / STATE).read_bytes() if (checkpoint / STATE).is_file() else b"")
            for log in row["state"]["logs"]:
                data = (run / log["file"]).read_bytes() if (run / log["file"]).is_file() else b""
                log |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            (checkpoint / STATE).write_text(json.dumps(row))
        files = {
            path.relative_to(checkpoint).as_posix(): path.read_bytes()
            for path in sorted(checkpoint.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        }
        listed = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in files.items()}
        with suppress(OSError):
            (checkpoint / MANIFEST).write_bytes(_manifest_bytes(listed))


class Said(NamedTuple):
    code: int | None
    """None: it did not end."""
    lines: list[str]
    cpu_s: float
    """Of it and its children."""

    @property
    def is_answer(self) -> bool:
        """Whether it works, or is refused soon and in one line, after warnings of files that are damaged, and with the
        exit code of a refusal. 1: a replay that differs."""
        said = self.code in range(2, 12) and self.lines[-1:] and self.lines[-1].startswith("agentgrpo: ")
        refused = said and self.cpu_s < REFUSED_S
        is_known = not any(line.startswith("Traceback ") for line in self.lines)
        return is_known and (self.code in (0, 1) or bool(refused))


def answer(argv: Sequence[str], said: Path) -> Said:
    """Of `agentgrpo ARGV`; what it prints on stderr goes through the file `said`."""
    child = get_context("fork").Process(target=_main, args=(argv, said))
    before = _cpu_s_of_children()
    child.start()
    child.join(WAIT_S)
    code = child.exitcode
    child.kill()
    child.join()
    return Said(code, said.read_text("utf-8", "replace").splitlines(), _cpu_s_of_children() - before)


def _cpu_s_of_children() -> float:
    """Of all that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _main(argv: Sequence[str], said: Path) -> None:
    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)  # not what pytest has put in place
    logging.getLogger().handlers.clear()  # an earlier test's, which write to what is closed by now
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + MEMORY,) * 2)
    try:
        code = main(argv)
    except BaseException:
        traceback.print_exc()
        code = 99
    os._exit(code)
