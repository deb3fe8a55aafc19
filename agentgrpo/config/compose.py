"""Compose configurations with Hydra, and run a job for each.

Only this module imports omegaconf and, beside overrides.py, hydra. Its results are plain data, checked against the
constructors.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
)

from agentgrpo.config.admission import (
    literal,
    refuse_bare_addresses,
    refuse_remote_code,
    refuse_resolvers,
    refuse_secrets,
    refuse_targets,
    refuse_unnamed,
    refuse_unnamed_code,
    refuse_variables_of_commands,
)
from agentgrpo.config.build import admit_user_code, leave_out_nulls, refuse_unknown, user_code, validate
from agentgrpo.config.hardware import Launch
from agentgrpo.config.overrides import OWN, beside_code, by_key, is_group, kind_of, parse, takes_code, time_stamp
from agentgrpo.config.registry import ROOT
from agentgrpo.config.suite import members_of
from agentgrpo.core.errors import AgentGrpoError, ConfigError, DataError, StorageError
from agentgrpo.core.renamed import config_of_today
from agentgrpo.core.untrusted import refuse_endless, refuse_links_out, refuse_special_files

SNAPSHOT = "config.yaml"
"""File name of a run's configuration in its directory."""
_NEWER = ("cassette", "budget", "counterfactual", "demonstrations", "suite")
"""Groups that runs of older versions do not have."""
_LOSS_ARGS = {key: key for key in ("clip_low", "clip_high", "clip_dual")}
_LOSS_ARGS |= {f"sapo_{key}": key for key in ("temperature_positive", "temperature_negative")}
_LOSS_ARGS |= {f"vespo_{key}": key for key in ("k_positive", "lambda_positive", "k_negative", "lambda_negative")}
"""Keys of the algorithm in runs of older versions -> their names in algorithm.loss_args."""
_OF_EVALUATIONS = ("counterfactual",)
"""Groups whose presets may be combined with a run's own configuration: an evaluation changes only this group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One composed configuration, for a single run or for one run of a sweep."""

    config: dict[str, Any]
    """Resolved and validated; run.dir is set. It may hold secrets from the environment."""
    snapshot: str
    """The configuration as YAML with unresolved interpolations, for SNAPSHOT in the run directory."""
    choices: dict[str, str]
    overrides: tuple[str, ...]
    is_fresh: bool
    """Whether run.dir was made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The configuration for Hydra to compose, and the function that turns its tree into a checked Job."""

    primary: str
    """Name of the primary configuration."""
    make: Callable[[Any], Job]
    """Makes the Job of a tree (a DictConfig) that Hydra has composed."""


# --- trees


def to_plain(cfg: DictConfig) -> dict[str, Any]:
    """Return the tree with every interpolation resolved. Raises ConfigError for a value that is missing or cannot be
    found, and for a literal secret."""
    unresolved = OmegaConf.to_container(cfg, resolve=False)
    refuse_resolvers(unresolved)
    refuse_secrets(unresolved)
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            has = "has no value; give it one" if len(missing) == 1 else "have no value; give each one"
            raise ConfigError(f"{' and '.join(missing)} {has}: {' '.join(f'{key}=...' for key in missing)}")
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException as e:
        raise ConfigError(f"{e.full_key}: {str(e).splitlines()[0]}") from e
    refuse_variables_of_commands(config, unresolved)
    return config


