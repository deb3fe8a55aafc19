"""Scripted workers for this world: the oracle, and the careless one that demonstrates for warm starts.

Both are scripts that yield calls and receive their results. They know the question of a problem, not the contents of
its files."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random

from agentgrpo.core.chance import generator
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import MalformedCall, ParsedTurn
from agentgrpo.tasks.scripts import Script, answer, call, turn_after
from agentgrpo.worlds.workshop.world import NOTE, Problem

_MOVED = re.compile(r"\bis in (\w+)\b")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkshopHabits:
    """How wasteful and how careless demonstrations are: probabilities in [0, 1], and the most calls they make."""

    python: float = 0.6
    """Use python for a computation that the calculator can do."""
    python_needed: float = 0.8
    """Use python for a computation that only python can do."""
    malformed: float = 0.1
    """Spoil the arguments of a call: a quote or a brace is missing, or a key has another name."""
    unknown_tool: float = 0.1
    letters: float = 0.05
    """Give the calculator a name instead of numbers."""
    repeat: float = 0.3
    """Repeat a finished computation."""
    half_done: float = 0.6
    """Leave out the last step of a computation that has one to leave out."""
    give_up: float = 0.6
    """Answer with a number from the question after a failed call."""
    give_up_key: float = 0.25
    """Like `give_up`, after a look-up of an unknown key."""
    plural: float = 0.6
    """Look a thing up under its plural, which no table has."""
    read: float = 0.3
    """Read the whole table instead of looking up."""
    needless: float = 0.55
    """Call a tool although the question states the answer."""
    wrong: float = 0.05
    """Answer with a number from the question in spite of the result."""
    max_calls: int = 6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "max_calls" and not 0 <= value <= 1:
                raise ConfigError(f"habits.{field.name}={value}; a probability in [0, 1] is allowed")
        if self.max_calls < 1:
            raise ConfigError(f"habits.max_calls={self.max_calls}; at least 1 is allowed")


def lookup(table: str, key: str) -> ParsedTurn:
    # the space makes the key the same tokens as the word in the question
    return call("lookup", table=table, key=f" {key}")


def compute(expression: str, *, python: bool) -> ParsedTurn:
    return call("python", code=f"print({expression})") if python else call("calculator", expression=expression)


def failed(observed: str) -> bool:
    return observed.startswith("error")


class WorkshopOracle:
    """Makes the fewest and cheapest calls: python only if the calculator cannot do it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return turn_after(answered, self._script())

    def _script(self) -> Script:
        problem, kind = self.problem, self.problem.kind
        if kind.note:
            yield call("read_file", path=NOTE)
        values = []
        for item in problem.items:
            observed = yield lookup(kind.table, item)
            if moved := failed(observed) and _MOVED.search(observed):
                observed = yield lookup(moved[1], item)
            values.append(observed)
        expression = problem.expression.format(*values)
        if not kind.is_computed:
            return answer(expression)
        return answer((yield compute(expression, python=kind.needs_python)))


class Careless:
    """Computes expensively, spoils calls, gives up, repeats itself and leaves work half done. Its choices are a
    function of `key`: equal results get equal turns."""

    def __init__(self, problem: Problem, habits: WorkshopHabits, *, key: str) -> None:
        self.problem, self.habits, self.key = problem, habits, key

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return turn_after(answered, _Careless(self.problem, self.habits, generator("careless", self.key)).script())


