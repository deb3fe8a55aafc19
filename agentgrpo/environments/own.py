"""Environments of a user's own: `environment=my_env:Shop`, a class in one of three shapes.

    typed methods            public methods are tools, as TRL's environment_factory takes them: `reset(...)` returns a
                             text or nothing, `get_reward()` (or `reward()`, or the attribute `reward`) a number
    reset and step           async, as environments.base.Environment says; `score` and `close` may be left out
    a ToolEnvironment        a subclass, which has the attempt's workspace: overrides `reset` or `score`

The parameters of its constructor are keys of the YAML node, beside those of environment=tools. An exception that it
raises becomes an EnvironmentFailure of that attempt.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import NoneType
from typing import Any, TypeVar

from agentgrpo.core.errors import BadValue, ConfigError, DataError, EnvironmentFailure, boundary, is_asked_for, line_of
from agentgrpo.core.messages import ToolReply, content_of, text_in
from agentgrpo.core.numbers import named, number, refuse_taken, row
from agentgrpo.core.outside import CLOSE_S, Caller, OwnThread, called, holding
from agentgrpo.core.types import Citation, Episode, Exit, Message, Task, ToolRecord
from agentgrpo.environments.base import Environment, Observation, Scores, Turn
from agentgrpo.environments.factory import Attempt
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.tools.environment import ToolEnvironment, ToolEnvironments
from agentgrpo.environments.tools.state import PRICE, ToolState, episode_metrics
from agentgrpo.records.trajectories import foreign
from agentgrpo.tasks.columns import columns_of
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.functions import spec_of
from agentgrpo.tools.toolbox import Toolbox

T = TypeVar("T")
REWARD = ("get_reward", "reward")
"""Names of the method or number that gives an attempt's reward; the first that exists counts."""
_ROWS = {
    "messages": (Message, ToolReply),
    "then": (Message, ToolReply),
    "calls": (ToolRecord,),
    "citations": (Citation,),
    "notes": (Mapping,),
    "shown": (str,),
    "repeats": (int,),
}
_HELD = {"done": (Exit, NoneType), "answer": (str, NoneType), "seat": (str,), **_ROWS}
"""Field of an Observation -> allowed types; for a field of _ROWS, of each element."""
NO_TOOLS = frozenset({"reset", "close", *REWARD})
"""Public methods that are not tools."""
TURNS = "turns"
"""The metric that every user-defined environment has."""
TAKEN = frozenset({TURNS, *(f"exit_{e.value}" for e in Exit)})
"""Names that a class may not give to its own metrics."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnEnvironments(ToolEnvironments):
    """Implements environments.factory.EnvironmentFactory: makes a fresh object of the user's class for each attempt.

    A class may set `quality`, the metric by which policies are compared (default: reward), and `costs`, the metrics
    that should fall (default: turns).
    """

    kind: type
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its constructor."""
    timeout_s: float | None = 600.0
    """Maximum seconds of a call of reset, step or score; None = no limit. The limit of `close` is CLOSE_S."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(
                f"environment.timeout_s={self.timeout_s:g}; more than 0, or null for no limit, is allowed"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.kind.__module__}:{self.kind.__qualname__}"

    @cached_property
    def methods(self) -> Mapping[str, MethodTool]:
        """The class's own methods as tools; empty if the class answers turns itself."""
        if issubclass(self.kind, ToolEnvironment) or answers_turns(self.kind):
            return {}
        return {name: MethodTool(self.kind, name) for name in _tool_names(self.kind)}

    @cached_property
    def toolbox(self) -> Toolbox:
        if clash := sorted(self.methods.keys() & self.tools.keys()):
            raise ConfigError(f"{self.name} and tools= both have a tool {clash[0]}; rename one, or leave tools= out")
        return self._toolbox_of({**self.tools, **self.methods})

    @cached_property
    def figures(self) -> Figures:
        quality = str(getattr(self.kind, "quality", "reward"))
        costs = tuple(map(str, getattr(self.kind, "costs", (TURNS,))))
        counts = {name: f"calls/{name}" for name in (*self.tools, *self.methods)}
        counted = ("tool_calls", "failed_calls") if counts else ()
        return Figures(
            columns=tuple(dict.fromkeys((*costs, TURNS, *counted, *counts.values()))),
            headline=(quality, *costs, "cost"),
            by_kind=(quality, *costs),
            quality=quality,
            is_graded=False,
            spending=costs[0],
            counts=counts,
            prices=dict.fromkeys(counts, PRICE),
        )

    @property
    def metrics(self) -> frozenset[str]:
        """Empty: the metrics are not known before `score` returns."""
        return frozenset()

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names of the metrics that are measured around the class; its score may not use them."""
        counted = () if answers_turns(self.kind) else episode_metrics(ToolState(), tools=self.toolbox.names)
        return TAKEN.union(counted)

    def make(self, attempt: Attempt) -> Environment:
        if self.methods:
            return Guarded(MethodEnvironment(self, attempt), self, attempt)
        at = (self, attempt) if issubclass(self.kind, ToolEnvironment) else ()
        constructor = f"{self.name}, its constructor"
        with boundary(EnvironmentFailure, constructor), holding(f"{constructor} (task {attempt.task.id})"):
            own = called(self.kind, *at, **self.arguments).result()
        return Guarded(own, self, attempt)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory. Checks that the task has the columns that `reset` asks for."""
        if self.methods:
            row_for(self.kind.reset if hasattr(self.kind, "reset") else None, task, where=self.name)

    def opening_tokens(self, task: Task, *, most: int) -> int | None:
        """See environments.factory.EnvironmentFactory. None if the class has its own `reset`, which decides the
        opening."""
        resets = getattr(self.kind, "reset", None) is not ToolEnvironment.reset
        return None if resets else super().opening_tokens(task, most=most)


