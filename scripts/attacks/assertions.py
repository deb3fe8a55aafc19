"""Common forms of assertions, each with a correct solution, which must pass. No solution of agreeable.py may pass.

A form that a constant would pass (0, True, an empty list) asks a second question, like a good test: otherwise a guess
could be right.

PYTHONPATH=scripts python -m attacks.assertions [--whole]

Before the last line, "N passed, N failed", it prints every form with a wrong result.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attacks.agreeable import KNOWING_NOTHING

from agentgrpo.tools.hidden_tests.sandboxed import HiddenTests


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    test: str
    right: str
    """A solution, the file s.py, that must pass."""


HEADER = """
import json, math, operator, re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
import s
from s import f, Thing
"""
"""A module-level __getattr__ gives a correct solution the imported names that its form does not use."""
REST = "\ndef __getattr__(name): return None\n"


def asserted(expression: str, right: str) -> Form:
    return Form(expression, f"{HEADER}\ndef test_it():\n    assert {expression}\n", right + REST)


def lines(name: str, body: str, right: str) -> Form:
    block = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return Form(name, f"{HEADER}\ndef test_it():\n{block}\n", textwrap.dedent(right) + REST)


def unit(body: str, right: str) -> Form:
    block = textwrap.indent(textwrap.dedent(body).strip(), "        ")
    test = f"import unittest\n{HEADER}\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n{block}\n"
    return Form(" ".join(body.split()), test, textwrap.dedent(right) + REST)


SQUARE = "def f(x): return x * x"
ABOVE = "def f(x): return x > 2"
HALF = "def f(x): return x / 2 + 1.5"
TEXT = "def f(*a): return 'abcab'"
NUMBERS = "def f(*a): return [1.0, 2.0]"
LETTERS = "def f(*a): return {'a', 'b', 'c', 'd'}"
TABLE = "def f(*a): return {'a': 1, 'b': {'c': [7]}}"
COUNTING = "def f(n):\n    for i in range(n): yield i * i"
BOX = """
class Thing:
    def __init__(self, x, y=1): self.x, self.y = x + 1, y
    def area(self): return (self.x - 1) * self.y
    @property
    def doubled(self): return 2 * self.x
    @classmethod
    def of(cls, text): return cls(int(text) * 2)
    @staticmethod
    def triple(x): return 3 * x
    def __call__(self, z): return self.x + z
    def __str__(self): return f"Thing <{self.x}>"
    def __repr__(self): return f"Thing({self.x - 1}, {self.y})"
    def __float__(self): return self.x + 0.5
    def __len__(self): return self.x + self.y
    def __abs__(self): return self.x * self.y
    def __neg__(self): return Thing(-self.x - 1, self.y)
    def __add__(self, other): return Thing(self.x + other.x - 1, self.y + other.y)
    def __mul__(self, other): return self.x * other.x + self.y * other.y
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
    def twice(self): return Thing(2 * self.x - 1, self.y)
"""
SORTED = """
class Thing:
    def __init__(self, items): self.items = sorted(items)
    def __iter__(self): return iter(self.items)
    def __len__(self): return len(self.items)
    def __contains__(self, item): return item in self.items
    def __getitem__(self, i): return self.items[i]
"""
NODES = """
class Node:
    def __init__(self, value, after=None): self.value, self.next = value, after
class Thing:
    def __init__(self, values):
        self.head = None
        for value in values: self.head = Node(value, self.head)
    def __iter__(self):
        node = self.head
        while node: yield node.value; node = node.next
    def reversed(self): return Thing(list(self))
"""
STACK = """
class Empty(Exception):
    def __init__(self, size): super().__init__(f"no item among {size}"); self.size = size
class Thing:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise Empty(len(self.items) + 40)
        return self.items.pop()
    def __setitem__(self, i, value): self.items[i] = value
    def __getitem__(self, i): return self.items[i]
    def __delitem__(self, i): del self.items[i]
    def __len__(self): return len(self.items)
    def copy(self):
        other = Thing(); other.items = list(self.items); return other
