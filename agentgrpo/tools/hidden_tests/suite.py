# The first program in the sandbox: it runs each test in a process of its own and prints a line of JSON for each.
#
#     suite --fork--> the test, which never imports a file of the policy's --exec, two pipes--> testee.py, which does
#
# A test that says `from solution import add` gets a stand-in: a call of it goes to the testee, plain data comes back.
# So the policy's code shares no memory, no imports and no descriptors with what decides. It can end, hang or lie in its
# own process; to pass, it must answer as the test wants without knowing what that is. Standard library alone, and that
# of the Python that runs here, 3.9 or newer. What starts it takes the working directory out of sys.path before.
import _ctypes
import asyncio
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
import unittest
from decimal import Decimal
from fractions import Fraction

PR_SET_DUMPABLE = 4
MAX_REPLY = 1 << 24
MAX_WHY = 300
UNPROTECTED = 3
SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


# --- What the testee has, as a test sees it.


class Remote:
    """An object of the testee's. Beside plain data it is never equal and has no order: it could be equal to all."""

    def __init__(self, session, number):
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        return self._session.ask("get", self, name)

    def __setattr__(self, name, value):
        self._session.ask("set", self, name, value)

    def __call__(self, *args, **named):
        return self._session.ask("call", self, *args, **named)

    def __eq__(self, other):
        if not isinstance(other, Remote):
            return False
        return self._number == other._number or self._session.ask("__eq__", self, other) is True

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return self._number

    def __bool__(self):
        for name in ("__bool__", "__len__"):
            with contextlib.suppress(TypeError):
                return bool(self._session.ask(name, self))
        return True

    def __instancecheck__(self, value):
        return self._session.ask("is_instance", value, self) is True


def forwarded(name):
    def method(self, *args):
        return self._session.ask(name, self, *args)

    return method


def compared(name):
    def method(self, other):
        if not isinstance(other, Remote):
            raise TypeError("an object of the solution has no order beside " + type(other).__name__)
        return self._session.ask(name, self, other)

    return method


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
FORWARDED = [
    *("getitem", "setitem", "delitem", "contains", "len", "iter", "next", "str", "repr", "enter", "exit"),
    *("neg", "pos", "abs", "invert", "int", "float", "index", "round", *BINARY, *("r" + name for name in BINARY)),
]
for NAME in FORWARDED:
    setattr(Remote, f"__{NAME}__", forwarded(f"__{NAME}__"))
for NAME in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{NAME}__", compared(f"__{NAME}__"))


