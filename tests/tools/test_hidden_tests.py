"""Hidden tests in the sandbox: what they can ask of a solution, and what a solution cannot do to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, DataError, ToolError
from agentgrpo.tools.hidden_tests import sandboxed
from agentgrpo.tools.hidden_tests.sandboxed import HiddenTests, TestResults, code_in, names_of
from agentgrpo.tools.sandbox.base import End, Finished
from tests.builders import task
from tests.tools.bubblewrap import needs_bubblewrap

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from attacks.agreeable import KNOWING_NOTHING
from attacks.assertions import (
    FORMS,
    REFUSED,
    REFUSED_OF,
    Form,
    asserted,
    attempts,
    failed_by_right,
    passed_by,
    whys,
)


def run(folder: Path, files: Mapping[str, str], tests: Mapping[str, str], **settings: object) -> TestResults:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    async def once() -> TestResults:
        hidden = HiddenTests(**settings)
        try:
            return await hidden.run(folder, tests)
        finally:
            await hidden.close()

    return asyncio.run(once())


def outcome(results: TestResults) -> dict[str, bool]:
    return {name.partition("::")[2]: not why for name, why in results.why.items()}


# --- What tests can ask.

SOLUTION = """
from dataclasses import dataclass
from fractions import Fraction

def add(a, b): return a + b
def sort_it(x): x.sort()
def refuse(): raise ValueError("no")
def count(n): yield from range(n)
def data(): return [None, True, 2**100, 1.5, "ä", b"x", (1,), {1: {2}}, frozenset([3]), 1j, Fraction(1, 3)]
def echo(x): return x

class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)

@dataclass
class Vector:
    x: int
    y: int
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
"""
TESTS = """
import unittest
from fractions import Fraction
from solution import Stack, Vector, add, count, data, echo, refuse, sort_it
from inside.numbers import FIVE

def test_a_call(): assert add(2, 3) == FIVE
def test_that_fails(): assert add(2, 3) == 6
def test_data():
    assert data() == [None, True, 2**100, 1.5, "ä", b"x", (1,), {1: {2}}, frozenset([3]), 1j, Fraction(1, 3)]
def test_there_and_back(): assert echo(data()) == data()
def test_an_argument_is_changed():
    numbers = [3, 1, 2]
    sort_it(numbers)
    assert numbers == [1, 2, 3]
def test_a_generator(): assert list(count(3)) == [0, 1, 2]
def test_an_object_has_a_length(): assert len(Stack()) == 0
async def test_that_is_awaited(): assert False
def test_a_program():
    import subprocess, sys
    done = subprocess.run([sys.executable, "main.py"], input="3 4", capture_output=True, text=True)
    assert done.stdout == "7\\n"
def test_a_star():
    names = {}
    exec("from solution import *", names)
    assert names["add"](1, 2) == 3

class TestObjects(unittest.TestCase):
    def test_a_method(self):
        stack = Stack()
        stack.push(1)
        stack.push("two")
        self.assertEqual(stack.pop(), "two")
        self.assertEqual(len(stack), 1)
    def test_an_error(self):
        with self.assertRaises(IndexError):
            Stack().pop()
        self.assertRaises(ValueError, refuse)
    def test_plain_values_of_objects(self):
        self.assertEqual(vars(Vector(1, 2) + Vector(1, 1)), {"x": 2, "y": 3})
        self.assertIsInstance(Vector(1, 2), Vector)
    @unittest.skip("one that is not run has not passed")
    def test_skipped(self): pass
"""


@needs_bubblewrap
def test_what_tests_can_ask(tmp_path: Path) -> None:
    files = {"solution.py": SOLUTION, "main.py": "print(sum(map(int, input().split())))"}
    results = run(tmp_path, files, {"test_all.py": TESTS, "inside/numbers.py": "FIVE = 5"})
    failed = {name for name, passed in outcome(results).items() if not passed}
    assert failed == {"test_that_fails", "test_that_is_awaited", "TestObjects.test_skipped"}
    assert (results.passed, results.total) == (11, 14)
    assert results.share == pytest.approx(11 / 14)


# --- What a solution tries.

FAKE = "def add(a, b): return 0\n"
EVERYTHING = """
class Everything:
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __le__(self, other): return True
    def __sub__(self, other): return self
    def __rsub__(self, other): return self
    def __abs__(self): return self
    def __hash__(self): return 5
    def __contains__(self, item): return True
    def __getattr__(self, name): return self
