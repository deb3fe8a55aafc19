"""From the configuration tree, as plain data, to objects: names to classes, keys to arguments, every mistake named.

    node {name: embedded, top_k: 3}  --registry-->  class  --signature-->  class(top_k=3, <injected objects>)

A constructor's keyword arguments are the schema of its node: those of plain type (numbers, texts, lists, mappings) are
YAML keys, all others are objects that the wiring injects. A name leads to code only if it is registered here, or if the
user wrote it on this command line or in a --config-dir; what is merely found in a run directory never does.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from agentgrpo.errors import ConfigError, did_you_mean
from agentgrpo.settings import LoraSettings

REGISTRY: Mapping[str, Mapping[str, str] | str] = {
    "task": {"almanac": "agentgrpo.tasks.almanac:Almanac", "jsonl": "agentgrpo.tasks.jsonl:JsonlTasks"},
    "model": {"almanac_tiny": "agentgrpo.recipes.warm_start:WarmStart", "path": "agentgrpo.build:ModelPath"},
    "engine": {"hf": "agentgrpo.engines.hf:HFEngine"},
    "agent": {"search": "agentgrpo.agents.search:SearchAgent"},
    "retriever": {"embedded": "agentgrpo.retrievers.embedded:embedded", "http": "agentgrpo.retrievers.http:remote"},
    "tool": {},
    "fetcher": {"none": "agentgrpo.build:nothing", "http": "agentgrpo.retrievers.http:HttpPageFetcher"},
    "reranker": {
        "none": "agentgrpo.build:nothing",
        "lexical": "agentgrpo.retrievers.rerank:LexicalReranker",
        "http": "agentgrpo.retrievers.http:HttpReranker",
    },
    "evidence": {"heuristic": "agentgrpo.judges.evidence:HeuristicEvidence"},
    "judge": {
        "exact_match": "agentgrpo.judges.answers:ExactMatch",
        "token_f1": "agentgrpo.judges.answers:TokenF1",
        "contains": "agentgrpo.judges.answers:Contains",
        "gold_agreement": "agentgrpo.judges.answers:GoldAgreement",
        "composite": "agentgrpo.judges.composite:Composite",
    },
    "reward": {"weighted": "agentgrpo.rewards.reward:Reward"},
    "term": "agentgrpo.rewards:TERMS",
    "algorithm": dict.fromkeys(
        (
            *("grpo", "grpo_token_mean", "dr_grpo", "dapo", "bnpo", "gspo", "cispo", "sapo", "luspo", "vespo", "rloo"),
            *("search_r1", "mem_alpha"),
        ),
        "agentgrpo.grpo.algorithm:Algorithm",
    ),
    "optimizer": {"adamw": "agentgrpo.training.optimizer:AdamW"},
}
"""kind -> {name in YAML: "module:attribute"}, imported when chosen; a text is where a package keeps such a mapping."""

UNNAMED: Mapping[str, str] = {
    "rollout": "agentgrpo.settings:RolloutSettings",
    "run": "agentgrpo.settings:RunSettings",
    "eval": "agentgrpo.settings:EvalSettings",
    "hardware": "agentgrpo.hardware:Hardware",
    "judge_part": "agentgrpo.build:judge_part",
    "lora": "agentgrpo.settings:LoraSettings",
    "guard": "agentgrpo.recipes.guards:Guard",
}
"""Kinds with one implementation: their nodes say no `name`."""

ROOT: Mapping[str, str] = {
    "task": "task",
    "model": "model",
    "engine": "engine",
    "agent": "agent",
    "retriever": "retriever",
    "tools": "tool*",
    "judge": "judge",
    "reward": "reward",
    "rollout": "rollout",
    "algorithm": "algorithm",
    "optimizer": "optimizer",
    "guards": "guard*",
    "hardware": "hardware",
    "run": "run",
}
NESTED: Mapping[str, Mapping[str, str]] = {
    "": ROOT,
    "model": {"lora": "lora"},
    "reward": {"terms": "term*"},
    "agent": {"evidence": "evidence", "reranker": "reranker", "fetcher": "fetcher"},
    "judge": {"parts": "judge_part*"},
    "judge_part": {"judge": "judge"},
    "run": {"eval": "eval"},
}
"""kind -> {key: kind of the node there; with a * a mapping of such nodes by name}. "" is the root."""

PROVIDED: Mapping[str, frozenset[str]] = {
    "engine": frozenset({"run_seed", "own_weights"}),
    "reranker": frozenset({"thesaurus"}),
}
"""kind -> arguments of plain type that the wiring injects, so that they are no YAML keys."""

_admitted: set[str] = set()
_USER_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
T = TypeVar("T")
Finish = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPath:
    """The node `model: {name: path}`: a folder as transformers writes it, or a name it has in its cache."""

    path: str
    lora: LoraSettings = field(default_factory=LoraSettings)
    """An adapter that trains instead of the model's own weights."""
    freeze: tuple[str, ...] = ()
    """What does not train: embeddings, head, and patterns over parameter names."""


