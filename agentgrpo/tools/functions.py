"""A user's typed Python function as a tool: `tools.weather.name=my_tools:weather`.

The function, async or not, runs in a separate process (services.workers). It may hang, crash, leak or hold the
interpreter lock without affecting anything else: at its deadline the process is killed with all its children.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.secrets import handed, masked, refuse_unset
from agentgrpo.services.workers import WorkerCrashed, Workers
from agentgrpo.tools.base import ToolResult, Workspace

# --- A typed Python function as a ToolSpec: the annotations give the schema, the docstring gives the descriptions.
#
#     def weather(city: str, days: int = 1) -> str:
#         """Forecasts the weather.
#
#         Args:
#             city: Where.
#             days: How many days ahead.
#         """
# The docstring is in Google's style, the one that `tools=` of transformers and TRL reads; descriptions of arguments are
# optional. transformers.utils.get_json_schema is not used: its "nullable" is not JSON Schema, so a validator refuses
# the null that it should allow; it does not forbid unknown arguments; and its import takes most of a second in every
# process of a tool.

_LOG = logging.getLogger(__name__)
_OF_PYTHON = (
    *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONPATH", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    *("TZ", "VIRTUAL_ENV"),
)
"""Environment variables that a function gets beside the harmless ones, so that Python and its libraries behave as in
this process.
"""
WORKSPACE = "workspace"
"""A parameter of this name, annotated as Path, receives the episode's workspace and is not shown to the policy."""
_SECTION = re.compile(r"(Args|Arguments|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also):\s*")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def spec_of(function: Callable[..., Any]) -> ToolSpec:
    """Return the description of `function` that the policy sees. Raises ConfigError if the function cannot be
    described.
    """
    name = function.__name__
    where = f"{function.__module__}:{function.__qualname__}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where} is a generator; a tool must return its result")
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError) as e:
        raise ConfigError(f"{where}: its annotations cannot be read: {e}") from e
    about, texts = _docstring(function, where)
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: {parameter} cannot be passed by name; use named parameters")
        if parameter.name not in hints:
            raise ConfigError(
                f"{where}: parameter {parameter.name} has no annotation; annotate it: {parameter.name}: str"
            )
        if _is_workspace(parameter.name, hints[parameter.name]):
            continue
        schema = _schema(hints[parameter.name], f"{where}: parameter {parameter.name}")
        if parameter.name in texts:
            schema["description"] = texts[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    if unknown := sorted(texts.keys() - properties.keys() - {WORKSPACE}):
        raise ConfigError(f"{where}: its docstring describes {unknown[0]}, which is not a parameter")
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name=name, description=about, parameters=parameters)


def takes_workspace(function: Callable[..., Any]) -> bool:
    """Whether the function has the parameter WORKSPACE."""
    return any(_is_workspace(name, hint) for name, hint in typing.get_type_hints(function).items())


def _is_workspace(name: str, hint: Any) -> bool:
    return name == WORKSPACE and hint is Path


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if hint is Any:
        return {}
    if origin is Literal:
        kinds = sorted({_SIMPLE[type(a)] for a in arguments if type(a) in _SIMPLE})
        if len(kinds) == 1:
            return {"type": kinds[0], "enum": list(arguments)}
        if kinds and all(type(a) in _SIMPLE for a in arguments):
            return {"enum": list(arguments)}
    elif origin in (typing.Union, types.UnionType):
        options = [_schema(a, where) for a in arguments]
        if all(option.keys() == {"type"} and isinstance(option["type"], str) for option in options):
            return {"type": [option["type"] for option in options]}
        return {"anyOf": options}
    elif (origin or hint) is list:
        return {"type": "array", "items": _schema(arguments[0], where)} if arguments else {"type": "array"}
    elif (origin or hint) is dict and (not arguments or arguments[0] is str):
        values = {"additionalProperties": _schema(arguments[1], where)} if arguments else {}
        return {"type": "object", **values}
    raise ConfigError(
        f"{where} is annotated {inspect.formatannotation(hint)}; str, int, float, bool, None, list, dict by str, "
        "Literal, unions of these and Any are allowed"
    )


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _docstring(function: Callable[..., Any], where: str) -> tuple[str, Mapping[str, str]]:
    """Return the text before the first section, on one line, and the description of each argument."""
    lines = (inspect.getdoc(function) or "").splitlines()
    sections = [i for i, line in enumerate(lines) if _SECTION.fullmatch(line)]
    about = " ".join(" ".join(lines[: sections[0] if sections else None]).split())
    if not about:
        raise ConfigError(f"{where} has no docstring; write one that tells the policy what the tool does")
    texts: dict[str, str] = {}
    for start, end in itertools.pairwise([*sections, len(lines)]):
        if lines[start].startswith("Arg"):
            texts |= _entries(lines[start + 1 : end])
    return about, texts


