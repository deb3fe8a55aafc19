"""Hydra's side of the command line: overrides in the one spelling it takes, the tree composed, a job for each tree.

The only importer of hydra and omegaconf; what leaves this module is plain data, checked against the constructors.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from agentgrpo.admission import refuse_resolvers, refuse_targets, refuse_unnamed
from agentgrpo.build import admit_user_code, refuse_unknown, user_code, validate
from agentgrpo.errors import AgentGrpoError, ConfigError, StorageError, did_you_mean
from agentgrpo.hardware import Launch
from agentgrpo.registry import ROOT

SNAPSHOT = "config.yaml"
"""A run's own configuration, in its directory."""
_OPEN = "run.eval.prices"
"""A mapping by the user's own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One composed configuration: of a single run, or of one run of a sweep."""

    config: dict[str, Any]
    """Resolved and validated; run.dir is set. It may hold secrets from the environment."""
    snapshot: str
    """The same as YAML, interpolations unresolved: what the run directory keeps as SNAPSHOT."""
    choices: dict[str, str]
    overrides: tuple[str, ...]


Task = Callable[[Callable[[], Job]], float | None]
"""Is called once per job, and calls its argument to have the job composed and checked."""


# --- overrides


def normalise(overrides: Sequence[str], presets: Mapping[str, Sequence[str]], *, sweep: bool) -> list[str]:
    """The overrides as Hydra takes them: +group=preset as group=preset, tools.mine.name=x as ++tools.mine.name=x.
    Raises ConfigError for a preset that does not exist, for several values outside a sweep or for several processes,
    and for what is no override at all."""
    if sweep and (size := Launch.of().size) > 1:
        raise ConfigError(
            f"a sweep by {size} processes; start them for one run after the other, or have each run started as a job "
            "of its own: hydra/launcher=submitit_slurm hardware=slurm"
        )
    lines = []
    for override in _parse(overrides):
        line, group = str(override.input_line), override.key_or_group
        if override.is_sweep_override() and not sweep:
            raise ConfigError(
                f"{line}: several values are a run each and need -m; "
                "a list is written key=[a,b], a text with commas \"key='a,b'\""
            )
        if group in presets and not (override.package or override.is_delete() or isinstance(override.value(), dict)):
            for preset in _chosen(group, override):
                if preset not in presets[group]:
                    near = did_you_mean(str(preset), presets[group])
                    raise ConfigError(f"{group}={preset}; presets are {', '.join(presets[group])}.{near}")
            line = f"{group}={override.get_value_string()}"
        elif _is_open(group) and not line.startswith(("+", "~")):
            line = f"++{line}"
        lines.append(line)
    return lines


def place_sweep(overrides: Sequence[str]) -> list[str]:
    """In a sweep run.dir is the directory that gets a run per job; without it, a fresh one under runs/."""
    places = {o.input_line: o for o in _parse(overrides) if o.key_or_group == "run.dir" and not o.is_sweep_override()}
    label = "task" if "experiment=none" in overrides else "experiment"
    fresh = f"runs/${{hydra.runtime.choices.{label}}}-{_time()}-{secrets.token_hex(4)}"
    place = [o.get_value_string() for o in places.values()][-1] if places else fresh
    return [line for line in overrides if line not in places] + [f"hydra.sweep.dir={place}"]


def _parse(overrides: Sequence[str]) -> Iterator[Override]:
    parser = OverridesParser.create()
    for line in overrides:
        try:
            yield parser.parse_override(line)
        except HydraException as e:
            raise ConfigError(
                f"'{line}' is no override; write key=value, +key=value or ~key, and quote a value with spaces, "
                "commas, quotes or brackets: key='\"a, b\"'"
            ) from e


def _is_open(key: str) -> bool:
    """Whether it lies where names are the user's own, which the tree need not have yet; others are checked later."""
    group, dot, _ = key.partition(".")
    return bool(dot and _holds_parts(group)) or key.startswith(_OPEN)


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


# --- trees


def to_plain(cfg: DictConfig) -> dict[str, Any]:
    """The tree with every interpolation resolved. Raises ConfigError for a value that is missing or cannot be found."""
    refuse_resolvers(OmegaConf.to_container(cfg, resolve=False))
    try:
        return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except MissingMandatoryValue as e:
        raise ConfigError(f"{e.full_key} has no value; give it one: {e.full_key}=...") from e
    except OmegaConfBaseException as e:
        raise ConfigError(f"{e.full_key}: {str(e).splitlines()[0]}") from e


