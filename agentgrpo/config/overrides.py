"""Parse the overrides of a command line in Hydra's grammar, and rewrite them in the spelling that Hydra takes."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from agentgrpo.config.admission import USER_CODE, literal
from agentgrpo.config.admission import override as as_typed
from agentgrpo.config.hardware import Launch
from agentgrpo.config.other_names import SETTINGS_FILE, other_preset
from agentgrpo.config.registry import REGISTRY, ROOT
from agentgrpo.core.errors import ConfigError, did_you_mean

_SHORT = {"evidence": "environment/evidence"}
"""Groups that a command line may name by their last part."""
OWN = "own"
"""The preset of a group for user code: it has a name, and every key that the code takes."""
OPEN = (
    *("run.eval.prices", "task.sources", "task.corpus_keys", "algorithm.loss_args", "algorithm.advantage_args"),
    *("environment.settings", "environment.args"),
)
"""Mappings whose keys are the user's own names."""
_BROUGHT = ("task.questions", "task.corpus", "task.sources", "suite")
_BESIDE_SUITE = ("task=suite", "reward=shaped", "judge=exact_match")
"""Presets of a run with a suite."""
_WITH_TASKS = ("reasoning_gym", "textarena", "gymnasium", "openenv", "verifiers", "memory", "memory_llm")
"""Presets of the environment that choose their own tasks."""


def normalise(overrides: Sequence[str], presets: Mapping[str, Sequence[str]], *, sweep: bool) -> list[str]:
    """Return the overrides in Hydra's spelling: +group=preset as group=preset, retriever.web=preset as
    retriever/web=preset, tools.mine.name=x as ++tools.mine.name=x, evidence=preset as environment/evidence=preset, and
    group=module:Class as the overrides that name this code in the group (_of_user).
    Raises ConfigError for an unknown preset, for several values outside a sweep, for a sweep of several processes, and
    for invalid overrides."""
    if sweep and (size := Launch.of().size) > 1:
        raise ConfigError(
            f"a sweep by {size} processes; start them for one run after the other, or have each run started as a job "
            "of its own: hydra/launcher=submitit_slurm hardware=slurm"
        )
    lines, own = [], set[str]()
    for override in parse(overrides):
        line, group = str(override.input_line), _SHORT.get(override.key_or_group, override.key_or_group)
        if "." in group and group.replace(".", "/") in presets:  # retriever.web=NAME as retriever/web=NAME
            group = group.replace(".", "/")
        if group in presets and (code := _of_user(group, override)):
            lines += code
            own.add(group.replace("/", "."))
            continue
        if override.is_sweep_override() and not sweep:
            raise ConfigError(
                f"{line}: several values are a run each and need -m; "
                "a list is written key=[a,b], a text with commas \"key='a,b'\""
            )
        if group in presets and not (override.package or override.is_delete() or isinstance(override.value(), dict)):
            for preset in _chosen(group, override):
                if preset not in presets[group]:
                    if sweep and takes_code(group) and _is_code(str(preset)):
                        raise ConfigError(
                            f"{line}: code of your own is no value of a sweep, which chooses between presets; start a "
                            f"run for each, or write a preset that names it: configs/{group}/mine.yaml, --config-dir"
                        )
                    near = other_preset(group, str(preset)) or did_you_mean(str(preset), presets[group])
                    module, _, name = str(preset).rpartition(".")
                    if not near and takes_code(group) and _is_name(f"{module}:{name}"):
                        near = f" Did you mean '{module}:{name}', with a colon?"
                    key = override.key_or_group
                    also = ", or code of your own: package.module:Name" if takes_code(group) else ""
                    if group == "model":
                        also = f"; a folder, or a name of the hub, is model.path={preset}"
                    raise ConfigError(f"{key}={preset}; presets are {', '.join(presets[group])}{also}.{near}")
            line = f"{group}={override.get_value_string()}"
        elif _is_open(group) and not line.startswith(("+", "~")):
            line = f"++{line}"
        lines.append(line)
    takes_more = tuple(f"{group}." for group in own)
    return [f"++{line}" if takes_more and line.startswith(takes_more) else line for line in lines]


