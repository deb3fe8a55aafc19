"""The python tool: what a program prints, how it fails, what it sees of the workspace, and when it is run at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Outcome
from agentgrpo.tools.base import Tool, ToolResult
from agentgrpo.tools.python import PythonTool, keep_files
from agentgrpo.tools.sandbox.base import End, Finished, Sandbox, SandboxProgram
from tests.tools.bubblewrap import PROBLEM
from tests.tools.places import Place


class Counting:
    """A sandbox that counts what it is asked to run."""

    def __init__(self, inner: Sandbox | None = None, end: End = End.EXITED, exit_code: int = 0) -> None:
        self.programs: list[str] = []
        self._inner, self._end, self._exit_code = inner, end, exit_code

    async def run(self, program: SandboxProgram) -> Finished:
        self.programs.append(program.code)
        if self._inner is not None:
            return await self._inner.run(program)
        await asyncio.sleep(0.01)
        return Finished(end=self._end, exit_code=self._exit_code, output=program.code.encode(), errors=b"")

    async def close(self) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("3\n4\n", encoding="utf-8")
    (tmp_path / "secret").symlink_to("/etc/hostname")
    return Place(tmp_path)


def tool(**keywords: Any) -> PythonTool:
    if PROBLEM:
        pytest.skip(PROBLEM)
    return PythonTool(**keywords)


async def run(python: PythonTool, code: str, place: Place) -> tuple[Outcome, str]:
    result = await python.call({"code": code}, place)
    assert result.detail == ""
    return result.outcome, result.text


@pytest.fixture(scope="module")
def python() -> PythonTool:
    return tool(timeout_s=0.5, max_output_bytes=1000)


FAILED, OK = Outcome.RUNTIME_ERROR, Outcome.SUCCESS


@pytest.mark.parametrize(
    ("code", "outcome", "text"),
    [
        ("print(17 // 5)\nprint('ä')", OK, "3\nä"),
        ("x = 1", OK, "nothing was printed"),
        ("print('\\x1b[31mred\\x1b[0m')", OK, "red"),
        ("print(1)\nprint(1 / 0)", FAILED, "1\nerror: ZeroDivisionError: division by zero"),
        ("class E(Exception): pass\nraise E('a\\nb')", FAILED, "error: b"),
        ("print(", FAILED, "error: SyntaxError: '(' was never closed"),
        ("raise SystemExit(4)", FAILED, "error: exit status 4"),
        ("import os; os.abort()", FAILED, "error: killed by signal 11"),
        (
            "import time; print('early', flush=True); time.sleep(9)",
            Outcome.TIMEOUT,
            "early\nerror: not done within 0.5 s",
        ),
        ("print('x' * 1500)", FAILED, "x" * 1000 + "\nerror: more than 1000 bytes printed; the program was stopped"),
        ("x = bytes(10 ** 9)", FAILED, "error: MemoryError"),
        ("import numpy", FAILED, "error: ModuleNotFoundError: No module named 'numpy'"),
        ("open('a.txt', 'w').write('x'); print(open('a.txt').read())", OK, "x"),
        (
            "print(open('data/a.txt').read())",
            FAILED,
            "error: FileNotFoundError: [Errno 2] No such file or directory: 'data/a.txt'",
        ),
    ],
)
async def test_outcomes(python: PythonTool, place: Place, code: str, outcome: Outcome, text: str) -> None:
    assert await run(python, code, place) == (outcome, text)


async def test_a_program_that_is_no_text(python: PythonTool, place: Place) -> None:
    assert await run(python, "\ud800", place) == (Outcome.INVALID_ARGS, "error: the program is not valid Unicode")


async def test_it_reads_copies_of_the_workspace_and_no_links(place: Place) -> None:
    python = tool(workspace="read_only")
    code = "import os\nprint(sum(map(int, open('data/a.txt'))), os.listdir())\nopen('data/a.txt', 'w').write('9')"
    assert await run(python, code, place) == (OK, "7 ['data']")
    assert (place.path / "data" / "a.txt").read_text() == "3\n4\n"


async def test_what_it_writes_is_kept_where_that_is_allowed(place: Place) -> None:
    python = tool(workspace="read_write")
    code = "import os\nopen('data/a.txt', 'a').write('5\\n')\nopen('new.txt', 'w').write('n')\nos.symlink('/etc', 'l')"
    assert await run(python, code, place) == (OK, "nothing was printed")
    assert await run(python, "print(sum(map(int, open('data/a.txt'))), open('new.txt').read())", place) == (OK, "12 n")
    assert sorted(p.name for p in place.path.iterdir()) == ["data", "new.txt", "secret"]
    assert (python.exclusive, tool().exclusive) == (True, False)


async def test_what_it_cannot_keep_it_says(place: Place) -> None:
    python = tool(workspace="read_write", timeout_s=0.5)
    text = "error: not done within 0.5 s"
    assert await run(python, "open('f', 'w').write('x')\nwhile True: pass", place) == (Outcome.TIMEOUT, text)
    assert not (place.path / "f").exists()
    many = "for n in range(1100): open(str(n), 'w').close()"
    outcome, text = await run(tool(workspace="read_write"), many, place)
    assert (outcome, text[:46]) == (FAILED, "error: not all files of the program are kept: ")


@pytest.mark.parametrize("name", ["../out", "/out", "data/../../out", "secret/x", "a\0b", "x" * 300, ""])
def test_names_that_a_program_makes_up_stay_inside(place: Place, name: str) -> None:
    before = sorted(p.name for p in place.path.parent.iterdir())
    problem = keep_files(place.path, {}, {name: b"x"})
    assert problem is not None
    assert problem.startswith("not all files of the program are kept: ")
    assert sorted(p.name for p in place.path.parent.iterdir()) == before


async def test_a_workspace_too_large_for_it(place: Place) -> None:
    (place.path / "big").write_bytes(bytes(1 << 20))
    python = tool(workspace="read_only", disk_mb=1)
    assert await run(python, "print(1)", place) == (FAILED, "error: the workspace is too large for a program to see")


async def test_many_small_files_take_a_page_each(place: Place) -> None:
    """Of the sandbox's disk, which has 256 of them here; else the policy could make the machine seem to fail."""
    for i in range(300):
        (place.path / str(i)).write_bytes(b"x")
    python = tool(workspace="read_only", disk_mb=1)
    assert await run(python, "print(1)", place) == (FAILED, "error: the workspace is too large for a program to see")


