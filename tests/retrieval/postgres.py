"""A PostgreSQL with pgvector for tests: the real one, from the package pgserver, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


@contextmanager
def running_postgres() -> Iterator[str]:
    """The DSN of a server that ends with the block. Skips the test where the package is missing."""
    found = find_spec("pgserver")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs pgserver: pip install 'agentgrpo[dev]'")
    programs = Path(found.submodule_search_locations[0]) / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has at most 107 characters
    data = folder / "data"
    # PostgreSQL refuses to run as root
    user = "nobody" if os.geteuid() == 0 else None
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        if not all(parent.stat().st_mode & 0o001 for parent in programs.parents):  # an environment in a private folder
            package = programs.parents[1]
            for name in (package.name, f"{package.name}.libs"):  # the programs look for their libraries beside it
                shutil.copytree(package.parent / name, folder / name, symlinks=True)
            programs = folder / package.name / "pginstall" / "bin"

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, *arguments], user=user, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout

    try:
        run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "utf8", "--no-sync")
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c full_page_writes=off"
        run("pg_ctl", "-D", str(data), "-w", "-t", "60", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