def takes_code(group: str) -> bool:
    """Whether user code may replace the presets of `group`."""
    kind = kind_of(group)
    return kind in ("tool", "term") or (kind in REGISTRY and kind != "algorithm")


def kind_of(group: str) -> str:
    """Return the kind of parts in a group: tool for tools, term for reward, evidence for environment/evidence."""
    outer, _, inner = group.partition("/")
    return {"tools": "tool", "reward": "term"}.get(outer, inner or ROOT.get(outer, ""))


def _of_user(group: str, override: Override) -> list[str]:
    """Return the overrides that name user code in the group, if the value is code: package.module:Name, or a list of
    such names. Tools and reward terms are named by the last part; in other groups the preset is OWN."""
    if override.is_sweep_override() or override.is_delete() or override.package or not takes_code(group):
        return []
    value = override.value()
    if isinstance(value, dict):
        return []
    values = [str(getattr(v, "text", v)) for v in (value if isinstance(value, list) else [value])]
    code = [text for text in values if _is_code(text)]
    if not code:
        return []
    kind = kind_of(group)
    if kind not in ("tool", "term"):
        if len(values) > 1:
            raise ConfigError(f"{override.input_line}: several; {group} is one part: choose one of them")
        return [f"{group}={OWN}", f"{group.replace('/', '.')}.name={value}"]
    presets = [text for text in values if text not in code]
    names = [text.rpartition(":")[2] for text in code]
    if twice := [name for name in names if (names + presets).count(name) > 1]:
        raise ConfigError(f"{override.input_line} has two of the name {twice[0]}; names must differ: rename one")
    if kind == "tool":
        chosen = f"[{','.join(presets)}]" if presets else "none"
    elif len(presets) > 1:
        raise ConfigError(f"{override.input_line}: one preset of the reward is allowed beside functions of your own")
    else:
        chosen = presets[0] if presets else OWN
    path = "tools" if kind == "tool" else "reward.terms"
    parts = [f"++{path}.{name}.name={text}" for name, text in zip(names, code, strict=True)]
    return [f"{group}={chosen}", *parts]


def _is_code(text: str) -> bool:
    """Whether `text` is package.module:Name. Raises ConfigError for a file instead of the module."""
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py") and name.isidentifier():
        module = file.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise ConfigError(f"{text} names a file; code of your own is named by its module, here {module}:{name}")
    return _is_name(text)


def brought(overrides: Sequence[str]) -> list[str]:
    """Return the keys of normalised overrides that bring the user's own data, which does not fit the default
    experiment: a model without model=PRESET, questions, a corpus, an environment with tasks, a suite. Empty if the
    overrides choose an experiment."""
    keys = {o.package or o.key_or_group: o for o in parse(overrides) if o.input_line != "suite=none"}
    own = [key for key in keys if key.startswith(_BROUGHT) or (key == "model.path" and "model" not in keys)]
    if "environment" in keys and keys["environment"].get_value_string() in _WITH_TASKS:
        own.append(str(keys["environment"].input_line))
    return [] if "experiment" in keys else own


def makes_room(own: Sequence[str], overrides: Sequence[str], experiment: str = "none") -> list[str]:
    """Return the presets that go with the keys in `own` (see `brought`): a recipe or no experiment. A suite also gets
    the task set of its members, and a reward and judge that do not depend on a member's environment."""
    chosen = {o.key_or_group.partition(".")[0] for o in parse(overrides) if not o.package}
    has_suite = any(key.startswith("suite") for key in own)
    of_run = [preset for preset in _BESIDE_SUITE if has_suite and preset.partition("=")[0] not in chosen]
    return [f"experiment={experiment}", *of_run]