class _Careless:
    """One episode of Careless, from its first turn."""

    def __init__(self, problem: Problem, habits: WorkshopHabits, rng: Random) -> None:
        self.problem, self.habits, self.rng = problem, habits, rng
        self.calls = 0

    def script(self) -> Script:
        value = yield from self._work()
        seen = _NUMBER.findall(self.problem.question)
        if value is None or (seen and self._does(self.habits.wrong)):
            value = self.rng.choice(seen) if seen else "0"
        return answer(value)

    def _work(self) -> Generator[ParsedTurn, str, str | None]:
        """The answer; None if the worker gave up."""
        kind = self.problem.kind
        if kind.note and not (yield from self._read_note()):
            return None
        values: list[str] = []
        for item in self.problem.items:
            value = yield from self._find(item)
            if value is None:
                return None
            values.append(value)
        half_done = bool(self.problem.half_done) and self._does(self.habits.half_done)
        expression = (self.problem.half_done if half_done else self.problem.expression).format(*values)
        if kind.is_computed or (not kind.table and self._does(self.habits.needless)):
            return (yield from self._compute(expression))
        return expression

    def _read_note(self) -> Generator[ParsedTurn, str, bool]:
        while self.calls < self.habits.max_calls:
            if not failed((yield from self._call("read_file", path=NOTE))):
                return True
            if self._does(self.habits.give_up):
                break
        return False

    def _find(self, item: str) -> Generator[ParsedTurn, str, str | None]:
        """The item's value in the table; None if the worker gave up."""
        kind, table = self.problem.kind, self.problem.kind.table
        key = f"{item}s" if kind.name != "price" and self._does(self.habits.plural) else item
        reads = True
        while self.calls < self.habits.max_calls:
            if reads and self._does(self.habits.read):
                observed = yield from self._call("read_file", path=f"{table}.txt")
                if found := re.search(rf"^{item} (\d+)$", observed, re.MULTILINE):
                    return found[1]
                reads = failed(observed)  # a table shown without the item will not have it next time
                if reads and self._does(self.habits.give_up):
                    return None
                continue
            observed = yield from self._call("lookup", table=table, key=f" {key}")
            if not failed(observed):
                return observed
            is_unknown = "unknown key" in observed
            if is_unknown:
                key = item
            if moved := _MOVED.search(observed):
                table = moved[1]
            if self._does(self.habits.give_up_key if is_unknown else self.habits.give_up):
                return None
        return None

    def _compute(self, expression: str) -> Generator[ParsedTurn, str, str | None]:
        habits = self.habits
        while self.calls < habits.max_calls:
            python = self._does(habits.python_needed if self.problem.kind.needs_python else habits.python)
            tool = "python" if python else "calculator"
            arguments = {"code": f"print({expression})"} if python else {"expression": expression}
            observed = yield from self._call(tool, **arguments)
            if not failed(observed):
                if self.calls < habits.max_calls and self._does(habits.repeat):
                    yield from self._call(tool, **arguments)
                return observed
            if self._does(habits.give_up):
                break
        return None

    def _call(self, tool: str, **arguments: str) -> Generator[ParsedTurn, str, str]:
        """Make a call, as intended or spoilt."""
        habits, chance = self.habits, self.rng.random()
        turn = call(tool, **arguments)
        if chance < habits.malformed:
            turn = self._spoil(tool, arguments)
        elif chance < habits.malformed + habits.unknown_tool:
            turn = call("calc" if tool in ("calculator", "python") else "search", **arguments)
        elif chance < habits.malformed + habits.unknown_tool + habits.letters and tool == "calculator":
            turn = call(tool, expression=next(iter(self.problem.items), "x"))
        self.calls += 1
        return (yield turn)

    def _spoil(self, tool: str, arguments: Mapping[str, str]) -> ParsedTurn:
        """Drop the last quote, drop the last brace, or rename the last key."""
        written = json.dumps(arguments)
        match self.rng.randrange(3):
            case 0:
                written = written.removesuffix('"}') + "}"
            case 1:
                written = written.removesuffix("}")
            case _:
                *others, last = arguments.items()
                return call(tool, **dict([*others, ("input", last[1])]))
        text = f"Action: {tool}\nAction Input: {written}"
        return ParsedTurn(calls=(MalformedCall(text=text, problem="", name=tool),))

    def _does(self, chance: float) -> bool:
        return self.rng.random() < chance
