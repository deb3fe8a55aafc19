# The first program in the sandbox: it runs one test and prints why the test failed.
#
#     suite: the test, which never imports the policy's files --exec, two pipes--> testee.py, which imports them
# A test with `from solution import add` gets a stand-in: its calls go to the testee, and plain data comes back. The
# policy's code therefore shares no memory, imports or descriptors with the code that decides. It can end, hang or lie
# in its own process; to pass, it must give the answer that the test wants without knowing it. Hence the rule of this
# file:
#
#     names in a test      a function, a method, an attribute      the testee answers, with the arguments
#     facts of an object   its text, number, length, items         the testee answers without an operand; judged here
#     decisions            == < in, truth, + with plain data       the testee is never asked
# Only the standard library of the Python that runs here, 3.9 or newer. The caller takes the working directory out of
# sys.path first.
import _ctypes
import ast
import builtins
import importlib.abc
import importlib.machinery
import json
import math
import operator
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Sized
from decimal import Decimal
from fractions import Fraction

PR_SET_DUMPABLE = 4
MAX_REPLY = 1 << 24
MAX_WHY = 300
UNPROTECTED = 3
NOT_FINITE = re.compile(r"\b(is_?)?(nan|inf|infinity|infinite|finite)\b", re.IGNORECASE)
SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
QUESTIONS = {name for kind in (str, bytes, int, float, complex, tuple, frozenset) for name in dir(kind)} | {"get"}
"""Names of methods that read plain data; methods that only change it, such as append, are not among them."""
CLASS, INSTANCE, OTHER = 2, 1, 0
"""How the test's own text treats an object: CLASS = its name begins with a capital letter; INSTANCE = a call of a CLASS
returned it; OTHER = neither.
"""


class Inadmissible(BaseException):
    """Fails the test, even if the test catches exceptions."""


# --- Objects of the testee, as a test sees them.


