"""Run hidden tests in the sandbox and count how many the files of a workspace pass."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentgrpo.core.concurrency import Limiter
from agentgrpo.core.errors import ConfigError, DataError, ToolError
from agentgrpo.core.types import Task
from agentgrpo.tasks.files import problem_of
from agentgrpo.tools.directory import FileProblem
from agentgrpo.tools.python import files_in, plain_text
from agentgrpo.tools.sandbox.base import MIB, End, Finished, Sandbox, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox
from agentgrpo.tools.sandbox.unsafe import UnsafeSubprocess

TESTS = "tests"
"""The key of a task's metadata: {"test_add.py": its text}."""
TESTS_PASSED, TESTS_FAILED = "tests_passed", "tests_failed"
"""Metrics of an episode: the share of its task's tests that passed, and the number that failed."""
_HERE = Path(__file__).parent
_SUITE = (_HERE / "suite.py").read_text(encoding="utf-8")
_TESTEE = (_HERE / "testee.py").read_text(encoding="utf-8")
_FIRST = "import sys\nsys.path[:] = [place for place in sys.path if place]\n"
"""Later imports cannot load files of the policy."""
_READY = "ready"
_START_S = 10.0
"""Extra seconds for the start and for a test that no signal interrupts."""
_BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTEST = "pytest"


@dataclass(frozen=True, slots=True)
class TestResults:
    """For each "file::name", the reason why the test failed; "" if it passed. For people only: it may quote the
    policy's code.
    """

    __test__ = False  # tells pytest that this is not a test class
    why: Mapping[str, str]

    @property
    def passed(self) -> int:
        return sum(not why for why in self.why.values())

    @property
    def total(self) -> int:
        return len(self.why)

    @property
    def share(self) -> float:
        return self.passed / self.total

    @property
    def metrics(self) -> dict[str, float]:
        return {TESTS_PASSED: self.share, TESTS_FAILED: float(self.total - self.passed)}