def add(a, b): return Everything()
"""
SAYS_PASSED = """
import glob, os
line = b'\\n["test_it.py", "test_prints", ""]\\n""\\n'
for place in [1, 2, *range(3, 40), *glob.glob("/proc/[0-9]*/fd/*")]:
    try:
        os.write(place if isinstance(place, int) else os.open(place, os.O_WRONLY | os.O_NONBLOCK), line)
    except OSError:
        pass
"""
PATCHES = """
import builtins, gc, sys, unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
builtins.AssertionError = None
for frame in sys._current_frames().values():
    while frame:
        frame.f_globals["why"] = ""
        frame = frame.f_back
"""
STEALS = """
import glob, re
def find():
    for place in glob.glob("/proc/[0-9]*/*") + glob.glob("/tmp/**/*", recursive=True):
        try:
            if place.endswith("/mem"):
                with open(place.replace("mem", "maps")) as maps, open(place, "rb", 0) as memory:
                    for line in maps:
                        start, end = (int(n, 16) for n in line.split()[0].split("-"))
                        if "r" in line.split()[1] and end - start < 1 << 26:
                            try:
                                memory.seek(start)
                                yield memory.read(end - start)
                            except (OSError, ValueError, OverflowError):
                                pass
            else:
                with open(place, "rb") as file:
                    yield file.read(1 << 20)
        except OSError:
            pass
def secret():
    return next((found[0].decode() for text in find() if (found := re.search(rb"sesame-[0-9]+", text))), "")