class Remote:
    __slots__ = ("_class", "_number", "_rank", "_session")

    def __init__(self, session, number, kind, rank):
        for name, value in (("_session", session), ("_number", number), ("_class", kind), ("_rank", rank)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        value = self._session.look_up(self, name)
        if name[0] != "_" and name in QUESTIONS and isinstance(value, Remote) and self._rank == OTHER:
            self.refuse(f"was asked {name}, as plain data is: ask its plain value, str(x) or list(x) for example")
        return value

    def __setattr__(self, name, value):
        self._session.ask("set", self, name, value)

    def __call__(self, *args, **named):
        rank = INSTANCE if self._rank == CLASS else OTHER
        return self._session.ask("call", self, *args, named=named, rank=rank)

    def __bool__(self):
        self.refuse("was asked whether it is true: say x is not None, or len(x) > 0")

    def __hash__(self):
        self.refuse("was put where a hash is needed: use a plain value, x.NAME or str(x) for example")

    def __instancecheck__(self, value):
        return isinstance(value, THEIRS) and self._session.ask("is_instance", value, self) is True

    def __iter__(self):
        items = self._session.ask("iter", self)
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            yield item

    def __contains__(self, wanted):
        return any(item == wanted for item in self)

    def __getitem__(self, key):
        items = self._session.ask("items", self)
        try:
            return items[key] if not isinstance(items, Remote) else items.refuse("has objects for keys")
        except TypeError:
            self.refuse(f"shows no item {key!r}: call x.__getitem__(...)")

    def __enter__(self):
        entered = self._session.ask("__enter__", self)
        return self if isinstance(entered, Remote) and entered._number == self._number else entered

    def __exit__(self, kind, error, trace):
        if self._session.ask("exit", self, kind and usual(kind).__name__) is True and kind:
            self.refuse(f"swallowed an exception ({kind.__name__}), which may be the test's own")

    def plain(self, use):
        value = self._session.ask("plain", self)
        if isinstance(value, Remote):
            self.refuse(
                f"has no plain value, and the test says {use} of it and plain data: take float(x), str(x), list(x), "
                "vars(x), x.NAME or what a method returns"
            )
        return value

    def refuse(self, why):
        self._session.refuse(f"an object of the solution ({self._class}) {why}")


class Awaitable(Remote):
    """A coroutine that asyncio accepts; like other remote objects, it has no truth value and equals nothing."""

    __slots__ = ()
    __hash__ = object.__hash__  # asyncio.gather needs it

    def __getattr__(self, name):
        raise AttributeError(name)

    def __await__(self):
        return self._session.ask("await", self)
        yield

    def __next__(self):
        raise StopIteration(self._session.ask("await", self))

    def send(self, value):
        return next(self)

    def throw(self, error, *more):
        raise error

    def close(self):
        pass


class Behind:
    """A local value with an object of the solution behind it, which answers all other names."""

    def __getattr__(self, name):
        if name[:2] == "__" or "remote" not in vars(self):
            raise AttributeError(name)
        return getattr(self.remote, name)


class Derived(Behind):
    """Plain data with a class of the solution, such as a named tuple."""

    def __str__(self):
        return str(self.remote)

    def __repr__(self):
        return repr(self.remote)


class Raised(Behind):
    """An exception with a class of the solution: raised in the testee, it becomes an exception here; created by a test,
    it becomes a Remote.
    """

    def __new__(cls, *args, **named):
        return cls.there(*args, **named)

    def __str__(self):
        return vars(self).get("text") or super().__str__()


THEIRS = (Remote, Derived)


def asked(name):
    def method(self, *args):
        return self._session.ask(name, self, *args)

    return method


def stated(name):
    def method(self, *args):
        self._session.ask(name, self, *args)

    return method


def combined(name, function):
    def method(self, other):
        if isinstance(other, THEIRS):
            return self._session.ask(name, self, other)
        return function(self.plain(name), other)

    return method


def compared(name, function):
    def method(self, other):
        if isinstance(other, THEIRS):
            remote = self if isinstance(self, Remote) else self.remote
            remote.refuse(f"was compared ({name}) with another: compare vars(x), x.NAME, list(x) or str(x) of both")
        if isinstance(self, Derived):
            return getattr(super(Derived, self), name)(other)
        return name == "__ne__" if other is None else function(self.plain(name), other)

    return method


def reflected(function):
    return lambda mine, other: function(other, mine)


for NAME in ("len", "str", "repr", "int", "float", "index", "complex", "neg", "pos", "abs", "invert", "round", "next"):
    setattr(Remote, f"__{NAME}__", asked(f"__{NAME}__"))
for NAME in ("__setitem__", "__delitem__"):
    setattr(Remote, NAME, stated(NAME))
for NAME in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    FUNCTION = getattr(operator, f"__{NAME}__")
    setattr(Remote, f"__{NAME}__", combined(f"__{NAME}__", FUNCTION))
    setattr(Remote, f"__r{NAME}__", combined(f"__r{NAME}__", reflected(FUNCTION)))
for NAME in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    for KIND in THEIRS:
        setattr(KIND, NAME, compared(NAME, getattr(operator, NAME)))
DERIVED = {
    kind: type(kind.__name__, (Derived, kind), {"__hash__": kind.__hash__})
    for kind in (int, float, complex, str, bytes, tuple, frozenset)
}


# --- Requests to the testee, and its replies.


class Testee:
    """One testee process, started on first use."""

    def __init__(self, source, is_finite):
        self.source, self.is_finite = source, is_finite
        self.pipes, self.lock = None, threading.Lock()
        self.refused = ""
        self.exceptions = {}

    def start(self):
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        for end in (theirs_in, theirs_out):
            os.set_inheritable(end, True)  # only these are inheritable, and the streams that main has closed
        argv = [sys.executable, "-s", "-S", "-B", "-c", self.source, str(theirs_in), str(theirs_out)]
        os.posix_spawn(sys.executable, argv, {"PYTHONHASHSEED": "0"})
        os.close(theirs_in)
        os.close(theirs_out)
        self.pipes = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def refuse(self, why):
        self.refused = self.refused or why
        raise Inadmissible(why)

    def look_up(self, owner, name):
        return self.ask("get", owner, name, rank=CLASS if name.lstrip("_")[:1].isupper() else OTHER)

    def ask(self, what, *args, named=None, rank=OTHER):
        named = named or {}
        request = {"do": what, "args": [self.write(one) for one in args]}
        request["named"] = {key: self.write(one) for key, one in named.items()}
        reply = self.exchange(json.dumps(request).encode("ascii"))
        error, value, changes = None, None, ()
        try:
            if "error" in reply:
                error = self.error_of(reply, what)
            else:
                value, changes = self.read(reply["value"], rank), [self.read(one) for one in reply["changes"]]
        except Exception:
            self.refuse(BROKEN)
        if error is not None:
            raise error
        for ours, theirs in zip((*args[1:], *named.values()), changes):  # noqa: B905
            if type(ours) in (list, dict, set) and type(theirs) is type(ours):
                ours.clear()
                (ours.extend if type(ours) is list else ours.update)(theirs)
        return value

    def exchange(self, body):
        with self.lock:
            if self.pipes is None:
                self.start()
            requests, replies = self.pipes
            try:
                requests.write(len(body).to_bytes(4, "big") + body)
                requests.flush()
                size = int.from_bytes(replies.read(4), "big")
                return json.loads(replies.read(min(size, MAX_REPLY)))
            except (OSError, ValueError, RecursionError, MemoryError):
                self.refuse(BROKEN)

    def write(self, value):
        if value is None or type(value) in (bool, float, str):
            return value
        if isinstance(value, Remote):
            return {"object": value._number}
        if isinstance(value, RemoteModule):
            return self.write(value.__remote__)
        if isinstance(value, Behind) and "remote" in vars(value):
            return self.write(value.remote)
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
        return self.refuse(f"a test can hand plain data to the solution, and no {type(value).__name__}")

    def read(self, given, rank=OTHER):
        if type(given) is not dict:
            return self.number(given, math.isfinite) if type(given) is float else given
        ((kind, value),) = given.items()
        if kind == "object":
            return Remote(self, *value, rank)
        if kind == "derived":
            plain = self.read(value[0])
            derived = DERIVED[type(plain)](plain)
            derived.remote = Remote(self, *value[1], rank)
            return derived
        if kind == "coroutine":
            return Awaitable(self, *value, OTHER)
        if kind == "exception":
            line, base = value
            remote = Remote(self, *line[-1], OTHER)
            return self.exception(line, base) if rank == CLASS else remote
        if kind == "nothing":
            return NotImplemented
        if kind == "dict":
            return {self.read(k): self.read(v) for k, v in value}
        if kind in SEQUENCES:
            return SEQUENCES[kind](self.read(one) for one in value)
        if kind == "complex":
            return complex(*map(self.read, value))
        if kind == "fraction":
            return Fraction(int(value[0], 16), int(value[1], 16))
        if kind == "decimal":
            return self.number(Decimal(value), Decimal.is_finite)
        return {"int": lambda n: int(n, 16), "bytes": bytes.fromhex}[kind](value)

    def number(self, value, is_finite):
        """Refuse nan, which makes every comparison false, and inf, which is close to every number in relative terms."""
        if self.is_finite and not is_finite(value):
            self.refuse(f"the solution answered {value}; a test that wants such a number says nan or inf in its text")
        return value

    def exception(self, line, base):
        """Return the local class: `line` lists the solution's own classes, the most derived last; all of them derive
        from the built-in class `base`.
        """
        kind = getattr(builtins, base)
        if not issubclass(kind, (Exception, SystemExit)):
            kind = AssertionError
        for number, name in line:
            if number not in self.exceptions:
                bases = (kind,) if issubclass(kind, Raised) else (Raised, kind)
                self.exceptions[number] = type(name, bases, {"there": Remote(self, number, name, CLASS)})
            kind = self.exceptions[number]
        return kind

    def error_of(self, reply, what):
        kind, text = self.exception(*reply["error"]), str(reply["text"])
        if what != "__next__" and issubclass(kind, (StopIteration, StopAsyncIteration)):
            kind = RuntimeError  # map, all and next would take it for the end of their iteration
        try:
            error = usual(kind).__new__(kind, *map(self.read, reply["args"]))
            error.__init__(*error.args)
        except Exception:
            error = AssertionError(text)
        if isinstance(error, Raised):
            error.text, error.remote = text, Remote(self, *reply["object"], OTHER)
        return error


BROKEN = "the solution has ended its process, or has not kept to the protocol"


# --- Imports of a test: the standard library, other test files, and stand-ins for files of the policy.


class RemoteModule(types.ModuleType):
    def __getattr__(self, name):
        if name == "__all__":
            return self.__session__.ask("names", self)
        if name[:2] == "__":
            raise AttributeError(name)
        return self.__session__.look_up(self, name)


class TestImports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder that is asked for a module."""

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
            module.__dict__.update(TO_THE_END)
            exec(compile(with_zip_to_the_end(source), module.__name__, "exec"), module.__dict__)


def zip_to_the_end(*sides):
    end = object()
    rows = [iter(side) for side in sides]
    while rows:
        row = [next(items, end) for items in rows]
        if any(item is end for item in row):
            for item, side in zip(row, sides):  # noqa: B905
                if item is not end and isinstance(side, Sized) and not isinstance(side, Remote):
                    raise AssertionError("zip or map: one side ends before another; a test that means it slices a side")
            return
        yield tuple(row)


def map_to_the_end(function, *sides):
    return (function(*row) for row in zip_to_the_end(*sides))


TO_THE_END = {"__zip_to_the_end__": zip_to_the_end, "__map_to_the_end__": map_to_the_end}


def with_zip_to_the_end(source):
    """Replace zip(answer, wanted) and map(function, answer, wanted): an answer without items would pass them. Calls
    with a slice, such as zip(x, x[1:]), and calls with `strict` are left unchanged."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("zip", "map"):
            sliced = [one for one in node.args if isinstance(getattr(one, "slice", None), ast.Slice)]
            is_one_sided = node.func.id == "map" and len(node.args) == 2
            if not sliced and not node.keywords and not is_one_sided:
                node.func.id = f"__{node.func.id}_to_the_end__"
    return tree


# --- The test.


def attempt(order, session):
    """Return the reason why the test failed; "" if it passed."""
    sys.meta_path.append(TestImports(order["tests"], session))
    try:
        module = importlib.import_module(order["file"][: -len(".py")].replace("/", "."))
        where, _, method = order["name"].rpartition(".")
        unittest = sys.modules.get("unittest")
        kind = getattr(module, where) if where else None
        if kind is not None and unittest is not None and issubclass(kind, unittest.TestCase):
            return unit(unittest, kind(method))
        returned = getattr(module if kind is None else kind(), method)()
        if isinstance(returned, types.CoroutineType):
            import asyncio  # its import takes long, and few tests need it

            returned = asyncio.run(returned)
        return "" if returned is None else "it returned something, and a test returns nothing"
    except BaseException as e:
        return type(e).__name__ + ": " + str(e)


def unit(unittest, case):
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    bad = [text for _, text in (*result.failures, *result.errors, *result.skipped)]
    bad += ["it was expected to fail"] * len((*result.expectedFailures, *result.unexpectedSuccesses))
    return "" if result.testsRun == 1 and not bad else (bad or ["it was not run"])[0].strip().rpartition("\n")[2]


def usual(kind):
    """The built-in exception from which `kind` derives."""
    return next(each for each in kind.__mro__ if each.__module__ == "builtins")


def main(order):
    # Other processes of the same user cannot open /proc/PID/mem, maps and fd of this process.
    if _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl"), (PR_SET_DUMPABLE, 0, 0, 0, 0)) != 0:
        sys.exit(UNPROTECTED)
    told = os.dup(1)  # not inherited by programs that the test starts
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.write(told, b"ready\n")
    session = Testee(order["testee"], is_finite=not any(map(NOT_FINITE.search, order["tests"].values())))

    def tell(why):
        os.write(told, json.dumps((session.refused or why)[:MAX_WHY]).encode("ascii"))
        os._exit(0)

    signal.signal(signal.SIGALRM, lambda number, frame: tell("it did not end in time"))
    signal.setitimer(signal.ITIMER_REAL, order["timeout_s"])
    tell(attempt(order, session))