def to_yaml(tree: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """The text of a SNAPSHOT."""
    chosen = "".join(f" {group}={preset}" for group, preset in choices.items())
    head = f"# agentgrpo resume {tree['run']['dir']!r}\n" + (f"# composed from{chosen}\n" if chosen else "")
    return head + OmegaConf.to_yaml(OmegaConf.create(dict(tree)))


def read_snapshot(path: Path) -> dict[str, Any]:
    """A run's configuration, unresolved, read as data that may come from anybody: only known groups, nothing that a
    library would act on (`hydra`, `defaults`, `_target_`), no resolver but oc.env. Raises ConfigError."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except FileNotFoundError as e:
        raise ConfigError(f"there is no {path}; give the directory of a run, as agentgrpo train made it") from e
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
        raise ConfigError(f"{path} is no configuration; it needs the groups {', '.join(ROOT)}")
    config = cast(dict[str, Any], tree)
    refuse_unknown(config, list(ROOT), str(path))
    refuse_resolvers(config)
    refuse_targets(config, path)
    return config


# --- running


def run_hydra(task: Task, flags: Sequence[str], overrides: Sequence[str], configs: Path) -> None:
    """Compose from the presets in `configs` and call `task` once per job; with flags such as --cfg only show."""

    def make(cfg: DictConfig) -> Job:
        config = to_plain(cfg)
        admit_user_code(user_code(config))
        return _job(cfg, config, None)

    _hydra_main(lambda cfg: task(lambda: make(cfg)), "config", [*flags, *overrides], configs)


def run_of(checkpoint: str | None, overrides: Sequence[str]) -> str | None:
    """RUN for RUN/checkpoints/step-000040 where RUN has its configuration and the overrides choose no preset: a
    checkpoint is evaluated as what it was trained as. None = compose as usual."""
    if checkpoint is None or any(o.key_or_group in (*ROOT, "experiment") for o in _parse(overrides)):
        return None
    run_dir = Path(checkpoint).absolute().parent.parent
    return str(run_dir) if (run_dir / SNAPSHOT).is_file() else None


def rerun_hydra(
    task: Task, flags: Sequence[str], overrides: Sequence[str], configs: Path, run_dir: str, *, resumes: bool
) -> None:
    """The same over a run's own configuration, wherever its directory is now: to go on in it (`resumes`), or for
    another run. Of user code, and of programs that its tools would start, only what the overrides name is run, and
    what the environment holds is sent only where they say."""
    snapshot = read_snapshot(Path(run_dir) / SNAPSHOT)
    for override in _parse(overrides) if resumes else ():
        if override.key_or_group in (*ROOT, "experiment", "run.dir"):
            raise ConfigError(
                f"{override.input_line}: a resumed run keeps its presets and its directory; single keys can be set, "
                "such as run.max_steps=200"
            )
    snapshot["run"]["dir"] = None
    primary = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(configs / "config.yaml")))
    quiet = [d for d in primary["defaults"] if isinstance(d, dict) and next(iter(d)).startswith("override hydra/")]
    node = {"defaults": ["_self_", *quiet], "hydra": primary["hydra"], **snapshot}
    ConfigStore.instance().store("resumed", node)
    admit_user_code(
        user_code({o.key_or_group: {"name": o.value()} for o in _parse(overrides) if o.key_or_group.endswith(".name")})
    )

    def make(cfg: DictConfig) -> Job:
        config, unresolved = to_plain(cfg), OmegaConf.to_container(cfg, resolve=False)
        refuse_unnamed(config, unresolved, {o.key_or_group: o.value() for o in _parse(overrides)})
        return _job(cfg, config, run_dir if resumes else None)

    _hydra_main(lambda cfg: task(lambda: make(cfg)), "resumed", [*flags, *overrides], configs)


def _job(cfg: DictConfig, config: dict[str, Any], run_dir: str | None) -> Job:
    unresolved = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=False))
    choices = {k: str(v) for k, v in HydraConfig.get().runtime.choices.items() if k in ROOT or k == "experiment"}
    run = config.get("run")
    given = run_dir or (run.get("dir") if isinstance(run, dict) else None)
    validate({**config, "run": {**run, "dir": given or "not chosen yet"}} if isinstance(run, dict) else config)
    if given is None and config["run"].get("dry_run"):
        run_dir = "."
    elif given is None:
        experiment = choices.get("experiment", "none")
        run_dir = _fresh_dir(config["task"]["name"] if experiment == "none" else experiment)
    if run_dir is not None:
        config["run"]["dir"] = unresolved["run"]["dir"] = run_dir
    snapshot, overrides = to_yaml(unresolved, choices), tuple(HydraConfig.get().overrides.task)
    return Job(config=config, snapshot=snapshot, choices=choices, overrides=overrides)


def _fresh_dir(name: str) -> str:
    """runs/<name>-<time>-<4 hex>, made here so that nobody else has it; in a sweep the job's own directory."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return str(HydraConfig.get().runtime.output_dir)
    label = re.sub(r"[^\w.-]+", "-", name)
    while True:
        path = Path("runs", f"{label}-{_time()}-{secrets.token_hex(2)}")
        try:
            if Launch.of().rank == 0:  # whose directory it will be
                path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as e:
            raise StorageError(
                f"cannot make {path}: {e.strerror}; give run.dir=PATH a place that can be written"
            ) from e
        return str(path)


def _time() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _hydra_main(job: Callable[[DictConfig], float | None], name: str, argv: Sequence[str], configs: Path) -> None:
    """The real hydra.main. It reads sys.argv, and lets errors out instead of printing them under HYDRA_FULL_ERROR."""
    saved_argv, saved = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["agentgrpo", *argv], "1"
    try:
        hydra.main(config_path=str(configs), config_name=name, version_base="1.3")(job)()
    except AgentGrpoError:
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as e:
        raise _config_error(e, name, argv, configs) from e
    finally:
        sys.argv = saved_argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if saved is not None:
            os.environ["HYDRA_FULL_ERROR"] = saved


def _config_error(error: Exception, name: str, argv: Sequence[str], configs: Path) -> ConfigError:
    """Hydra's word for it in our form: a key that does not exist with those that do."""
    cause, path, keys = error.__cause__, "", []
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        path, keys = str(cause.full_key), [str(key) for key in cause.parent_node if key != "hydra"]
    elif deleted := re.match(r"Could not delete from config\. '([\w.]+)' does not exist", str(error)):
        path = deleted[1]
        with suppress(HydraException), hydra.initialize_config_dir(str(configs), version_base="1.3"):
            cfg = hydra.compose(name, [text for text in argv if "=" in text and not text.startswith(("-", "~"))])
            keys = [str(key) for key in OmegaConf.select(cfg, path.rpartition(".")[0]) or ()]
    try:
        refuse_unknown([path.rpartition(".")[2]] if keys else [], keys, path.rpartition(".")[0])
    except ConfigError as e:
        return e
    return ConfigError(str(error) or str(cause))