def _as_it_is(kind: str, built: Any) -> Any:
    return built


def nothing() -> None:
    """The part that is called none."""


def judge_part(*, judge: T, weight: float) -> tuple[T, float]:
    """An entry of a composite judge's `parts`."""
    return judge, weight


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for any key that no constructor reads, that is missing or of a wrong type, before anything is
    built. Imports the chosen classes."""
    for group in ROOT:
        if group not in config:
            raise ConfigError(f"the group {group} is missing; choose one of its presets: {group}=...")
    refuse_unknown(config, list(ROOT))
    _validate("", config, "")


def build_node(kind: str, node: Mapping[str, Any], finish: Finish = _as_it_is, /, **injected: Any) -> Any:
    """The object of `node`, nested nodes built first; of `injected` each gets what its constructor asks for.
    finish(kind, object) takes the place of every object that is built."""
    return _build(Child("", None, kind, node, kind), injected, finish)


def user_code(tree: Any) -> set[str]:
    """Every `name: package.module:Class` in the tree."""
    if not isinstance(tree, Mapping):
        return set()
    found = {tree["name"]} if isinstance(tree.get("name"), str) and _USER_CODE.fullmatch(tree["name"]) else set()
    return found.union(*(user_code(child) for child in tree.values()))


def admit_user_code(names: Iterable[str]) -> None:
    """From here on these names may be imported: only for names that the user wrote."""
    _admitted.update(names)


def refuse_unknown(given: Iterable[str], allowed: Sequence[str], path: str = "") -> None:
    """Raise ConfigError for the first of `given` that is not allowed."""
    for key in given:
        if key not in allowed:
            where, known = f"{path}.{key}" if path else key, ", ".join(allowed) or "none"
            raise ConfigError(f"unknown key {where}; allowed are {known}.{did_you_mean(str(key), allowed)}")


# --- nodes


class Child(NamedTuple):
    """A node inside a node: `name` where its key holds many by name, `path` for messages."""

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
            raise ConfigError(f"{where}={node[key]!r}; a mapping by name is needed there")
        else:
            for name, child in node[key].items():
                yield Child(key, name, nested[:-1], child, f"{where}.{name}")


def _validate(kind: str, node: Mapping[str, Any], path: str) -> None:
    for child in _children(kind, node, path):
        _read(child, frozenset())
        _validate(child.kind, child.node, child.path)


def _build(child: Child, injected: Mapping[str, Any], finish: Finish) -> Any:
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
    return finish(child.kind, target(**arguments, **passed))


def _read(child: Child, injected: Collection[str]) -> tuple[Any, dict[str, Any], Mapping[str, inspect.Parameter]]:
    """The node's class or function, its plain arguments checked and fitted, and all parameters it has."""
    kind, path = child.kind, child.path
    if not isinstance(child.node, Mapping):
        raise ConfigError(f"{path}={child.node!r}; a mapping of keys is needed there")
    target = resolve(kind, child.node.get("name", child.name), path)
    parameters = _parameters(target, path)
    nested = [k for k in NESTED.get(kind, {}) if k in parameters or kind in UNNAMED]
    hidden = PROVIDED.get(kind, frozenset()).union(nested, injected)
    keys = {k: p for k, p in parameters.items() if k not in hidden and _is_plain(p.annotation)}
    given = {k: v for k, v in child.node.items() if k != "name" or kind in UNNAMED}
    refuse_unknown(given, [*keys, *nested], path)
    needed = [k for k in (*keys, *nested) if k in parameters and parameters[k].default is inspect.Parameter.empty]
    for key in needed:
        if key not in given:
            raise ConfigError(f"{path}.{key} has no value; give it one: {path}.{key}=...")
    return target, {k: _fit_key(f"{path}.{k}", given[k], keys[k].annotation) for k in keys if k in given}, parameters


