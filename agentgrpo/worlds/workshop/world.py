"""The workshop's problems: the question, the files that hold the answer, and the calls that it takes."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from agentgrpo.core.chance import generator
from agentgrpo.core.types import Message, Task
from agentgrpo.worlds.almanac import world as almanac
from agentgrpo.worlds.almanac.world import Pool

# --- Names of things that are made, sold and shipped ("velmor"), sorted into three pools; and names of people, who are
# part of no answer and the same in every pool.


@cache
def items(pool: Pool) -> tuple[str, ...]:
    """The almanac's names of the pool in lower case, except names in -s, because a plural is the name and an s."""
    return tuple(name.lower() for name in almanac.names(pool) if not name.endswith("s"))


@cache
def people() -> tuple[str, ...]:
    return tuple(json.loads((Path(__file__).parent / "people.json").read_text(encoding="utf-8")))


def beginning() -> str:
    """A regular expression for the first syllable of any name, with the space before it. It cuts a name into two
    tokens, each of which is as common in held-out names as in training names."""
    first, second = ("|".join(group) for group in almanac.syllables())
    return f" ?(?<![a-z])(?:{first})(?=(?:{second})(?![a-z]))".lower()


# --- Values of integer expressions, for the workshop's answers and its stand-in for python.

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def value_of(expression: str) -> int:
    """Evaluate whole numbers, + - *, parentheses and sum(range(from, to)). Raises ValueError for anything else."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as e:
        raise ValueError(f"'{expression}' is not an expression") from e
    return _value(tree.body)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id="sum"), args=[ast.Call(func=ast.Name(id="range"), args=[low, high])]):
            return sum(range(_value(low), _value(high)))
    raise ValueError(f"'{ast.unparse(node)}': whole numbers, + - * and sum(range(from, to)) are allowed")


TABLES = ("prices", "weights", "imports")
ITEMS_PER_TABLE = 5
NOTE = "note.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of kinds.json. In its texts p and q are people, a, b and c numbers, x and y items; {0} and {1} stand for
    the values of x and y in the tables."""

    name: str
    question: str
    expression: str
    """Its value is the answer."""
    half_done: str = ""
    """The expression without its last step, as a careless worker computes it."""
    table: str = ""
    """The table that should hold the value of x (and y) ..."""
    moved_to: str = ""
    """... and the table that holds it instead."""
    note: str = ""
    """The text of the file that must be read first."""
    rising: bool = False
    """a is smaller than b."""
    turns: int = 1
    """How often it comes in a round of demonstrations."""

    @property
    def num_items(self) -> int:
        """Number of items whose values must be looked up."""
        return ("{0}" in self.expression) + ("{1}" in self.expression)

    @property
    def needs_python(self) -> bool:
        return "sum(" in self.expression

    @property
    def is_computed(self) -> bool:
        """Whether the answer must be computed."""
        return any(operator in self.expression for operator in "+-*")


@cache
def kinds() -> Mapping[str, Kind]:
    """Kinds by name, in a fixed order."""
    rows = json.loads((Path(__file__).parent / "kinds.json").read_text(encoding="utf-8"))
    return {name: Kind(name=name, **row) for name, row in rows.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One drawn problem. `expression` and `half_done` hold its numbers, with {0} and {1} left for looked-up values."""

    kind: Kind
    question: str
    expression: str
    half_done: str
    items: tuple[str, ...]
    """Items whose values must be looked up, in order."""
    values: tuple[str, ...]
    """The values of `items`."""
    files: Mapping[str, str]

    @property
    def answer(self) -> int:
        return value_of(self.expression.format(*self.values))

    @property
    def ideal_calls(self) -> dict[str, int]:
        """Tool -> number of calls of an ideal policy; a moved value costs one failed call."""
        calls = {
            "read_file": int(bool(self.kind.note)),
            "lookup": len(self.items) + bool(self.kind.moved_to),
            "python": int(self.kind.needs_python),
            "calculator": int(self.kind.is_computed and not self.kind.needs_python),
        }
        return {tool: count for tool, count in calls.items() if count}

    def task(self, task_id: str) -> Task:
        return Task(
            id=task_id,
            messages=(Message(role="user", content=self.question),),
            references=(str(self.answer),),
            metadata={
                "kind": self.kind.name,
                "files": dict(self.files),
                "milestones": list(self.values),
                "ideal_calls": self.ideal_calls,
            },
            data_source="workshop",
        )


def draw_problem(kind: Kind, pool: Pool, *key: object) -> Problem:
    """Draw a problem with names of `pool`, as a pure function of the arguments."""
    rng = generator("workshop", *key)
    names = rng.sample(items(pool), ITEMS_PER_TABLE)
    p, q = rng.sample(people(), 2)
    a, b, c = (rng.randint(11, 99) for _ in range(3))
    if kind.rising:
        a, b = rng.randint(11, 49), rng.randint(51, 99)
    tables = _tables(kind, names, rng) if kind.table else {}
    needed = tuple(names[: kind.num_items])
    words = {"p": p, "q": q, "a": a, "b": b, "c": c, "x": names[0], "y": names[1]}
    files = {f"{table}.txt": _text(rows) for table, rows in tables.items()}
    if kind.note:
        files[NOTE] = kind.note.format(**words) + "\n"
    return Problem(
        kind=kind,
        question=kind.question.format(**words),
        expression=kind.expression.format("{0}", "{1}", **words),
        half_done=kind.half_done.format("{0}", "{1}", **words),
        items=needed,
        values=tuple(tables[kind.moved_to or kind.table][name] for name in needed),
        files=files,
    )


def _tables(kind: Kind, names: Sequence[str], rng: Random) -> dict[str, dict[str, str]]:
    """Every table has all the names, each in its own order. The first name is missing in imports; if its value was
    moved there, `kind.table` says so instead."""
    tables = {}
    for table in TABLES:
        held = [name for name in names if table != "imports" or kind.moved_to or name != names[0]]
        tables[table] = {name: str(rng.randint(11, 99)) for name in rng.sample(held, len(held))}
    if kind.moved_to:
        tables[kind.table][names[0]] = f"see {kind.moved_to}"
    return tables


def _text(rows: Mapping[str, str]) -> str:
    """One row a line: "velmor 42"."""
    return "".join(f"{name} {value}\n" for name, value in rows.items())