def own_environments(kind: type) -> Callable[..., OwnEnvironments]:
    """The constructor of `kind`'s factory, which takes the keys of environment=tools and those of `kind` itself."""
    if not inspect.isclass(kind):
        raise ConfigError(f"environment.name: {kind!r} is not a class; see agentgrpo/docs/environments.md")
    _refuse_shapeless(kind)
    theirs = _parameters_of(kind)
    ours = dict(inspect.signature(OwnEnvironments).parameters)
    del ours["kind"], ours["arguments"]
    hints = {**typing.get_type_hints(OwnEnvironments), **{name: p.annotation for name, p in theirs.items()}}

    def make(**given: Any) -> OwnEnvironments:
        arguments = {name: value for name, value in given.items() if name in theirs}
        shared = {name: value for name, value in given.items() if name in ours}
        return OwnEnvironments(kind=kind, arguments=arguments, **shared)

    together = {**ours, **theirs}
    make.__signature__ = inspect.Signature(list(together.values()))  # type: ignore[attr-defined]
    make.__annotations__ = {name: hints[name] for name in together}
    make.__qualname__ = kind.__qualname__
    make.pays_itself = pays(kind)  # type: ignore[attr-defined]
    return make


def pays(kind: type) -> bool:
    """Whether the class may give a reward: REWARD names one of its members, or an attribute that its methods set."""
    if answers_turns(kind) or issubclass(kind, ToolEnvironment):
        return True
    functions = [inspect.unwrap(f) for base in kind.__mro__ for f in vars(base).values() if inspect.isfunction(f)]
    sets = any("reward" in (*f.__code__.co_names, *f.__code__.co_consts) for f in functions if inspect.isfunction(f))
    return sets or any(hasattr(kind, name) for name in (*REWARD, "__getattr__"))


def answers_turns(kind: type) -> bool:
    """Whether the class has async `step` and `reset`, as Environment has."""
    return all(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in ("reset", "step"))