"""

_ASSERTED: Mapping[str, Sequence[str]] = {
    SQUARE: (
        "f(2) == 4",
        "4 == f(2)",
        "f(2) != 5 and f(3) == 9",
        "abs(f(2) - 4) < 1e-9",
        "abs(4 - f(2)) < 1e-9",
        "not abs(f(2) - 4) > 1e-9",
        "not (f(2) < 4 or f(2) > 4)",
        "f(2) - 4 == 0",
        "f(2) % 4 == 0 != f(2)",
        "f(2) // 4 == 1 and f(2) % 4 == 0",
        "4 / f(2) == 1",
        "f(2) ** 2 == 16",
        "-f(2) == -4",
        "f(2) ^ 4 == 0",
        "f(2) & 6 == 4",
        "f(2) << 1 == 8",
        "divmod(f(2), 3) == (1, 1)",
        "3 < f(2) < 5",
        "f(2) >= 4 and f(2) <= 4",
        "f(2) in (4, 4.0)",
        "f(2) in range(4, 5)",
        "int(f(2)) == 4",
        "float(f(2)) == 4.0",
        "str(f(2)) == '4'",
        "math.isclose(f(2), 4.0)",
        "math.sqrt(f(2)) == 2",
        "abs(f(2) - 4) <= 1e-6 * abs(f(2))",
        "abs(f(2) - 4) <= 1e-9 * max(abs(f(2)), 4)",
        "abs(f(2) - 4) / f(2) < 1e-6",
        "Decimal('4') - f(2) == 0",
        "Fraction(4) == f(2)",
        "[f(x) for x in (2, 3)] == [4, 9]",
        "list(map(f, (2, 3))) == [4, 9]",
        "sum(f(x) for x in (2, 3)) == 13",
        "max(f(x) for x in (2, -3)) == 9",
        "f(3) - f(2) == 5",
        "f(x=2) == 4",
        "f(f(2)) == 16",
        "f(2) == f(-2) == 4",
        "operator.eq(f(2), 4)",
        "f'{f(2)}' == '4'",
        "'%d' % f(2) == '4'",
        "s.f(2) == 4 and hasattr(s, 'f')",
        "(lambda got: got == 4)(f(2))",
        "bin(f(2)) == '0b100'",
        "'abcdef'[f(2)] == 'e'",
    ),
    HALF: ("round(f(5), 3) == 4.0", "abs(f(5) - 4.0) <= 1e-6 * 4.0", "f(5) == 4 and isinstance(f(5), float)"),
    ABOVE: (
        "f(3) is True and f(2) is False",
        "f(3) and not f(2)",
        "[*map(f, (1, 3))] == [False, True]",
    ),
    "def f(n): return n > 1 and all(n % i for i in range(2, n))": (
        "all(map(f, (2, 3, 5))) and not any(map(f, (4, 6)))",
        "list(filter(f, range(8))) == [2, 3, 5, 7]",
        "next(filter(f, (8, 9, 11))) == 11",
        "all(f(n) for n in (2, 3)) and not any(f(n) for n in (4, 6))",
    ),
    TEXT: (
        "f() == 'abcab'",
        "'cab' in f()",
        "f() in ('abcab', 'x')",
        "f().startswith('ab')",
        "f().endswith('ab') and len(f()) == 5",
        "f().upper() == 'ABCAB'",
        "f().count('a') == 2",
        "f().find('c') == 2",
        "f().index('c') == 2",
        "f().isalpha()",
        "f().split('c') == ['ab', 'ab']",
        "f().replace('a', '') == 'bcb'",
        "f() + 'd' == 'abcabd'",
        "'x' + f() == 'xabcab'",
        "f() * 2 == 'abcababcab'",
        "f()[0] == 'a' and f()[2] == 'c'",
        "f()[1:3] == 'bc'",
        "f() > 'abc' and f() < 'abd'",
        "sorted(f()) == ['a', 'a', 'b', 'b', 'c']",
        "set(f()) == set('abc')",
        "Counter(f()) == Counter('abcab')",
        "''.join(reversed(f())) == 'bacba'",
        "re.fullmatch('(ab)c(ab)', f())",
        "dict(abcab=1)[f()] == 1",
        "f() in {'abcab'}",
        "hash(f()) == hash('abcab')",
    ),
    "def f(*a): return '{\"a\": [1]}'": ("json.loads(f()) == {'a': [1]}",),
    NUMBERS: (
        "f() == [1.0, 2.0]",
        "list(f()) == [1, 2]",
        "tuple(f()) == (1, 2)",
        "[*f(), 3] == [1, 2, 3]",
        "f() + [3] == [1, 2, 3]",
        "f()[0] == 1 and f()[-1] == 2",
        "f()[1:] == [2]",
        "abs(f()[1] - 2.0) < 1e-9",
        "2 in f() and 3 not in f()",
        "len(f()) == 2 and sum(f()) == 3",
        "sorted(f(), reverse=True) == [2, 1]",
        "list(enumerate(f())) == [(0, 1), (1, 2)]",
        "all(abs(a - b) < 1e-9 for a, b in zip(f(), [1.0, 2.0]))",
        "all(abs(a - b) < 1e-9 for a, b in zip([1.0, 2.0], f()))",
        "all(math.isclose(a, b) for a, b in zip(f(), (1, 2)))",
        "max(abs(a - b) for a, b in zip([1.0, 2.0], f())) < 1e-6",
        "sum((a - b) ** 2 for a, b in zip(f(), [1.0, 2.0])) < 1e-6",
        "not any(a != b for a, b in zip(f(), [1.0, 2.0]))",
        "math.dist(f(), (1, 2)) == 0",
        "all(map(operator.eq, f(), [1, 2]))",
        "[round(x, 2) for x in f()] == [1, 2]",
        "[x == y for x, y in zip(f(), [1, 2])] == [True, True]",
        "f().index(2) == 1",
    ),
    LETTERS: (
        "f() == set('abcd')",
        "set('abc') <= f()",
        "f() >= set('abc')",
        "f() & {'a', 'x'} == {'a'}",
        "f() - set('abc') == {'d'}",
        "f() ^ set('abcd') == set() != f()",
        "f() | {'e'} == set('abcde')",
        "f().issuperset('ab')",
        "not f().isdisjoint('ab')",
        "len(f()) == 4 and 'a' in f()",
    ),
    TABLE: (
        "f() == {'a': 1, 'b': {'c': [7]}}",
        "f()['a'] == 1 and f()['b']['c'][0] == 7",
        "f().get('a') == 1 and f().get('z') is None",
        "f().get('b')['c'] == [7]",
        "'a' in f() and 'z' not in f()",
        "set(f()) == {'a', 'b'}",
        "f().keys() == {'a', 'b'}",
        "dict(f())['a'] == 1",
        "list(f().items())[0] == ('a', 1)",
        "json.dumps(f()['b']) == '{\"c\": [7]}'",
    ),
    COUNTING: (
        "list(f(4)) == [0, 1, 4, 9]",
        "sum(f(4)) == 14",
        "[a for a, b in zip(f(9), 'abc')] == [0, 1, 4]",
        "9 in f(5) and 8 not in f(5)",
        "[*f(3)] == [0, 1, 4]",
        "max(f(4)) == 9",
    ),
    "def f(x):\n    def g(y): return 10 * x + y\n    return g": (
        "f(3)(4) == 34",
        "[g(1) for g in map(f, (2, 3))] == [21, 31]",
    ),
    "from typing import NamedTuple\nclass Thing(NamedTuple):\n    low: int\n    high: int\n"
    "    def width(self): return self.high - self.low\ndef f(x): return Thing(min(x), max(x))": (
        "f([2, 7, 5]) == (2, 7)",
        "f([2, 7, 5]).high == 7",
        "f([7, 2, 5])[0] == 2",
        "f([2, 7, 5]).width() == 5",
        "Thing(2, 9).width() == 7",
        "str(f([2, 7])) == 'Thing(low=2, high=7)'",
        "f([2, 7])._asdict() == {'low': 2, 'high': 7}",
        "sum(f([2, 7, 5])) == 9",
    ),
    "from enum import Enum, IntEnum\nclass Thing(Enum):\n    RED = 7\n    BLUE = 9\n"
    "class Level(IntEnum):\n    LOW = 3\ndef f(x): return Thing.RED if x else Thing.BLUE\ndef g(): return Level.LOW": (
        "Thing.RED.value == 7",
        "f(1).name == 'RED' and f(0).name == 'BLUE'",
        "Thing(9).name == 'BLUE'",
        "[t.value for t in Thing] == [7, 9]",
        "s.g() == 3 and s.g().name == 'LOW'",
        "s.Level.LOW + 1 == 4",
    ),
    "class Thing(float):\n    def celsius(self): return (self - 32) / 1.8": (
        "Thing(50) + 1 == 51",
        "abs(Thing(50).celsius() - 10) < 1e-9",
    ),
    "class Thing(str):\n    def shout(self): return self.upper() + '!'": ("Thing('ab').shout() == 'AB!'",),
    "class Thing(dict):\n    def total(self): return sum(self.values())\n": (
        "Thing({'a': 3, 'b': 4}).total() == 7",
        "Thing({'a': 3}, b=4) == {'a': 3, 'b': 4}",
    ),
    "class Thing(list):\n    def middle(self): return sorted(self)[len(self) // 2]\n"
    "def f(*a): return Thing([3, 1, 2])": (
        "Thing([9, 5, 7]).middle() == 7",
        "Thing([9, 5]) + [1] == [9, 5, 1]",
        "f().middle() == 2 and f() == [3, 1, 2]",
        "sorted(f()) == [1, 2, 3]",
    ),
    "from collections import Counter, deque\nf = Counter\ndef g(x): return deque(x, 2)": (
        "f('aab') == {'a': 2, 'b': 1}",
        "list(s.g('abc')) == ['b', 'c']",
    ),
    BOX: (
        "Thing(3).x == 4",
        "Thing(3, 4).area() == 12",
        "abs(Thing(3, 4).area() - 12.0) < 1e-6",
        "Thing(3).doubled == 8",
        "Thing.of('2').x == 5",
        "Thing.triple(5) == 15",
        "Thing(3)(5) == 9",
        "str(Thing(3)) == 'Thing <4>'",
        "repr(Thing(3, 2)) == 'Thing(3, 2)'",
        "f'{Thing(3)}!' == 'Thing <4>!'",
        "float(Thing(3)) == 4.5",
        "len(Thing(3, 5)) == 9",
        "abs(Thing(3, 5)) == 20",
        "(-Thing(3)).x == -4",
        "(Thing(1, 2) + Thing(3, 5)).x == 6",
        "vars(Thing(1, 2) + Thing(3, 5)) == {'x': 6, 'y': 7}",
        "Thing(1, 2) * Thing(3, 5) == 18",
        "Thing(3).twice().x == 8",
        "[t.x for t in sorted((Thing(5), Thing(2)), key=lambda t: t.x)] == [3, 6]",
        "max((Thing(5), Thing(2)), key=lambda t: t.x).area() == 5",
        "sum(t.area() for t in (Thing(2), Thing(5))) == 7",
        "isinstance(Thing(3), Thing) and Thing(3).x == 4",
        "getattr(Thing(3), 'x') == 4 and not hasattr(Thing(3), 'z')",
        "Thing(3).__add__(Thing(1)).x == 6",
    ),
    SORTED: (
        "list(Thing([6, 5, 7])) == [5, 6, 7]",
        "Thing([6, 5, 7])[0] == 5",
        "Thing([6, 5, 7])[-1] == 7 and len(Thing([6, 5])) == 2",
        "Thing([6, 5, 7])[1:] == [6, 7]",
        "[x - y for x, y in zip(Thing([6, 5]), [1, 2])] == [4, 4]",
        "5 in Thing([6, 5]) and 4 not in Thing([6, 5])",
        "[*Thing([6, 5])] == [5, 6]",
        "max(Thing([6, 5])) - min(Thing([6, 5])) == 1",
        "dict(enumerate(Thing([6, 5]))) == {0: 5, 1: 6}",
    ),
    NODES: (
        "list(Thing([1, 2, 3])) == [3, 2, 1]",
        "Thing([1, 2, 3]).head.next.value == 2",
        "list(Thing([1, 2, 4]).reversed().reversed()) == [4, 2, 1]",
    ),
}

FORMS = [asserted(expression, right) for right, expressions in _ASSERTED.items() for expression in expressions]
FORMS += [
    unit("self.assertEqual(f(2), 4)", SQUARE),
    unit("self.assertAlmostEqual(f(2), 4.0)", SQUARE),
    unit("self.assertAlmostEqual(4.0, f(2), places=3)", SQUARE),
    unit("self.assertAlmostEqual(f(2), 4.0, delta=0.1)", SQUARE),
    unit("self.assertTrue(f(3))\nself.assertFalse(f(1))", ABOVE),
    unit("self.assertGreater(f(2), 3)\nself.assertLess(f(2), 5)", SQUARE),
    unit("self.assertIsInstance(f(2), int)\nself.assertEqual(f(3), 9)", SQUARE),
    unit("self.assertNotEqual(f(2), 5)\nself.assertEqual(f(2), 4)", SQUARE),
    unit("self.assertIn('cab', f())", TEXT),
    unit("self.assertIn(f(2), [4, 5])", SQUARE),
    unit("self.assertNotIn('x', f())\nself.assertIn('c', f())", TEXT),
    unit("self.assertRegex(f(), 'c.b')", TEXT),
    unit("self.assertMultiLineEqual(f(), 'abcab')", TEXT),
    unit("self.assertListEqual(f(), [1, 2])", NUMBERS),
    unit("self.assertSequenceEqual(f(), [1, 2])", NUMBERS),
    unit("self.assertCountEqual(f(), [2, 1])", NUMBERS),
    unit("for a, b in zip(f(), [1.0, 2.0]):\n    self.assertAlmostEqual(a, b)", NUMBERS),
    unit("self.assertEqual(len(f()), 2)\nself.assertEqual(f()[1], 2)", NUMBERS),
    unit("self.assertSetEqual(f(), set('abcd'))", LETTERS),
    unit("self.assertDictEqual(f(), {'a': 1, 'b': {'c': [7]}})", TABLE),
    unit("self.assertTupleEqual(f(), (1, 'b'))", "def f(): return 1, 'b'"),
    unit("self.assertIsNone(f(0))\nself.assertEqual(f(1), 5)", "def f(x): return 5 if x else None"),
    unit("for x, y in ((2, 4), (3, 9)):\n    with self.subTest(x):\n        self.assertEqual(f(x), y)", SQUARE),
    unit(
        "with self.assertRaises(ValueError):\n    f(-1)\nself.assertEqual(f(4), 2)",
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x ** 0.5",
    ),
    unit(
        "with self.assertRaisesRegex(ValueError, '^negative: -1$'):\n    f(-1)",
        "def f(x): raise ValueError(f'negative: {x}')",
    ),
    unit(
        "with self.assertRaises(KeyError) as caught:\n    f(-1)\nself.assertEqual(caught.exception.args, ('key -1',))",
        "def f(x): raise KeyError(f'key {x}')",
    ),
    unit(
        "with self.assertRaises(s.Empty) as caught:\n    Thing().pop()\n"
        "self.assertEqual((str(caught.exception), caught.exception.size), ('no item among 40', 40))",
        STACK,
    ),
    unit("self.assertIsInstance(Thing(3), Thing)\nself.assertEqual(Thing(3).area(), 3)", BOX),
    unit("t = Thing()\nfor i in (1, 2, 3):\n    t.push(i)\nt.pop()\nself.assertEqual(t.pop(), 2)", STACK),
    unit("t = Thing()\nt.push(8)\nt.push(9)\nt.pop()\nself.assertEqual(len(t), 1)", STACK),
    lines("a changed argument", "d = [3, 1, 2]\nf(d)\nassert d == [1, 2, 3]", "def f(d): d.sort()"),
    lines("a changed dict", "d = {'a': 1}\nf(d)\nassert d == {'a': 2}", "def f(d): d['a'] += 1"),
    lines("a changed keyword", "d = [3, 1]\nf(d=d)\nassert d == [1, 3]", "def f(d): d.sort()"),
    lines("an oracle of a copy", "d = [3, 1, 2]\nassert f(list(d)) == sorted(d)", "f = sorted"),
    lines(
        "worst error", "worst = 0\nfor x in (2, 3): worst = max(worst, abs(f(x) - x * x))\nassert worst < 1e-9", SQUARE
    ),
    lines("a loop", "for x, y in {2: 4, 3: 9}.items():\n    assert f(x) == y", SQUARE),
    lines("a loop over zip", "for a, b in zip(f(), [1, 2]):\n    assert a == b", NUMBERS),
    lines(
        "while not None",
        "n, seen = Thing([1, 2]).head, []\nwhile n is not None:\n    seen.append(n.value)\n    n = n.next\n"
        "assert seen == [2, 1]",
        NODES,
    ),
    lines("an attribute is set", "t = Thing(3)\nt.x = 5\nassert t.doubled == 10", BOX),
    lines(
        "an item is set",
        "t = Thing()\nt.push(4)\nt.push(6)\nt[1] = 5\ndel t[0]\nassert (t.pop(), len(t)) == (5, 0)",
        STACK,
    ),
    lines("a copy", "t = Thing()\nt.push(8)\nt.push(9)\nu = t.copy()\nu.pop()\nassert u.pop() == 8 != len(t)", STACK),
    lines(
        "with",
        "with Thing() as t:\n    assert t.read() == 'open'\nassert t.read() == 'closed'",
        """
        class Thing:
            def __enter__(self): self.state = "open"; return self
            def __exit__(self, *error): self.state = "closed"
            def read(self): return self.state
        """,
    ),
    lines(
        "contextlib",
        "d = []\nwith f(3) as t:\n    assert t == 9",
        """
        from contextlib import contextmanager
        @contextmanager
        def f(x): yield x * x
        """,
    ),
    lines("asyncio.run", "import asyncio\nassert asyncio.run(f(3)) == 9", "async def f(x): return x * x"),
    lines("next", "g = f(9)\nassert [next(g), next(g), next(g)] == [0, 1, 4]", COUNTING),
    lines(
        "try",
        "try:\n    f(0)\nexcept ZeroDivisionError:\n    assert f(4) == 2\nelse:\n    assert False",
        "def f(x): return 8 / x",
    ),
    lines("star import", "names = {}\nexec('from s import *', names)\nassert names['f'](3) == 9", SQUARE),
    lines("no change", "d = [3, 1, 2]\nassert f(d) == [1, 2, 3]\nassert d == [3, 1, 2]", "f = sorted"),
    lines(
        "a dataclass",
        "t = Thing('a', [3, 4])\nassert (t.name, t.total) == ('a', 7)\n"
        "assert repr(t) == \"Thing(name='a', items=[3, 4])\"",
        """
        from dataclasses import dataclass
        @dataclass
        class Thing:
            name: str
            items: list
            @property
            def total(self): return sum(self.items)
        """,
    ),
    lines(
        "a program",
        "import subprocess, sys\nrun = subprocess.run([sys.executable, 's.py'], capture_output=True, text=True)\n"
        "assert run.stdout == '42\\n'",
        "print(6 * 7)",
    ),
    Form(
        "await",
        f"import asyncio\n{HEADER}\nasync def test_it():\n"
        "    assert await f(3) == 9\n    assert await asyncio.gather(f(1), f(2)) == [1, 4]\n",
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x * x" + REST,
    ),
]

REFUSED = {
    "Thing(1) == Thing(1)": "compare vars",
    "Thing(1) != Thing(2)": "compare vars",
    "Thing(1) < Thing(2)": "compare vars",
    "sorted([Thing(2), Thing(1)])": "compare vars",
    "Thing(1) in [Thing(1)]": "compare vars",
    "Thing(1, 2) + Thing(1, 1) == Thing(2, 3)": "compare vars",
    "Thing(3)": "is not None",
    "not Thing(3)": "is not None",
    "hash(Thing(1)) == hash(Thing(1))": "a hash is needed",
    "len({Thing(1), Thing(1)}) == 1": "a hash is needed",
    "Thing(1) != 5": "no plain value",
    "Thing(3) + 1": "no plain value",
    "2 * Thing(3)": "no plain value",
    "f(3).count('a')": "was asked count",
}
"""Assertions that an object of the solution could answer in its own favour -> words of the error that tells the test's
author what to write instead.
"""
REFUSED_OF = BOX.replace("__len__", "__size__") + "    def count(self, x): return 1\ndef f(x): return Thing(x)" + REST

# --- Run them.


async def whys(hidden: HiddenTests, solution: str, forms: Sequence[Form]) -> list[str]:
    """The reason why the solution fails each form; "" if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        await asyncio.to_thread(workspace.joinpath("s.py").write_text, solution, encoding="utf-8")
        tests = {f"test_{i}.py": form.test for i, form in enumerate(forms)}
        return list((await hidden.run(workspace, tests)).why.values())