def resolve(kind: str, name: object, path: str) -> Any:
    """The class or function behind a name. Raises ConfigError for one that is not registered and not the user's."""
    if kind in UNNAMED:
        return _load(UNNAMED[kind])
    table = REGISTRY[kind]
    known: Mapping[str, Any] = _load(table) if isinstance(table, str) else table
    if isinstance(name, str) and name in known:
        return _load(known[name]) if isinstance(known[name], str) else known[name]
    if not isinstance(name, str) or not _USER_CODE.fullmatch(name):
        raise ConfigError(
            f"{path}.name={name}; registered are {', '.join(known) or 'none'}; a class of your own is "
            f"package.module:Class.{did_you_mean(str(name), known)}"
        )
    if name not in _admitted:
        raise ConfigError(f"{path}.name={name} is code from outside; to run it, name it on this command line")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return _load(name)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{path}.name={name}: {e}; it must be installed, or importable from here") from e


def _load(location: str) -> Any:
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _parameters(target: Any, path: str) -> dict[str, inspect.Parameter]:
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except NameError as e:
        raise ConfigError(f"{path}: the annotations of {target.__qualname__} cannot be read: {e}") from e
    parameters = inspect.signature(target).parameters
    return {name: p.replace(annotation=hints.get(name, Any)) for name, p in parameters.items()}


# --- values


def _is_plain(hint: Any) -> bool:
    """Whether YAML can say a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, tuple, list, dict, Sequence, Mapping):
        return all(_is_plain(a) for a in arguments if a is not Ellipsis)
    return origin is Literal or hint in (str, int, float, bool, Path, type(None), Any, tuple, list, dict)


def _fit_key(path: str, value: Any, hint: Any) -> Any:
    try:
        return _fit(value, hint)
    except TypeError as e:
        raise ConfigError(f"{path}={value!r}; {inspect.formatannotation(hint)} is allowed") from e


def _fit(value: Any, hint: Any) -> Any:
    """`value` as its parameter wants it: whole numbers as floats, lists as tuples, texts as paths. Raises TypeError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            with suppress(TypeError):
                return _fit(value, option)
    elif hint is Any or (origin is Literal and value in arguments) or type(value) is hint:
        return value
    elif hint is float and type(value) is int:
        return float(value)
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif origin in (list, Sequence) and isinstance(value, list):
        return [_fit(v, arguments[0]) for v in value]
    elif (origin or hint) is tuple and isinstance(value, list):
        wanted = [arguments[0]] * len(value) if arguments[1:] == (Ellipsis,) else arguments or [Any] * len(value)
        if len(wanted) == len(value):
            return tuple(_fit(v, h) for v, h in zip(value, wanted, strict=True))
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {_fit(k, arguments[0]): _fit(v, arguments[1]) for k, v in value.items()}
    raise TypeError