class Testee:
    """One testee, started when it is first asked."""

    def __init__(self, source):
        self.source = source
        self.pipes = None

    def start(self):
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        subprocess.Popen(
            [sys.executable, "-s", "-S", "-B", "-c", self.source, str(theirs_in), str(theirs_out)],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.pipes = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def ask(self, what, *args, **named):
        if self.pipes is None:
            self.start()
        requests, replies = self.pipes
        request = {"do": what, "args": [self.write(a) for a in args], "named": {}}
        request["named"] = {key: self.write(value) for key, value in named.items()}
        body = json.dumps(request).encode("ascii")
        try:
            requests.write(len(body).to_bytes(4, "big") + body)
            requests.flush()
            size = int.from_bytes(replies.read(4), "big")
        except OSError:
            size = 0
        if not 0 < size <= MAX_REPLY:
            raise AssertionError("the solution has ended its process")
        reply = json.loads(replies.read(size))
        if "error" in reply:
            kind = getattr(builtins, reply["error"])
            usual = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if usual and kind not in NEEDS_MORE else AssertionError)(reply["text"])
        for ours, theirs in zip(args, reply.get("args", ())):  # noqa: B905
            self.change(ours, theirs)
        return self.read(reply["value"])

    def change(self, ours, theirs):
        if type(ours) in (list, dict, set):
            now = self.read(theirs)
            if type(now) is type(ours):
                ours.clear()
                (ours.extend if type(ours) is list else ours.update)(now)

    def write(self, value):
        if value is None or type(value) in (bool, float, str):
            return value
        if isinstance(value, Remote):
            return {"object": value._number}
        if isinstance(value, RemoteModule):
            return {"object": value.__remote__._number}
        if type(value) is int:
            return {"int": hex(value)}
        if type(value) in (bytes, bytearray):
            return {"bytes": value.hex()}
        if type(value) is complex:
            return {"complex": [value.real, value.imag]}
        if type(value) is Fraction:
            return {"fraction": [hex(value.numerator), hex(value.denominator)]}
        if type(value) is Decimal:
            return {"decimal": str(value)}
        for name, kind in SEQUENCES.items():
            if isinstance(value, kind):
                return {name: [self.write(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[self.write(k), self.write(v)] for k, v in value.items()]}
        raise TypeError("a test can hand plain data to the solution, and no " + type(value).__name__)

    def read(self, given):
        if type(given) is not dict:
            return given
        ((kind, value),) = given.items()
        if kind == "object":
            return Remote(self, int(value))
        if kind == "nothing":
            return NotImplemented
        if kind == "dict":
            return {self.read(k): self.read(v) for k, v in value}
        if kind in SEQUENCES:
            return SEQUENCES[kind](self.read(one) for one in value)
        if kind == "complex":
            return complex(*value)
        if kind == "fraction":
            return Fraction(int(value[0], 16), int(value[1], 16))
        return {"int": lambda n: int(n, 16), "bytes": bytes.fromhex, "decimal": Decimal}[kind](value)


NEEDS_MORE = tuple(kind for kind in (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError))
"""Exceptions that are not made of a text alone."""


# --- Imports of a test: the standard library, other files of the tests, and stand-ins for files of the policy.


class RemoteModule(types.ModuleType):
    def __getattr__(self, name):
        if name == "__all__":
            return self.__session__.ask("names", self)
        if name[:2] == "__":
            raise AttributeError(name)
        return self.__session__.ask("get", self, name)


class TestImports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last that is asked for a module."""

    def __init__(self, tests, session):
        self.tests, self.session = tests, session

    def find_spec(self, name, path=None, target=None):
        at = name.replace(".", "/")
        ours = [file for file in self.tests if file == at + ".py" or file.startswith(at + "/")]
        is_folder = at + ".py" not in ours and (bool(ours) or os.path.isdir(at))  # noqa: PTH112
        if ours or is_folder or os.path.isfile(at + ".py"):  # noqa: PTH113
            state = self.tests.get(at + ".py", "") if ours else None
            return importlib.machinery.ModuleSpec(name, self, loader_state=state, is_package=is_folder)
        return None

    def create_module(self, spec):
        return RemoteModule(spec.name) if spec.loader_state is None else None

    def exec_module(self, module):
        source = module.__spec__.loader_state
        if source is None:
            module.__dict__["__session__"] = self.session
            module.__dict__["__remote__"] = self.session.ask("import", module.__name__)
        else:
            exec(compile(source, module.__name__, "exec"), module.__dict__)


def attempt(order, file, name):
    """Why the test fails; "" where it passes."""
    sys.meta_path.append(TestImports(order["tests"], Testee(order["testee"])))
    try:
        module = importlib.import_module(file[: -len(".py")].replace("/", "."))
        where, _, method = name.rpartition(".")
        kind = getattr(module, where) if where else None
        if kind is not None and issubclass(kind, unittest.TestCase):
            return unit(kind(method))
        returned = getattr(module if kind is None else kind(), method)()
        if hasattr(returned, "__await__"):
            asyncio.run(returned)
        elif returned is not None:
            return "it returned something, and a test returns nothing"
        return ""
    except BaseException as e:
        return type(e).__name__ + ": " + str(e)


def unit(case):
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    bad = [text for _, text in (*result.failures, *result.errors, *result.skipped)]
    bad += ["it was expected to fail"] * len((*result.expectedFailures, *result.unexpectedSuccesses))
    return "" if result.testsRun == 1 and not bad else (bad or ["it was not run"])[0].strip().rpartition("\n")[2]


# --- One test after the other.


def run(order, file, name):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        why = "it cannot say why"
        with contextlib.suppress(BaseException):
            why = attempt(order, file, name)[:MAX_WHY]
        os.write(writing, json.dumps(why).encode("ascii"))
        os._exit(0)
    os.close(writing)
    said = await_end(reading, order["test_timeout_s"])
    os.close(reading)
    end(child)
    if said is None:
        return "it did not end in time"
    try:
        return json.loads(said)
    except ValueError:
        return "its process was ended"


def await_end(reading, timeout_s):
    """What is written until the pipe is closed; None where that takes too long."""
    said, late = b"", time.monotonic() + timeout_s
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, late - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 1 << 16)
        if not part:
            return said
        said += part


def end(child):
    """With all that the solution has started, where nobody else is here."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    if os.getpid() == 1:
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(OSError):
        while os.waitpid(-1 if os.getpid() == 1 else child, 0)[0]:
            pass


def main(order):
    # Nobody of the same user opens /proc/PID/mem, maps and fd of this process and of those that it forks.
    if _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl"), (PR_SET_DUMPABLE, 0, 0, 0, 0)) != 0:
        sys.exit(UNPROTECTED)
    print("ready", flush=True)
    for file, name in order["names"]:
        try:
            why = run(order, file, name)
        except OSError as e:  # no process can be had, for the solution has left so many
            why = "it could not be run: " + str(e)
        print(json.dumps([file, name, why]), flush=True)