class Guarded:
    """Wraps a user's environment: its errors become EnvironmentFailures and its texts Observations, its turns are
    counted, and its scores must be numbers under names that are not taken."""

    def __init__(self, own: Any, options: OwnEnvironments, attempt: Attempt) -> None:
        self._own, self._name, self._taken = own, options.name, options.taken
        self._timeout_s = options.timeout_s
        self._caller = Caller(f"task {attempt.task.id}, sample {attempt.sample_index}")

    async def reset(self, task: Task) -> Observation:
        async def reset() -> Observation:
            said = await self._own.reset(task)
            if isinstance(said, Observation):
                return self._counted(said, {}, "reset")
            return Observation(messages=opening_of(task, said, self._name))

        observation: Observation = await self._timed("reset", reset)
        return observation

    async def step(self, turn: Turn) -> Observation:
        async def step() -> Observation:
            said = await self._own.step(turn)
            if isinstance(said, str):
                said = Observation(messages=[Message(role="user", content=said)])
            if isinstance(said, Observation):
                return self._counted(said, {TURNS: turn.index + 1}, "step")
            raise EnvironmentFailure(
                f"{self._name}.step returned a {type(said).__name__}; an Observation or a text is allowed", kind="shape"
            )

        observation: Observation = await self._timed("step", step)
        return observation

    async def score(self, episode: Episode) -> Scores:
        """A class that answers turns may have paid for each of them, so its reward here is 0 unless `score` gives
        one."""
        paid = {} if isinstance(self._own, ToolEnvironment) else {"reward": 0.0}

        async def score() -> Scores:
            said = await self._own.score(episode) if hasattr(self._own, "score") else None
            where = f"{self._name}.score"
            if isinstance(said, Mapping) and "reward" in said:
                return scores_of(said, where, turns=len(episode.turns), taken=self._taken)
            return {**paid, **scores_of(said, where, turns=len(episode.turns), taken=self._taken)}

        scores: Scores = await self._timed("score", score)
        return scores

    async def close(self) -> None:
        async def close() -> None:
            if hasattr(self._own, "close"):
                await _awaited(self._own.close())

        try:
            if not self._caller.is_ended:
                await self._call("close", close, within_s=CLOSE_S)
        finally:
            self._caller.end()

    async def _timed(self, method: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._call(method, call, within_s=self._timeout_s, hint="; environment.timeout_s is the limit")

    async def _call(self, method: str, call: Callable[[], Awaitable[Any]], **limit: Any) -> Any:
        return await self._caller.call(EnvironmentFailure, f"{self._name}.{method}", call, **limit)

    def _counted(self, said: Observation, ours: Mapping[str, float], method: str) -> Observation:
        where = f"{self._name}.{method}"
        _refuse_odd(said, where)
        refuse_taken(said.metrics, TAKEN, where)
        return replace(said, metrics={**said.metrics, **ours})


class MethodEnvironment(ToolEnvironment):
    """An object whose typed public methods are tools. It lives in its own thread, which also runs its constructor."""

    def __init__(self, options: OwnEnvironments, attempt: Attempt) -> None:
        super().__init__(options, attempt)
        self._methods, self._where, self._taken = options.methods, options.name, options.taken
        self._make = partial(options.kind, **options.arguments)
        self._thread = OwnThread(f"agentgrpo-{options.name}")
        self._own: Any = None
        for tool in self._methods.values():
            tool.owners[id(self.workspace)] = self

    async def reset(self, task: Task) -> Observation:
        with boundary(EnvironmentFailure, f"{self._where}, its constructor"):
            self._own = await self.called(self._make, {})
        said: object = None
        if hasattr(self._own, "reset"):
            said = await self.called(self._own.reset, row_for(self._own.reset, task, where=self._where))
        return self.opening(self.options.opened(opening_of(task, said, self._where)))

    async def score(self, episode: Episode) -> Scores:
        name = next((name for name in REWARD if hasattr(self._own, name)), None)
        worth = None if name is None else getattr(self._own, name)
        said = await self.called(worth, {}) if callable(worth) else worth
        if name is None and pays(type(self._own)):
            said = 0.0  # no method has set `reward`
        tested = await super().score(episode)
        taken = self._taken | (tested.keys() - {"reward"})
        return {**tested, **scores_of(said, f"{self._where}.{name}", turns=len(episode.turns), taken=taken)}

    async def close(self) -> None:
        for tool in self._methods.values():
            tool.owners.pop(id(self.workspace), None)
        try:
            if hasattr(self._own, "close"):
                await self.called(self._own.close, {})
        finally:
            self._thread.end()
            await super().close()

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        return await self.called(getattr(self._own, method), arguments)

    async def called(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function and return its value. Only a coroutine function runs on the event loop: other functions may
        block."""
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        return (await self._thread.call(function, **arguments)).result()


class MethodTool:
    """Implements tools.base.Tool: a method of the episode's environment object. Calls of one turn run one after the
    other, because they share its state."""

    exclusive = True

    def __init__(self, kind: type, name: str) -> None:
        """Raises ConfigError for a method that cannot be described."""
        self._name, self._where = name, f"{kind.__module__}:{kind.__qualname__}.{name}"
        is_bound = inspect.isfunction(inspect.getattr_static(kind, name))
        self.spec = spec_of(_described(getattr(kind, name), skipped=int(is_bound)))
        self.owners: dict[int, MethodEnvironment] = {}
        """id of an attempt's workspace -> its environment, which enters and removes itself."""

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        """Call the method; the policy gets its exception as a runtime error. Raises BadValue for an image."""
        try:
            value = await self.owners[id(workspace)].call(self._name, arguments)
            return ToolResult.ok(content_of(value, f"what {self._where} returns"))
        except BaseException as e:
            if is_asked_for(e) or isinstance(e, BadValue):
                raise
            return ToolResult.failed(line_of(e))

    async def close(self) -> None:
        """Nothing to close: the object belongs to the episode."""


def row_for(reset: Callable[..., Any] | None, task: Task, *, where: str) -> dict[str, Any]:
    """Return the arguments of `reset`: the task's columns by name, as far as it takes them. Raises ConfigError for a
    required column that the task lacks."""
    if reset is None:
        return {}
    columns = {**columns_of(task), "task": task, **task.metadata}
    parameters = [p for name, p in inspect.signature(reset).parameters.items() if name != "self"]
    for p in parameters:
        if p.name not in columns and p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise ConfigError(
                f"{where}.reset asks for {p.name}, and task {task.id} has no such column; it has {', '.join(columns)}: "
                "add it to the data, or give it a default"
            )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return columns
    return {p.name: columns[p.name] for p in parameters if p.name in columns}


def opening_of(task: Task, said: object, where: str) -> list[Message]:
    """Return the task's messages with the text from `reset` appended to the last one, or the messages that `reset`
    returned."""
    messages, what = list(task.messages), f"what {where}.reset returns"
    is_chat = isinstance(said, Sequence) and not isinstance(said, str) and all(map(_is_message, said))
    text = None if is_chat else text_in(said, what)
    if said is None or text == "":
        return messages
    if text is not None:
        if not messages:
            return [Message(role="user", content=text)]
        last = messages[-1]
        return [*messages[:-1], replace(last, content=f"{last.content}\n{text}" if last.content else text)]
    if isinstance(said, Sequence) and is_chat:
        return [
            m if isinstance(m, Message) else Message(role=m["role"], content=content_of(m["content"], what))
            for m in said
        ]
    raise EnvironmentFailure(
        f"{where}.reset returned a {type(said).__name__}; a text, messages, an Observation or None is allowed",
        kind="shape",
    )


def _is_message(said: object) -> bool:
    return isinstance(said, Message) or (isinstance(said, Mapping) and "role" in said)


def _refuse_odd(said: Observation, where: str) -> None:
    """Raise BadValue for the first field with a value of a wrong type, with which an episode could not continue or be
    recorded."""
    for name, kinds in _HELD.items():
        value = getattr(said, name)
        if name in _ROWS and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise BadValue(f"{where}: {name} is a {type(value).__name__}; a list is allowed")
        for one in value if name in _ROWS else [value]:
            if not isinstance(one, kinds):
                allowed = " or ".join(kind.__name__ for kind in kinds)
                raise BadValue(f"{where}: {name} has a {type(one).__name__}; {allowed} is allowed")
    for message in (*said.messages, *said.then):
        if not isinstance(text := message.content if isinstance(message, Message) else message.text, str):
            raise BadValue(f"{where}: a message says a {type(text).__name__}; a text is allowed")
    try:
        foreign([*said.notes, *((record.arguments, record.num_results) for record in said.calls)])
    except DataError as e:
        raise BadValue(f"{where}: notes or calls: {e}") from e


def scores_of(said: object, where: str, *, turns: int, taken: Collection[str]) -> Scores:
    """Read a score: a number becomes {"reward": number}, numbers by name stay as they are, and None becomes {} (no
    verdict). {"rewards": {seat: number}} becomes {"reward/SEAT": number} for each seat. Raises BadValue."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        return {"reward": number(said, where)}
    given = {name: value for name, value in said.items() if value is not None}
    if isinstance(seats := given.pop("rewards", None), Mapping):
        given |= {f"reward/{seat}": value for seat, value in seats.items()}
    elif seats is not None:
        raise BadValue(f"{where}: rewards is a {type(seats).__name__}; numbers by seat are allowed")
    scores = named(given, where, partial(row, most=turns))
    refuse_taken(scores, taken, where)
    return scores


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _tool_names(kind: type) -> list[str]:
    """Names of the methods that are tools, in the order of writing, base classes first. Class methods are tools, as in
    TRL; static methods, unlike in TRL, are tools if they are annotated."""
    found: dict[str, None] = {}
    for cls in reversed(kind.__mro__[:-1]):
        for name, value in vars(cls).items():
            is_method = inspect.isfunction(value) or isinstance(value, classmethod)
            is_typed = isinstance(value, staticmethod) and bool(inspect.get_annotations(value.__func__))
            if not name.startswith("_") and name not in NO_TOOLS and (is_method or is_typed):
                found[name] = None
    return list(found)


def _described(method: Callable[..., Any], *, skipped: int) -> Callable[..., Any]:
    """Return `method` as a function for `spec_of` to read, without its first `skipped` parameters (the object)."""

    def function(**arguments: Any) -> Any:
        raise TypeError("only its description is used")

    function.__name__, function.__qualname__ = method.__name__, method.__qualname__
    function.__module__, function.__doc__ = method.__module__, method.__doc__
    hints = typing.get_type_hints(method)
    function.__annotations__ = hints
    parameters = list(inspect.signature(method).parameters.values())[skipped:]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Parameters of the constructor as keyword arguments, without those that agentgrpo itself passes to a
    ToolEnvironment."""
    if kind.__init__ is object.__init__ or kind.__init__ is ToolEnvironment.__init__:  # type: ignore[misc]
        return {}
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    skipped = 3 if issubclass(kind, ToolEnvironment) else 1
    found = {}
    for p in list(inspect.signature(kind.__init__).parameters.values())[skipped:]:  # type: ignore[misc]
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            found[p.name] = p.replace(kind=p.KEYWORD_ONLY, annotation=hints.get(p.name, Any))
    return found


def _refuse_shapeless(kind: type) -> None:
    where = f"environment.name={kind.__module__}:{kind.__qualname__}"
    if issubclass(kind, ToolEnvironment) or answers_turns(kind):
        return
    if _takes_turns(getattr(kind, "step", None)):
        raise ConfigError(f"{where} has a step that takes a turn: make reset and step async def")
    if _tool_names(kind):
        return
    raise ConfigError(
        f"{where} has no public methods; allowed is a class whose typed methods are tools (reset and get_reward "
        "beside them), one with async reset and step, or a subclass of "
        "agentgrpo.environments.tools.environment:ToolEnvironment"
    )


def _takes_turns(step: object) -> bool:
    """Whether a method `step` takes a Turn, and so is not a tool."""
    first = list(inspect.signature(step).parameters.values())[1:2] if inspect.isfunction(step) else []
    return any(p.name == "turn" or p.annotation in (Turn, Turn.__name__) for p in first)