class HiddenTests:
    """Runs tests against the files of a workspace:

    Tests are functions and methods called test_..., in plain classes or unittest.TestCase, and use the standard library
    only. Each test runs in a fresh sandbox with a copy of the policy's files; the test files never lie beside them. The
    policy's code runs in a separate process: it answers the test's questions with plain data and never sees an operand
    of a comparison. Therefore no file of the policy (conftest.py, sitecustomize.py, json.py), no os._exit, no printed
    line, no patched assertion and no object that equals everything makes a test pass. Episodes share one instance."""

    def __init__(
        self,
        *,
        answer_file: str = "",
        timeout_s: float = 60.0,
        test_timeout_s: float = 5.0,
        memory_mb: int = 256,
        disk_mb: int = 16,
        processes: int = 16,
        max_concurrent: int = 4,
        sandbox: Literal["bubblewrap", "unsafe_subprocess"] = "bubblewrap",
        python: str | None = None,
    ) -> None:
        """answer_file: the file in which the code of the answer is saved, such as solution.py; "" = the answer is not
        saved. timeout_s: limit of all tests together. test_timeout_s: limit of each test. The other arguments are those
        of the python tool."""
        for key, seconds in (("timeout_s", timeout_s), ("test_timeout_s", test_timeout_s)):
            if not seconds > 0:
                raise ConfigError(f"hidden tests: {key}={seconds}; more than 0 seconds are allowed")
        if answer_file and (problem := problem_of({answer_file: ""})):
            raise ConfigError(f"hidden tests: answer_file: {problem}")
        self.answer_file = answer_file
        self._timeout_s, self._test_timeout_s = timeout_s, test_timeout_s
        self._limits = SandboxLimits(
            timeout_s=test_timeout_s + _START_S,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            processes=processes,
        )
        self._limiter = Limiter(max_concurrent)
        self._kind, self._python = sandbox, python

    async def score(self, task: Task, workspace: Path, answer: str | None = None) -> TestResults:
        """Run the task's own tests, metadata.tests. Raises DataError as refuse_task does."""
        self.refuse_task(task)
        more = {self.answer_file: code_in(answer or "").encode("utf-8", "replace")} if self.answer_file else {}
        return await self.run(workspace, task.metadata[TESTS], more, where=f"task {task.id}")

    def refuse_task(self, task: Task) -> None:
        """Raise DataError for a task without tests, or with tests that cannot be run or passed."""
        if TESTS not in task.metadata:
            raise DataError(
                f'task {task.id} has no tests; give it some: "{TESTS}": {{"test_it.py": "from solution import ..."}}'
            )
        tests, where = task.metadata[TESTS], f"task {task.id}"
        names_of(tests, where)
        for file, source in tests.items():
            for node in objects_compared(ast.parse(source), tests):
                raise DataError(
                    f"{where}, {file}, line {node.lineno}: {ast.unparse(node)} lets the solution judge itself, "
                    "which never passes; compare plain values of both objects, such as vars(x), x.name or str(x)"
                )

    async def run(
        self,
        workspace: Path,
        tests: Mapping[str, str],
        more: Mapping[str, bytes] | None = None,
        *,
        where: str = "tests",
    ) -> TestResults:
        """more: files added to those in `workspace`; they replace files of the same name. If there are too many files
        or they are too large, every test fails. Raises DataError for tests that cannot be run, and ToolError if the
        sandbox fails."""
        names = names_of(tests, where)
        try:
            files = await asyncio.to_thread(files_in, workspace, self._limits.disk_mb * MIB)
        except FileProblem as e:
            return TestResults({f"{file}::{name}": str(e) for file, name in names})
        common = {"tests": dict(tests), "testee": f"{_FIRST}{_TESTEE}", "timeout_s": self._test_timeout_s}
        why = dict.fromkeys((f"{file}::{name}" for file, name in names), "the time of all tests was over")
        async with self._limiter:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    for file, name in names:
                        order = {**common, "file": file, "name": name}
                        program = SandboxProgram(
                            code=f"{_FIRST}{_SUITE}\nmain({order!r})\n", files={**files, **(more or {})}
                        )
                        why[f"{file}::{name}"] = _why(await self.sandbox.run(program))
        return TestResults(why)

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox, created and self-tested on first use. Raises ConfigError if its isolation does not hold."""
        if self._kind == "unsafe_subprocess":
            return UnsafeSubprocess(self._limits, python=self._python)
        return BubblewrapSandbox(self._limits, python=self._python)

    async def close(self) -> None:
        if "sandbox" in self.__dict__:
            await self.sandbox.close()


def _why(finished: Finished) -> str:
    """The reason why the test failed; "" if it passed."""
    lines = plain_text(finished.output).splitlines()
    if not lines or lines[0] != _READY:
        said = plain_text(finished.errors).strip().rpartition("\n")[2] or f"exit code {finished.exit_code}"
        raise ToolError(f"hidden tests cannot be started in the sandbox: {said}")
    try:
        return str(json.loads(lines[1]))
    except (IndexError, ValueError):  # no result, or half of one
        return "it did not end in time" if finished.end is End.TIMEOUT else "its process was ended"


# --- Find the tests without running anything.


def names_of(tests: Any, where: str) -> list[tuple[str, str]]:
    """(file, test) of every test; a method is "Class.test_name". Raises DataError."""
    if problem := problem_of(tests):
        raise DataError(f"{where}: {problem.replace('metadata.files', TESTS)}")
    found = [(file, name) for file, source in tests.items() for name in _names_in(f"{where}, {file}", file, source)]
    if not found:
        raise DataError(f"{where}: {sorted(tests) or 'no files'} have no tests; a function test_... is needed")
    return found


def _names_in(where: str, file: str, source: str) -> list[str]:
    if not file.endswith(".py"):
        raise DataError(f"{where}: tests must be Python files (*.py); write data that they read as text in them")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise DataError(f"{where} is not valid Python: {e}") from e
    for node in ast.walk(tree):
        imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if any(name.split(".")[0] == _PYTEST for name in imported):
            raise DataError(f"{where} imports pytest, which the sandbox does not have; use assert, or unittest")
    return list(_tests_of(where, tree))


def _tests_of(where: str, tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            if node.args.args or node.args.kwonlyargs:
                raise DataError(f"{where}: {node.name} takes arguments, but tests are called without any")
            yield node.name
        elif isinstance(node, ast.ClassDef) and _has_tests(node):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test"):
                    yield f"{node.name}.{inner.name}"


def _has_tests(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") or any(ast.unparse(base).endswith("TestCase") for base in node.bases)


_COMPARING = ("assertEqual", "assertNotEqual", "assertLess", "assertLessEqual", "assertGreater", "assertGreaterEqual")


def objects_compared(tree: ast.Module, files: Mapping[str, str]) -> Iterator[ast.expr]:
    """Yield comparisons between objects that the test file visibly creates by calling classes of the solution."""
    nodes = list(ast.walk(tree))
    theirs: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [(node.module or "")] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            if not any(_is_known(module, files) for module in modules):
                theirs |= {name.asname or name.name for name in node.names}

    def is_made(node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in theirs and name.lstrip("_")[:1].isupper()
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                return module in theirs and name.lstrip("_")[:1].isupper()
        return False

    assigned: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)

    def is_object(node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            return is_object(node.left) and is_object(node.right)
        values = assigned.get(node.id, []) if isinstance(node, ast.Name) else [node]
        return bool(values) and all(map(is_made, values))

    for node in nodes:
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COMPARING:
            sides = node.args[:2]
        else:
            continue
        if len(sides) > 1 and all(map(is_object, sides)):
            yield node


def _is_known(module: str, files: Mapping[str, str]) -> bool:
    """Whether the module belongs to the standard library or the tests, not to the solution."""
    return module.partition(".")[0] in sys.stdlib_module_names or f"{module.replace('.', '/')}.py" in files


def code_in(answer: str) -> str:
    """Return the last block between ``` lines of an answer, or the whole answer if it has no such block."""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer
