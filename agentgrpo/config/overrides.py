"""The overrides of a command line: read in Hydra's grammar, and put into the one spelling that Hydra takes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from agentgrpo.config.hardware import Launch
from agentgrpo.config.registry import ROOT
from agentgrpo.core.errors import ConfigError, did_you_mean

_SHORT = {"evidence": "environment/evidence"}
"""Groups that a command line may name by their last part alone."""
_OPEN = (
    *("run.eval.prices", "task.sources", "task.corpus_keys", "algorithm.loss_args", "algorithm.advantage_args"),
    *("environment.settings", "environment.args"),
)
"""Mappings by the user's own names."""
_OWN = ("task.questions", "task.corpus", "task.sources", "suite")
_WITH_TASKS = ("reasoning_gym", "textarena", "gymnasium", "openenv", "verifiers")
"""Presets of the environment that choose their own tasks."""


def normalise(overrides: Sequence[str], presets: Mapping[str, Sequence[str]], *, sweep: bool) -> list[str]:
    """The overrides as Hydra takes them: +group=preset as group=preset, retriever.web=preset as retriever/web=preset,
    tools.mine.name=x as ++tools.mine.name=x, evidence=preset as
    environment/evidence=preset, environment=module:Class as the preset own with that name.
    Raises ConfigError for a preset that does not exist, for several values outside a sweep or for several processes,
    and for what is no override at all."""
    if sweep and (size := Launch.of().size) > 1:
        raise ConfigError(
            f"a sweep by {size} processes; start them for one run after the other, or have each run started as a job "
            "of its own: hydra/launcher=submitit_slurm hardware=slurm"
        )
    lines = []
    has_own = any(map(_names_own_environment, parse(overrides)))
    for override in parse(overrides):
        line, group = str(override.input_line), _SHORT.get(override.key_or_group, override.key_or_group)
        if _names_own_environment(override):
            lines += ["environment=own", f"environment.name={override.get_value_string()}"]
            continue
        if "." in group and group.replace(".", "/") in presets:  # retriever.web=NAME as retriever/web=NAME
            group = group.replace(".", "/")
        if override.is_sweep_override() and not sweep:
            raise ConfigError(
                f"{line}: several values are a run each and need -m; "
                "a list is written key=[a,b], a text with commas \"key='a,b'\""
            )
        if group in presets and not (override.package or override.is_delete() or isinstance(override.value(), dict)):
            for preset in _chosen(group, override):
                if preset not in presets[group]:
                    near = did_you_mean(str(preset), presets[group])
                    key = override.key_or_group
                    also = ", or a class of your own: module:Class" if key == "environment" else ""
                    raise ConfigError(f"{key}={preset}; presets are {', '.join(presets[group])}{also}.{near}")
            line = f"{group}={override.get_value_string()}"
        elif (_is_open(group) or (has_own and group.startswith("environment."))) and not line.startswith(("+", "~")):
            line = f"++{line}"
        lines.append(line)
    return lines


def brought(overrides: Sequence[str]) -> list[str]:
    """The keys by which normalised ones bring something of the user's own that the default experiment has no room for:
    a model without model=PRESET, questions, a corpus, an environment with tasks, a suite. None where they choose an
    experiment."""
    keys = {o.package or o.key_or_group: o for o in parse(overrides) if o.input_line != "suite=none"}
    own = [key for key in keys if key.startswith(_OWN) or (key == "model.path" and "model" not in keys)]
    if "environment" in keys and keys["environment"].get_value_string() in _WITH_TASKS:
        own.append(str(keys["environment"].input_line))
    return [] if "experiment" in keys else own


def makes_room(own: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The presets that go with what was `brought`: no experiment, and with a suite no task set but its members'."""
    has_task = any(o.key_or_group.partition(".")[0] == "task" and not o.package for o in parse(overrides))
    of_members = any(key.startswith("suite") for key in own) and not has_task
    return ["experiment=none", *(["task=suite"] if of_members else [])]


def of_one_run(overrides: Sequence[str]) -> list[str]:
    """Of normalised ones, as a run's own configuration takes them: environment=module:Class is the name alone there,
    for it has the keys of the preset already."""
    has_own = any(o.key_or_group == "environment.name" for o in parse(overrides))
    return [line for line in overrides if not (has_own and line == "environment=own")]


def place_sweep(overrides: Sequence[str]) -> list[str]:
    """In a sweep run.dir is the directory that gets a run per job; without it, a fresh one under runs/."""
    places = {o.input_line: o for o in parse(overrides) if o.key_or_group == "run.dir" and not o.is_sweep_override()}
    label = "task" if "experiment=none" in overrides else "experiment"
    fresh = f"runs/${{hydra.runtime.choices.{label}}}-{time_stamp()}-{secrets.token_hex(4)}"
    place = [o.get_value_string() for o in places.values()][-1] if places else fresh
    return [line for line in overrides if line not in places] + [f"hydra.sweep.dir={place}"]


def parse(overrides: Sequence[str]) -> Iterator[Override]:
    parser = OverridesParser.create()
    for line in overrides:
        try:
            yield parser.parse_override(line)
        except HydraException as e:
            raise ConfigError(
                f"'{line}' is no override; write key=value, +key=value or ~key, and quote a value with spaces, "
                "commas, quotes or brackets: key='\"a, b\"'"
            ) from e


def _names_own_environment(override: Override) -> bool:
    """environment=module:Class, a class of the user's own in the place of a preset."""
    value = None if override.is_sweep_override() or override.is_delete() else override.value()
    return override.key_or_group == "environment" and isinstance(value, str) and ":" in value


def _is_open(key: str) -> bool:
    """Whether it lies where names are the user's own, which the tree need not have yet; others are checked later."""
    group, dot, _ = key.partition(".")
    return bool(dot and _holds_parts(group)) or key.startswith(_OPEN)


def is_group(key: str) -> bool:
    """Whether it holds presets: task, retriever/web, experiment."""
    return key.partition("/")[0] in (*ROOT, "experiment")


def by_key(overrides: Sequence[str]) -> dict[str, Any]:
    """key -> value of what a command line says; a group's preset counts for nothing that is in its file."""
    return {o.key_or_group: o.value() for o in parse(overrides)}


def swept_values(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """key -> the values that a sweep gives it one after the other."""
    return {o.key_or_group: _values(o) for o in parse(overrides)}


def _chosen(group: str, override: Override) -> Iterator[Any]:
    """The presets that are chosen; where a group holds parts by name, a list of presets is all of their parts."""
    for value in _values(override):
        if isinstance(value, list) and _holds_parts(group):
            yield from (getattr(v, "text", v) for v in value)
        else:
            yield value


def _holds_parts(group: str) -> bool:
    """Whether it holds any number of parts, by name."""
    return ROOT.get(group, "").endswith("*")


def _values(override: Override) -> list[Any]:
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        return []
    if override.is_discrete_sweep():
        return [getattr(v, "text", v) for v in override.sweep_iterator()]
    return [override.value()]


def time_stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