"""
ATTACKS = {
    "wrong": FAKE,
    "exits": "import os\nos._exit(0)",
    "leaves": "raise SystemExit(0)",
    "is_everything": EVERYTHING,
    "prints": f"{SAYS_PASSED}{FAKE}",
    "patches": f"{PATCHES}{FAKE}",
    "kills": f"import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n{FAKE}",
    "kills_all": f"import os, signal\nos.kill(-1, signal.SIGKILL)\n{FAKE}",
}
ENDLESS = {
    "hangs": "while True: pass",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "floods": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "floods_us": "import os, sys\nwhile True: os.write(int(sys.argv[2]), b'\\xff' * 65536)",
}
SAYS_IT_PASSED = 'import os\nos.write(1, b\'ready\\n["test_it.py", "test_wrong", ""]\\n\')\nos._exit(0)\n'
RUN_BY_ITSELF = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.py", "test_it.py", "__main__.py")
OF_THE_LIBRARY = ("unittest.py", "json.py", "_ctypes.py", "subprocess.py", "asyncio.py", "encodings/__init__.py")
EVIL_FILES = dict.fromkeys(RUN_BY_ITSELF, SAYS_IT_PASSED) | dict.fromkeys(OF_THE_LIBRARY, "raise SystemExit(0)\n")
TEST = "def test_{0}():\n    import {0}\n    found = {0}.add(2, 3)\n    assert found == 5 or abs(found - 5) < 1e-9\n"


def attacks_that_pass(folder: Path, attacks: Mapping[str, str], **settings: object) -> set[str]:
    tests = {"test_it.py": "".join(map(TEST.format, attacks))}
    results = run(
        folder, {**{f"{name}.py": source for name, source in attacks.items()}, **EVIL_FILES}, tests, **settings
    )
    assert results.total == len(attacks)
    return {name for name, passed in outcome(results).items() if passed}


@needs_bubblewrap
def test_no_trick_passes_a_test_and_each_costs_only_itself(tmp_path: Path) -> None:
    assert attacks_that_pass(tmp_path, {**ATTACKS, "honest": SOLUTION}) == {"test_honest"}


@needs_bubblewrap
def test_what_does_not_end_is_ended(tmp_path: Path) -> None:
    assert attacks_that_pass(tmp_path, ENDLESS, test_timeout_s=0.3) == set()


@needs_bubblewrap
def test_nobody_reads_what_a_test_expects(tmp_path: Path) -> None:
    tests = "import thief\ndef test_it():\n    assert thief.secret() == 'sesame-4711'\n"
    results = run(tmp_path, {"thief.py": STEALS}, {"test_it.py": tests}, test_timeout_s=20.0)
    assert results.passed == 0
    assert "AssertionError" in results.why["test_it.py::test_it"], "the thief has not come to look"


@needs_bubblewrap
def test_the_time_of_all_is_limited(tmp_path: Path) -> None:
    tests = "def test_it():\n    while True: pass\n"
    results = run(tmp_path, {}, {"test_it.py": tests}, timeout_s=2.0)
    assert results.why == {"test_it.py::test_it": "the time of all tests was over"}


def test_a_workspace_that_is_too_large_passes_nothing(tmp_path: Path) -> None:
    for i in range(1001):
        (tmp_path / f"{i}").touch()
    assert run(tmp_path, {}, {"test_it.py": "def test_it(): pass"}).passed == 0


@pytest.mark.parametrize(
    ("output", "end", "why"),
    [
        (b'ready\n""', End.EXITED, ""),
        (b'ready\n"Asser', End.EXITED, "its process was ended"),
        (b"ready\n", End.EXITED, "its process was ended"),
        (b"ready\n", End.TIMEOUT, "it did not end in time"),
    ],
)
def test_what_is_told_of_a_test(output: bytes, end: End, why: str) -> None:
    assert sandboxed._why(Finished(end=end, exit_code=0, output=output, errors=b"")) == why


def test_a_suite_that_does_not_begin_is_nobodys_failure() -> None:
    with pytest.raises(ToolError, match="cannot be started in the sandbox: no memory"):
        sandboxed._why(Finished(end=End.EXITED, exit_code=3, output=b"", errors=b"x\nno memory\n"))


# --- How tests usually ask: a right solution passes, and none that knows nothing.


async def outcomes(solution: str, forms: list[Form]) -> list[str]:
    hidden = HiddenTests(timeout_s=300.0)
    try:
        return await whys(hidden, solution, forms)
    finally:
        await hidden.close()


@needs_bubblewrap
async def test_usual_forms_are_passed_by_right_solutions_alone() -> None:
    hidden = HiddenTests(timeout_s=300.0)
    try:
        assert await failed_by_right(hidden, FORMS[::20]) == {}
        assert await passed_by(hidden, KNOWING_NOTHING["agreeable"], FORMS[::20]) == []
        for i, name in enumerate(
            ("iterates", "learns from operands", "remembers arguments", "nan", "stops iterations")
        ):
            assert await passed_by(hidden, KNOWING_NOTHING[name], FORMS[i::120]) == [], name
    finally:
        await hidden.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_bubblewrap
async def test_all_forms_are_passed_by_right_solutions_alone() -> None:
    tried = await attempts(step=8)
    print(f"{len(FORMS)} forms, {len(KNOWING_NOTHING)} solutions that know nothing, {len(tried)} attempts")
    assert len(FORMS) >= 60
    assert [what for what, is_right in tried if not is_right] == []


@needs_bubblewrap
async def test_what_only_the_solution_could_say_is_refused_with_what_to_say_instead() -> None:
    reasons = await outcomes(REFUSED_OF, [asserted(expression, "") for expression in REFUSED])
    assert [why for (_, instead), why in zip(REFUSED.items(), reasons, strict=True) if instead not in why] == []


@needs_bubblewrap
@pytest.mark.parametrize("name", ["agreeable", "coroutines", "a class of exceptions"])
async def test_no_object_is_true_or_unequal_by_itself(name: str) -> None:
    forms = [asserted(expression, "") for expression in ("f(3)", "Thing(3)", "f(3) != 5", "f(3).startswith('a')")]
    assert all(await outcomes(KNOWING_NOTHING[name], forms))


@needs_bubblewrap
async def test_a_refusal_is_final() -> None:
    caught = "def test_it():\n    import s\n    try:\n        s.Thing(3) + 1\n    except BaseException:\n        pass\n"
    (why,) = await outcomes(REFUSED_OF, [Form("caught", caught, "")])
    assert "no plain value" in why


@needs_bubblewrap
async def test_no_assertion_is_lost_in_a_context_manager() -> None:
    swallows = "class Thing:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n"
    form = "from s import Thing\ndef test_it():\n    with Thing() as t:\n        assert t.x == 3\n"
    (why,) = await outcomes(swallows, [Form("with", form, "")])
    assert "swallowed a" in why


LEAVES = """
import os, time
PLACES = (".", "/tmp", "/dev/shm", "/var/tmp", "/run")
def leave():
    left = []
    for place in PLACES:
        try:
            with open(place + "/left.py", "w") as file: file.write("x")
            left.append(place)
        except OSError:
            pass
    with open("s.py", "w") as file: file.write("def found(): return []")
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    return left
def found():
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [place for place in PLACES if os.path.exists(place + "/left.py")] + [n for n in processes if n > os.getpid()]
"""


@needs_bubblewrap
async def test_nothing_is_left_for_the_next_test() -> None:
    leaving = "import s\ndef test_it(): assert s.leave()[:2] == ['.', '/tmp'] and len(s.found()) > 2\n"
    finding = "import s\ndef test_it(): assert s.found() == [] and s.PLACES[0] == '.'\n"
    forms = [Form("leaves", leaving, ""), Form("finds", finding, "")]
    assert await outcomes(LEAVES, forms) == ["", ""]


# --- Tests that nobody could run are the data's fault, before anything runs.


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ({}, "no tests"),
        ("text", "a str"),
        ({"test_it.py": "x = 1"}, "no tests"),
        ({"test_it.py": "def"}, "is not valid Python"),
        ({"test_it.txt": "def test_it(): pass"}, r"\(\*\.py\)"),
        ({"test_it.py": "import pytest\ndef test_it(): pass"}, "imports pytest"),
        ({"test_it.py": "def test_it(tmp_path): pass"}, "takes arguments"),
        ({"../test_it.py": "def test_it(): pass"}, "relative path"),
    ],
)
def test_tests_that_cannot_be_run_are_refused(tests: object, told: str) -> None:
    with pytest.raises(DataError, match=told):
        names_of(tests, "task t0")


@pytest.mark.parametrize(
    "line",
    [
        "assert Vector(1) + Vector(2) == Vector(3)",
        "assert solution.Vector(1) != solution.Vector(2)",
        "v = Vector(1)\n        w = Vector(2)\n        assert v < w",
        "self.assertEqual(Vector(1), Vector(1))",
    ],
)
def test_a_comparison_that_only_the_solution_could_judge_is_refused_before_a_run(line: str) -> None:
    source = f"import solution\nfrom solution import Vector\nclass TestIt:\n    def test_it(self):\n        {line}\n"
    with pytest.raises(DataError, match=r"task t0, test_it.py, line \d: .* compare plain values"):
        HiddenTests().refuse_task(task(tests={"test_it.py": source}))


@pytest.mark.parametrize(
    "line",
    [
        "from decimal import Decimal\n    assert Decimal(1) == Decimal(1)",
        "from helper import Wanted\n    assert Wanted(1) == Wanted(1)",
        "from solution import Vector\n    assert Vector(1).x == Vector(2).y",
        "from solution import Celsius\n    assert Celsius(1) == 1.0",
        "from solution import made\n    assert made(1) == made(1)",
    ],
)
def test_other_comparisons_are_not(line: str) -> None:
    tests = {"test_it.py": f"def test_it():\n    {line}\n", "helper.py": "class Wanted: pass"}
    given = task(tests=tests)
    HiddenTests().refuse_task(given)  # a refusal would be a DataError
    assert names_of(given.metadata["tests"], "t0") == [("test_it.py", "test_it")]


async def test_a_task_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="task t0 has no tests"):
        await HiddenTests().score(task(), tmp_path)


@pytest.mark.parametrize(
    "settings", [{"timeout_s": 0}, {"test_timeout_s": 0}, {"answer_file": "../x.py"}, {"memory_mb": 1}]
)
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        HiddenTests(**settings)


@pytest.mark.parametrize(
    ("answer", "code"),
    [("x = 1", "x = 1"), ("Here:\n```python\nx = 1\n```\nor\n```\nx = 2\n```\nDone.", "x = 2\n"), ("", "")],
)
def test_the_code_in_an_answer_is_its_last_block(answer: str, code: str) -> None:
    assert code_in(answer) == code