async def test_equal_programs_run_once(place: Place) -> None:
    python = tool(cache_size=2)
    python._sandbox = counting = Counting()
    results: list[ToolResult] = await asyncio.gather(*(python.call({"code": c}, place) for c in "abab"))
    assert ([r.text for r in results], counting.programs) == (list("abab"), ["a", "b"])
    for code in "bacab":
        await python.call({"code": code}, place)
    assert counting.programs == ["a", "b", "c", "b"]  # c took the place of b, and b that of c


async def test_equal_programs_run_again_where_the_files_differ_or_are_written(place: Place) -> None:
    python = tool(workspace="read_only")
    python._sandbox = counting = Counting()
    for content in ("1", "2", "2"):
        (place.path / "data" / "a.txt").write_text(content, encoding="utf-8")
        await python.call({"code": "a"}, place)
    assert counting.programs == ["a", "a"]
    writing = tool(workspace="read_write")
    writing._sandbox = counting = Counting()
    for _ in range(2):
        await writing.call({"code": "a"}, place)
    assert counting.programs == ["a", "a"]


@pytest.mark.parametrize(
    ("end", "exit_code", "runs"),
    [
        (End.TIMEOUT, 137, 2),
        (End.EXITED, 137, 2),  # the kernel had no memory left
        (End.EXITED, 139, 1),
        (End.FLOODED, 137, 1),  # killed for it
    ],
)
async def test_what_may_be_the_machines_fault_is_not_kept(place: Place, end: End, exit_code: int, runs: int) -> None:
    python = tool()
    python._sandbox = counting = Counting(end=end, exit_code=exit_code)
    for _ in range(2):
        await python.call({"code": "a"}, place)
    assert counting.programs == ["a"] * runs


async def test_more_files_than_are_told_of_are_no_output(place: Place) -> None:
    python = PythonTool(sandbox="unsafe_subprocess", workspace="read_write", disk_mb=1)
    code = "for n in range(6): open(str(n), 'wb').write(bytes(2 ** 20))\nprint('done')"
    text = "done\nerror: too many files, or too large ones; none of the program's are kept"
    assert await run(python, code, place) == (FAILED, text)
    assert sorted(p.name for p in place.path.iterdir()) == ["data", "secret"]
    await python.close()


async def test_no_more_at_a_time_than_allowed(place: Place) -> None:
    python = tool(max_concurrent=3, cache_size=0)
    at_once, most = 0, 0

    class Watching:
        async def run(self, program: SandboxProgram) -> Finished:
            nonlocal at_once, most
            at_once, most = at_once + 1, max(most, at_once + 1)
            await asyncio.sleep(0.005)
            at_once -= 1
            return Finished(end=End.EXITED, exit_code=0, output=b"", errors=b"")

        async def close(self) -> None: ...

    python._sandbox = Watching()
    await asyncio.gather(*(python.call({"code": str(n)}, place) for n in range(20)))
    assert (at_once, most) == (0, 3)


async def test_the_unsafe_way_runs_the_same_program(place: Place) -> None:
    python = PythonTool(sandbox="unsafe_subprocess", workspace="read_write")
    assert await run(python, "print(open('data/a.txt').read())\nopen('x', 'w').write('y')", place) == (OK, "3\n4")
    assert (place.path / "x").read_text() == "y"
    await python.close()


def test_what_the_policy_is_told(python: PythonTool) -> None:
    assert isinstance(python, Tool)
    what = "Runs a Python program and returns what it prints."
    limits = "It finds no files; standard library only, no network, 0.5 seconds."
    assert (python.spec.name, python.spec.description) == ("python", f"{what} {limits}")


def test_a_cache_of_less_than_nothing() -> None:
    with pytest.raises(ConfigError, match=r"python tool: cache_size=-1; 0 or more is allowed"):
        PythonTool(cache_size=-1)