def _entries(lines: list[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    filled = [line for line in lines if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    name = ""
    for line in filled:
        entry = _ENTRY.fullmatch(line.strip()) if len(line) - len(line.lstrip()) == margin else None
        if entry:
            name = entry["name"]
            texts[name] = entry["text"]
        elif name:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


class FunctionTool:
    """An exception in the function -> runtime_error with its last line. A crash of its process -> runtime_error as
    well; so is a killed process or one out of memory if a second attempt, in a new process, ends the same way. Printed
    output is dropped. The returned value is shown to the policy: a text unchanged, None as an empty text, anything else
    as str(). A str() with a memory address in it -> runtime_error. An image cannot be shown: the attempt fails with
    ToolError."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        env: tuple[str, ...] = (),
        processes: int = 4,
        recycle_after: int = 1000,
        max_result_chars: int = 100_000,
        memory_mb: int = 4096,
    ) -> None:
        """function: a module-level function of an importable module. env: names of environment variables that it gets
        beside the usual ones, for example its API keys. processes: concurrent calls. recycle_after: calls that one
        process serves; 1 = a fresh process for each call, so that no call sees state of earlier ones. max_result_chars:
        longer results are cut. memory_mb: memory of each process; beyond it the function meets a MemoryError. Raises
        ConfigError."""
        if not inspect.isfunction(function):
            raise ConfigError(f"tool {function!r}: a function or a class is needed")
        location = f"{function.__module__}:{function.__qualname__}"
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise ConfigError(f"tool {location}: its process cannot import it; define it at the top of a module")
        refuse_unset(env)
        self._variables, self._hinted = env, set[str]()
        self.spec = spec_of(function)
        self.exclusive = takes_workspace(function)
        self.at_once = processes
        self._workers = Workers(
            location,
            processes=processes,
            recycle_after=recycle_after,
            max_chars=max_result_chars,
            memory_mb=memory_mb,
            variables=handed((*_OF_PYTHON, *env)),
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        seed = json.dumps([workspace.seed, self.spec.name, arguments], sort_keys=True)
        folder = str(workspace.path) if self.exclusive else None
        try:
            reply = await self._workers.call({"arguments": dict(arguments), "workspace": folder, "seed": seed})
        except WorkerCrashed as e:
            return ToolResult.failed(str(e))
        if "refused" in reply:
            raise ToolError(f"tool {self.spec.name}: {reply['refused']}", kind="shape")
        reply = {key: masked(text, *self._variables) for key, text in reply.items()}
        if "error" in reply:
            self._hint_at(reply["error"])
            return replace(ToolResult.failed(reply["error"]), detail=reply["detail"])
        return ToolResult.ok(reply["text"])

    def _hint_at(self, error: str) -> None:
        """Warn once if the function seems to have asked for a variable that it has not been given."""
        name = error.removeprefix("KeyError: ").strip("'")
        if name in os.environ and name not in handed((*_OF_PYTHON, *self._variables)) and name not in self._hinted:
            self._hinted.add(name)
            _LOG.warning(
                "tool %s: %s; the variable %s of this environment is not given to it: name it, as in tools.%s.env=[%s] "
                "(said once)",
                *(self.spec.name, error, name, self.spec.name, name),
            )

    async def close(self) -> None:
        await self._workers.close()