def to_yaml(tree: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """Return the text of a SNAPSHOT."""
    chosen = "".join(f" {group}={preset}" for group, preset in choices.items())
    head = f"# agentgrpo resume {tree['run']['dir']!r}\n" + (f"# composed from{chosen}\n" if chosen else "")
    return head + OmegaConf.to_yaml(OmegaConf.create(dict(tree)))


def read_snapshot(path: Path) -> dict[str, Any]:
    """Read a run's unresolved configuration as untrusted data: it may have only known groups, no key that a library
    would act on (`hydra`, `defaults`, `_target_`), and no resolver but oc.env. Raises ConfigError."""
    try:
        refuse_special_files(path.parent)
        refuse_endless(yaml.safe_load(path.read_text("utf-8")), path)  # OmegaConf would write aliases out
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except FileNotFoundError as e:
        raise ConfigError(f"there is no {path}; give the directory of a run, as agentgrpo train made it") from e
    except DataError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
        raise ConfigError(f"{path} is no configuration; it needs the groups {', '.join(ROOT)}")
    config = config_of_today(cast(dict[str, Any], tree))
    refuse_unknown(config, list(ROOT), str(path))
    refuse_resolvers(config)
    refuse_targets(config, path)
    return _renamed(config)


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """Move parameters of the loss to their current place: older versions have them beside `algorithm.loss`."""
    algorithm = config.get("algorithm")
    if isinstance(algorithm, dict):
        of_loss = {new: algorithm.pop(old) for old, new in _LOSS_ARGS.items() if old in algorithm}
        if given := {key: value for key, value in of_loss.items() if value is not None}:
            algorithm["loss_args"] = {**given, **algorithm.get("loss_args", {})}
    return config


def read_preset(configs: Path, group: str, name: str) -> dict[str, Any]:
    """Return the settings of group=name, including the presets of its group that it builds upon and the presets of
    inner groups. For a job under way, where Hydra cannot compose another configuration."""
    return Presets([configs], {}).read(group, name)


@dataclass(frozen=True)
class Presets:
    """Reader of the preset files."""

    folders: Sequence[Path]
    """Folders of presets: the package's, then the user's."""
    names: Mapping[str, Sequence[str]]
    """group -> names of its presets."""
    _trees: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _files: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def read(self, group: str, name: str) -> dict[str, Any]:
        """Return the settings of a preset (see read_preset). The result is shared: do not change it."""
        if (group, name) not in self._trees:
            self._trees[group, name] = self._read(group, name)
        return self._trees[group, name]

    def _read(self, group: str, name: str) -> dict[str, Any]:
        own = {key: value for key, value in self.file(group, name).items() if key != "defaults"}

        def of(layer: str | dict[str, str]) -> Any:
            if isinstance(layer, str):
                return own if layer == "_self_" else self.read(group, layer)
            [(inner, preset)] = layer.items()
            is_elsewhere = inner.startswith(("override ", "/"))
            return {} if is_elsewhere else {inner: self.read(f"{group}/{inner}", preset)}

        merged = OmegaConf.merge(*map(of, self.file(group, name).get("defaults", ["_self_"])))
        return cast(dict[str, Any], OmegaConf.to_container(merged))

    def declares(self, group: str, name: str) -> dict[str, str]:
        """Return group -> preset for other groups in which this preset chooses one; {} if it has no file."""
        if name not in self.names.get(group, ()):
            return {}
        found: dict[str, str] = {}
        for layer in self.file(group, name).get("defaults", ()):
            if isinstance(layer, str):
                found = {**found, **(self.declares(group, layer) if layer != "_self_" else {})}
                continue
            [(key, preset)] = layer.items()
            if key.startswith("override "):
                found[key.removeprefix("override ").lstrip("/").partition("@")[0]] = str(preset)
        return found

    def default(self, group: str) -> str:
        """Return the default preset of a group; "" if the group has no default."""
        outer, _, inner = group.partition("/")
        layers = self.file("", "config")["defaults"]
        found = {key: str(preset) for layer in layers if isinstance(layer, dict) for key, preset in layer.items()}
        if not inner:
            return found.get(outer, "")
        layers = self.file(outer, found[outer]).get("defaults", ())
        return next((str(layer[inner]) for layer in layers if isinstance(layer, dict) and inner in layer), "")

    def file(self, group: str, name: str) -> dict[str, Any]:
        """Return the content of a preset's own file."""
        if (group, name) not in self._files:
            files = [folder / group / f"{name}.yaml" for folder in self.folders]
            text = next((file for file in files if file.is_file()), files[0]).read_text("utf-8")
            self._files[group, name] = yaml.safe_load(text) or {}
        return self._files[group, name]


# --- running


def of_presets(known: Presets, chosen: Mapping[str, str]) -> Composition:
    """Return the composition of the presets that the command line chooses. chosen: group -> default preset instead of
    the default in config.yaml; no experiment can then choose another algorithm."""
    _admit_own(known)
    if chosen:
        primary = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(known.folders[0] / "config.yaml")))
        own = [
            {**d, **{g: p for g, p in chosen.items() if g in d}} if isinstance(d, dict) else d
            for d in primary["defaults"]
        ]
        own.append({"override algorithm": chosen["algorithm"]})
        ConfigStore.instance().store("chosen", {**primary, "defaults": own})

    def make(cfg: DictConfig) -> Job:
        config = to_plain(cfg)
        refuse_remote_code(config, by_key(HydraConfig.get().overrides.task))
        admit_user_code(user_code(config))
        return _job(cfg, config, None)

    return Composition(primary="chosen" if chosen else "config", make=make)


def swept() -> tuple[Path, tuple[str, ...]]:
    """Return the directory, made by Hydra, and the overrides of the current job of a sweep."""
    given = HydraConfig.get()
    return Path(given.runtime.output_dir), tuple(given.overrides.task)


def run_of(checkpoint: str | None, overrides: Sequence[str]) -> str | None:
    """Return RUN for RUN/checkpoints/step-000040 if RUN has its configuration and the overrides choose no experiment: a
    checkpoint is evaluated with the settings of its training. None = compose as usual."""
    if checkpoint is None or any(o.key_or_group == "experiment" for o in parse(overrides)):
        return None
    run_dir = Path(checkpoint).absolute().parent.parent
    return str(run_dir) if (run_dir / SNAPSHOT).is_file() else None


_FILES = ("path", "questions", "corpus", "web_corpus")
"""Last words of the settings that name a file or folder."""


def _refuse_elsewhere(snapshot: Mapping[str, Any], run_dir: Path, given: Set[str]) -> None:
    """Raise ConfigError for a file whose relative path is only valid in the directory where the run was begun, if that
    is another directory. given: keys that the command line sets."""
    written = Path(str(snapshot["run"].get("dir") or ""))
    parts, here = written.parts, run_dir.resolve()
    if not parts or written.is_absolute() or here.parts[-len(parts) :] != parts:
        return
    begun_in = Path(*here.parts[: -len(parts)])
    for key, value in _leaves(snapshot):
        is_named = key.rpartition(".")[2] in _FILES and isinstance(value, str) and value and key not in given
        if is_named and not Path(value).exists() and (begun_in / value).exists():
            raise ConfigError(f"{key}={value} is not here; the run was begun in {begun_in}: go there, or set {key}")


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def of_run(overrides: Sequence[str], known: Presets, run_dir: str, *, resumes: bool) -> tuple[Composition, list[str]]:
    """Return the composition of a run's own configuration, wherever its directory is now: to resume the run
    (`resumes`), or for another run, in which presets that the overrides choose replace the run's groups. Settings that
    a configuration may not choose by itself (config.admission) must be among the overrides. Also returns the overrides
    without presets that the run has already."""
    snapshot = read_snapshot(Path(run_dir) / SNAPSHOT)
    if resumes:
        refuse_links_out(Path(run_dir))
    overrides = beside_code(overrides, user_code(snapshot))
    for override in parse(overrides) if resumes else ():
        if is_group(override.key_or_group) or override.key_or_group == "run.dir":
            raise ConfigError(
                f"{override.input_line}: a resumed run keeps its presets and its directory; single keys can be set, "
                "such as run.max_steps=200"
            )
    _refuse_elsewhere(snapshot, Path(run_dir), {*by_key(overrides)})
    snapshot["run"]["dir"] = None
    configs = known.folders[0]
    primary = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(configs / "config.yaml")))
    quiet = [d for d in primary["defaults"] if isinstance(d, dict) and next(iter(d)).startswith("override hydra/")]
    for group in _NEWER:  # their default preset changes nothing
        snapshot.setdefault(group, {**known.read(group, known.default(group))})
    presets: dict[str, str] = {}
    for group in _OF_EVALUATIONS:
        name = snapshot[group].get("name") if isinstance(snapshot[group], dict) else None
        if not resumes and snapshot[group] == {"name": name} and (configs / group / f"{name}.yaml").is_file():
            presets[group] = str(name)
    presets |= _chosen(overrides, known)
    for group in presets:
        outer, _, inner = group.partition("/")
        holder = snapshot.get(outer) if inner else snapshot
        if not isinstance(holder, dict):
            raise ConfigError(f"{group}={presets[group]}: {outer} of {run_dir} is no mapping; leave it out")
        holder.pop(inner or outer, None)
    _admit_own(known)
    layers = [{group: preset} for group, preset in presets.items()]
    node = {"defaults": [*layers, "_self_", *quiet], "hydra": primary["hydra"], **snapshot}
    ConfigStore.instance().store("resumed", node)
    admit_user_code(user_code(by_key(overrides)))

    def make(cfg: DictConfig) -> Job:
        config, unresolved = to_plain(cfg), OmegaConf.to_container(cfg, resolve=False)
        said = by_key(overrides) | {
            group.replace("/", "."): _part(config, group) for group in _chosen(overrides, known)
        }
        admit_user_code(user_code(said))
        refuse_remote_code(config, said)
        refuse_unnamed_code(config, said)
        refuse_unnamed(config, unresolved, said, Path(run_dir))
        return _job(cfg, config, run_dir if resumes else None)

    return Composition(primary="resumed", make=make), overrides


def _chosen(overrides: Sequence[str], known: Presets) -> dict[str, str]:
    """Return group -> preset for all presets that are chosen, or declared by a chosen preset."""
    named = {o.key_or_group: o.get_value_string() for o in parse(overrides) if o.key_or_group in known.names}
    declared = {group: preset for other in named.items() for group, preset in known.declares(*other).items()}
    return {**declared, **named}


def _part(config: Mapping[str, Any], group: str) -> Any:
    outer, _, inner = group.partition("/")
    return config[outer][inner] if inner else config[outer]


def _admit_own(known: Presets) -> None:
    """Give every group whose parts may be user code the preset OWN, unless a file defines it."""
    for group, names in known.names.items():
        if OWN not in names and takes_code(group) and kind_of(group) not in ("tool", "term"):
            ConfigStore.instance().store(group=group, name=OWN, node={"name": "???"})


def _job(cfg: DictConfig, config: dict[str, Any], run_dir: str | None) -> Job:
    unresolved = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=False))
    leave_out_nulls(config)
    leave_out_nulls(unresolved)
    choices = {k: str(v) for k, v in HydraConfig.get().runtime.choices.items() if is_group(k)}
    run = config.get("run")
    given = run_dir or (run.get("dir") if isinstance(run, dict) else None)
    if isinstance(given, str) and not given.strip():
        raise ConfigError("run.dir='' names no directory; leave it out for a new directory, or give one such as runs/x")
    checked = {**config, "run": {**run, "dir": given or "not chosen yet"}} if isinstance(run, dict) else config
    overridden = tuple(HydraConfig.get().overrides.task)
    try:
        refuse_unknown([key if key in ROOT else _as_given(key, overridden) for key in checked], list(ROOT))
        validate(checked)
        members_of(checked)
        refuse_bare_addresses(checked)
    except ConfigError as e:
        raise ConfigError(f"{e}{_misfit(str(e), choices, overridden)}") from e
    is_fresh = given is None and HydraConfig.get().mode != RunMode.MULTIRUN
    if given is None:
        experiment = choices.get("experiment", "none")
        run_dir = _dir_of_job(config["task"]["name"] if experiment == "none" else experiment)
    if run_dir is not None:
        config["run"]["dir"] = unresolved["run"]["dir"] = run_dir
    snapshot = to_yaml(unresolved, choices)
    return Job(config=config, snapshot=snapshot, choices=choices, overrides=overridden, is_fresh=is_fresh)


def _as_given(group: str, overrides: Sequence[str]) -> str:
    """Return an unknown group as the key on the command line: trainer.lr for the group trainer."""
    keys = [text.split("=")[0].lstrip("+~") for text in overrides]
    return next((key for key in keys if key.startswith(f"{group}.")), group)


def _misfit(error: str, choices: Mapping[str, str], overrides: Sequence[str]) -> str:
    """Explain the refusal of a key that the user did not write: the experiment sets it for another preset; else ""."""
    found = re.match(r"unknown key ([\w.]+);", error)
    experiment = choices.get("experiment", "none")
    if found is None or experiment == "none" or any(o.split("=")[0].lstrip("+~") == found[1] for o in overrides):
        return ""
    group = found[1].partition(".")[0]
    return (
        f" experiment={experiment} sets it, which does not go with {group}={choices.get(group)}: choose "
        "experiment=none, or one that does"
    )


def _dir_of_job(name: str) -> str:
    """Return a fresh run directory; in a sweep, the job's directory, which Hydra has made."""
    is_swept = HydraConfig.get().mode == RunMode.MULTIRUN
    return str(HydraConfig.get().runtime.output_dir) if is_swept else fresh_dir(name)


def fresh_dir(name: str) -> str:
    """Make and return runs/<name>-<time>-<4 hex>, a directory that nobody else has."""
    label = re.sub(r"[^\w.-]+", "-", name)
    while True:
        path = Path("runs", f"{label}-{time_stamp()}-{secrets.token_hex(2)}")
        try:
            if Launch.of().rank == 0:  # the first process owns the directory
                path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as e:
            raise StorageError(
                f"cannot make {path}: {e.strerror}; give run.dir=PATH a place that can be written"
            ) from e
        return str(path)


def run_hydra(job: Callable[[Any], float | None], name: str, argv: Sequence[str], configs: Path) -> None:
    """Compose `name` from the presets in `configs` and call `job` with the tree, once for each job. With flags such as
    --cfg only print it.

    hydra.main reads sys.argv; with HYDRA_FULL_ERROR it raises errors instead of printing them. It composes twice, first
    to find out whether this is a sweep. If the command line cannot be a sweep, it is composed here only once."""
    own, searched = _own_presets(argv)
    saved_argv, saved = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["agentgrpo", *argv], "1"
    try:
        if any(text.startswith("-") or "hydra" in text for text in own):
            hydra.main(config_path=str(configs), config_name=name, version_base="1.3")(job)()
        else:
            with hydra.initialize_config_dir(str(configs), job_name="agentgrpo", version_base="1.3"):
                cfg = hydra.compose(name, [*own, *searched], return_hydra_config=True)
                HydraConfig.instance().set_config(cfg)
                with flag_override(cfg, ["struct", "readonly"], [False, False]):
                    del cfg["hydra"]
                job(cfg)
    except AgentGrpoError:
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as e:
        raise _config_error(e, name, argv, configs) from e
    finally:
        sys.argv = saved_argv
        os.environ.pop("HYDRA_FULL_ERROR", None)  # external code may have cleared the environment
        if saved is not None:
            os.environ["HYDRA_FULL_ERROR"] = saved


def _own_presets(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (argv without --config-dir DIR, the override that replaces it)."""
    if argv.count("--config-dir") != 1 or argv[-1] == "--config-dir":
        return [*argv], []
    at = argv.index("--config-dir")
    folder = f"file://{Path(argv[at + 1]).resolve()}"
    return [*argv[:at], *argv[at + 2 :]], [f"hydra.searchpath={literal([folder])}"]


def _config_error(error: Exception, name: str, argv: Sequence[str], configs: Path) -> ConfigError:
    """Turn an error of Hydra into a ConfigError; an unknown key is reported with the known keys."""
    cause, path, keys = error.__cause__, "", []
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        path, keys = str(cause.full_key), [str(key) for key in cause.parent_node if key != "hydra"]
    elif deleted := re.match(r"Could not delete from config\. '([\w.]+)' does not exist", str(error)):
        path = deleted[1]
        with suppress(HydraException), hydra.initialize_config_dir(str(configs), version_base="1.3"):
            cfg = hydra.compose(name, [text for text in argv if "=" in text and not text.startswith(("-", "~"))])
            keys = [str(key) for key in OmegaConf.select(cfg, path.rpartition(".")[0]) or ()]
    elif missing := re.match(r"Could not override '(\w+)/(\w+)'", str(error)):
        outer, inner = missing.groups()
        return ConfigError(
            f"{outer}.{inner}=...: the {outer} that is chosen has no {inner}; choose another, or leave it out"
        )
    try:
        outer, _, key = path.rpartition(".")
        refuse_unknown([key if outer else _as_given(key, argv)] if keys else [], keys, outer)
    except ConfigError as e:
        is_term = outer == "reward.terms" and not str(error).startswith("Could not delete")
        adds = f" Another term is added with a plus: +{path}.name=..." if is_term else ""
        return ConfigError(f"{e}{adds}")
    return ConfigError(str(error) or str(cause))