def beside_code(overrides: Sequence[str], held: Set[str]) -> list[str]:
    """Adapt normalised overrides to a run's own configuration: drop the preset beside user code that the run already
    names (`held`), because the run has the keys of that preset."""
    code = {o.key_or_group: o.value() for o in parse(overrides) if _is_name(o.value())}

    def is_held(line: str) -> bool:
        path = line.partition("=")[0].replace("/", ".")
        named = [
            name for key, name in code.items() if re.fullmatch(rf"{re.escape(path)}\.(?:(?:terms\.)?\w+\.)?name", key)
        ]
        return is_group(path) and bool(named) and held >= {*named}

    return [line for line in overrides if not is_held(line)]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(USER_CODE.fullmatch(value))


def place_sweep(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep, in which run.dir is the parent directory of the jobs' runs; the default is a
    fresh one under runs/."""
    places = {o.input_line: o for o in parse(overrides) if o.key_or_group == "run.dir" and not o.is_sweep_override()}
    label = "task" if "experiment=none" in overrides else "experiment"
    fresh = f"runs/${{hydra.runtime.choices.{label}}}-{time_stamp()}-{secrets.token_hex(4)}"
    place = [o.get_value_string() for o in places.values()][-1] if places else fresh
    return [line for line in overrides if line not in places] + [f"hydra.sweep.dir={place}"]


def parse(overrides: Sequence[str]) -> Iterator[Override]:
    """Parse overrides. A value that Hydra's grammar cannot parse and that begins no list or mapping is a text: a path
    such as runs/lr=1e-5, or pypi:PACKAGE==VERSION. Raises ConfigError."""
    parser = OverridesParser.create()
    for line in overrides:
        key, sign, value = line.partition("=")
        try:
            yield parser.parse_override(line)
            continue
        except HydraException as e:
            error = e
        is_key = sign and re.fullmatch(r"[+]{0,2}[\w./@]+", key)
        if is_key and value.strip() and not value.lstrip().startswith(("[", "{", "'", '"')):
            with suppress(HydraException):
                yield parser.parse_override(f"{key}={literal(value)}")
                continue
        shown = f"; as a text it is written {as_typed(key, value)}" if is_key and value else ""
        if not sign and line.endswith((".yaml", ".yml")):
            shown = f"; {SETTINGS_FILE}"
        raise ConfigError(
            f"'{line}' is no override; write key=value, +key=value or ~key, a list [a,b], a mapping {{a: b}}{shown}"
        ) from error


def _is_open(key: str) -> bool:
    """Whether `key` lies in a mapping with the user's own names, so that the tree may lack it. Others are checked
    later."""
    group, dot, _ = key.partition(".")
    return bool(dot and _holds_parts(group)) or key.startswith(OPEN)


def is_group(key: str) -> bool:
    """Whether `key` is a group of presets: task, retriever/web, experiment."""
    return key.partition("/")[0] in (*ROOT, "experiment")


def by_key(overrides: Sequence[str]) -> dict[str, Any]:
    """Return key -> value of the overrides on a command line; keys in the file of a chosen preset are not included."""
    return {o.key_or_group: o.value() for o in parse(overrides)}


def swept_values(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """Return key -> its values in a sweep, in order."""
    return {o.key_or_group: _values(o) for o in parse(overrides)}


def _chosen(group: str, override: Override) -> Iterator[Any]:
    """Yield the chosen presets. In a group of parts by name, a list of presets combines their parts."""
    for value in _values(override):
        if isinstance(value, list) and _holds_parts(group):
            yield from (getattr(v, "text", v) for v in value)
        else:
            yield value


def _holds_parts(group: str) -> bool:
    """Whether `group` holds any number of parts by name."""
    return ROOT.get(group, "").endswith("*")


def _values(override: Override) -> list[Any]:
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        return []
    if override.is_discrete_sweep():
        return [getattr(v, "text", v) for v in override.sweep_iterator()]
    return [override.value()]


def time_stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