async def passed_by(hidden: HiddenTests, solution: str, forms: Sequence[Form]) -> list[str]:
    return [form.name for form, why in zip(forms, await whys(hidden, solution, forms), strict=True) if not why]


async def failed_by_right(hidden: HiddenTests, forms: Sequence[Form]) -> dict[str, str]:
    """The forms that their own correct solution fails -> the reason."""
    alone = [await whys(hidden, form.right, [form]) for form in forms]
    return {form.name: why for form, (why,) in zip(forms, alone, strict=True) if why}


async def attempts(*, step: int = 1) -> list[tuple[str, bool]]:
    """Return (solution and form, whether the result is as expected): every form with its correct solution and with the
    agreeable one. Every other solution that knows nothing tries each `step`-th form, starting one form later than the
    previous solution."""
    hidden = HiddenTests(test_timeout_s=5.0, timeout_s=7200.0, max_concurrent=os.cpu_count() or 1)
    shares = [
        (name, FORMS if name == "agreeable" else FORMS[i % step :: step]) for i, name in enumerate(KNOWING_NOTHING)
    ]
    try:
        *passing, failed = await asyncio.gather(
            *(passed_by(hidden, KNOWING_NOTHING[name], forms) for name, forms in shares), failed_by_right(hidden, FORMS)
        )
    finally:
        await hidden.close()
    right = [(f"right: {form.name}", form.name not in failed) for form in FORMS]
    wrong = [
        (f"{name}: {form.name}", form.name not in names)
        for (name, forms), names in zip(shares, passing, strict=True)
        for form in forms
    ]
    return right + wrong


if __name__ == "__main__":
    tried = asyncio.run(attempts(step=1 if "--whole" in sys.argv else 8))
    bad = [what for what, is_right in tried if not is_right]
    print(*bad, f"{len(tried) - len(bad)} passed, {len(bad)} failed", sep="\n")
    raise SystemExit(bool(bad))
