"""Actions that a configuration may not take by itself, because it may come from anybody, like a run directory."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from agentgrpo.config.registry import CONNECTS, FUNCTIONS, PACKAGES, PROGRAMS, ROOT
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.secrets import VARIABLE, found_under, is_variable, keep

HOSTS = ("url", "urls", "base_url", "web_url", "dsn")
"""Keys of a node with the hosts it connects to."""
OPENED = ("allow_hosts", "allow_networks")
"""Keys of a node that let private addresses be reached."""
PLACES = (*HOSTS, "user_agent")
"""Keys of a node with the places it sends data to, or with values that it sends to any place."""
KEYS = ("api_key_env", "env", "dsn_env")
"""Keys of a node that name environment variables whose values leave this process."""
_COMMANDS = ("command",)
"""Keys of a node with the command line of a process."""
ALWAYS = ("dsn",)
"""Places that get secrets without naming a key: PostgreSQL's library adds PGPASSWORD and passwords of ~/.pgpass."""
BOARDS = ("tensorboard",)
"""Trackers of run.log_with that only write into the run directory."""
SHARED = Path("~/.cache/agentgrpo")
"""Folder of the presets' caches of paid results."""
FOLDERS = (("qdrant", "path"),)
"""(name, key) of nodes that run code from a folder: Qdrant without a server unpickles it."""
_MEMBER = r"(?:suite\.[^.]+\.)?"
"""Prefix of the keys of a suite's member, which are otherwise the keys of a run."""
_FUNCTIONS = [rf"{group}\.{key}" for group, kind in ROOT.items() for key in FUNCTIONS.get(kind, ())]
CODE = re.compile(f"{_MEMBER}(?:{'|'.join(_FUNCTIONS)})")
"""Keys that name code, in addition to every `name`."""
USER_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_/][\w./:@-]*", re.IGNORECASE)
_BARE = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d))(?::\d+)?(?:/[^@?#]*)?", re.IGNORECASE)
"""Matches host, host:port and host/path without a scheme and without a part that may be a secret."""
_PLACE = re.compile(r"(?:^|\.)(?:base_|web_)?urls?(?:\.\d+)?$")
_TOOLS = re.compile(_MEMBER + "tools")
_RESOLVER = re.compile(r"\$\{\s*([^\s${}:]+)\s*:")


def refuse_resolvers(tree: Any) -> None:
    """Raise ConfigError for an interpolation with any resolver but oc.env (an environment variable's value)."""
    for path, value in _walk(tree):
        for name in _RESOLVER.findall(value) if isinstance(value, str) else ():
            if name != "oc.env":
                raise ConfigError(f"{path}={value}: resolver '{name}'; allowed is oc.env. Write the value itself")


def refuse_bare_addresses(tree: Any) -> None:
    """Raise ConfigError for an address without a scheme, such as localhost:8000, before minutes of loading."""
    for path, value in _walk(tree):
        if _PLACE.search(path) and isinstance(value, str) and _BARE.fullmatch(value):
            raise ConfigError(
                f"{path}={value} does not say how to connect; put http:// before it, or https://: http://{value}"
            )


def refuse_secrets(tree: Any) -> None:
    """Raise ConfigError for a password or key in `tree`, a configuration with unresolved interpolations or the part
    that a command line sets: it would end up in files, and commands appear in the process list. The variables that
    `tree` names instead are treated as secrets from now on."""
    for path, node, key, value in _texts(tree, tree):
        where, last = _join(path, key), key.rpartition(".")[2]
        variables = VARIABLE.findall(value)
        if last in KEYS and "${" not in value and not is_variable(value):
            raise ConfigError(
                f"{where} names no environment variable that is set, and is not shown, for it may be the key itself; "
                f"set a variable to the key and give its name: {where}=NAME"
            )
        for kind, _ in found_under(last, value, is_command=last in (*_COMMANDS, *ALWAYS)):
            raise ConfigError(f"{where} holds {kind}, which would end up in files; {_instead(path, last, node)}")
        if last in KEYS and last != "env" and "${" not in value:  # `env` may also hold variables without secrets
            keep(value)
        if "://" in value or _PLACE.search(where):
            keep(*variables)


def refuse_variables_of_commands(config: Any, unresolved: Any) -> None:
    """Raise ConfigError for a command that contains the value of an environment variable, also by way of another
    setting: all users of a machine can read the command lines of its processes."""
    names = {name for _, _, _, text in _texts(unresolved, unresolved) for name in VARIABLE.findall(text)}
    for path, node, key, value in _texts(config, unresolved):
        for name in names if key in _COMMANDS else ():
            if (held := os.environ.get(name)) and held in value:
                where, how = _join(path, key), _instead(path, key, node)
                raise ConfigError(f"{where} takes the value of {name}, and all users can list a process's words; {how}")


def _texts(tree: Any, raw: Any) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """Yield (key of the node, node, key in it, text) for every value; the words of a command are one text."""
    for path, node, _ in _nodes(tree, raw):
        for key, value in node.items():
            values = _flat(value)
            for text in [" ".join(values)] if str(key) in _COMMANDS else values:
                yield path, node, str(key), text


def _flat(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for inner in value for text in _flat(inner)]
    return [] if value is None or isinstance(value, Mapping | bool | float) else [str(value)]


def _instead(path: str, key: str, node: Mapping[str, Any]) -> str:
    """Return advice on passing the secret in another way than in the setting `key` of the node."""
    if key in _COMMANDS:
        listed = f", which {_join(path, 'env')}=[NAME] hands to it" if "env" in node else ""
        return f"have the program read an environment variable itself{listed}"
    named = "".join(
        f", or name the variable: {_join(path, name)}=NAME" for name in KEYS if name in node and name != "env"
    )
    return f"put it into an environment variable and write '${{oc.env:NAME}}' in its place{named}"


def refuse_targets(tree: Any, file: Path) -> None:
    """Raise ConfigError for a key that a library would act on, such as `_target_`."""
    for path, _ in _walk(tree):
        if re.fullmatch(r"_\w+_", path.rpartition(".")[2]):
            raise ConfigError(f"{file}: {path} would name code to call; remove it")


def refuse_remote_code(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise ConfigError if `config` trusts the Python files of a model and the command line (key -> value) does not
    state that trust, the model and its revision."""
    named, found = _named(overrides), dict(_code(config))
    if missing := {path: value for path, value in found.items() if path not in named}:
        raise ConfigError(
            f"model.trust_remote_code=true runs code of {found['model.path']}; to allow it, add to this command line: "
            + " ".join(override(*item) for item in missing.items())
        )


def refuse_unnamed_code(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise ConfigError for user code that `config` names and the command line (key -> value) does not."""
    named = {name for _, name in named_code(overrides)}
    if missing := {path: name for path, name in named_code(config) if name not in named}:
        said = [override(path, name) for path, name in missing.items()]
        raise ConfigError(f"{said[0]} is code from outside; to run it, name it on this command line: {' '.join(said)}")


def refuse_unnamed(config: Mapping[str, Any], unresolved: Any, overrides: Mapping[str, Any], home: Path) -> None:
    """Raise ConfigError for dangerous settings that only the configuration of the run directory `home` has and the
    command line (key -> value) does not: those that start programs, unpickle, send secrets, connect, or write outside
    of `home`. config: resolved."""
    named = _named(overrides)
    missing: dict[str, tuple[Any, str]] = {}
    for what, found in _dangers(config, unresolved, home):
        for path, value in found:
            if path not in named:
                missing.setdefault(path, (value, what))
    for path, (value, what) in missing.items():
        said = " ".join(override(path, value) for path, (value, _) in missing.items())
        raise ConfigError(f"{path}={value} lets a run directory {what}; to allow it, add to this command line: {said}")


def named_code(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, name) for every name of user code in a tree: package.module:Class, package.module:function."""
    for path, value in _walk(tree):
        names_code = path.rpartition(".")[2] == "name" or CODE.fullmatch(path)
        if names_code and isinstance(value, str) and USER_CODE.fullmatch(value):
            yield path, value


def needed_overrides(unresolved: Mapping[str, Any], user_code: Collection[str], home: Path) -> list[str]:
    """Return the overrides, quoted for a shell, that the command line needs to resume the run directory `home` with
    this configuration. user_code: the names in it that lead to external code."""
    code = [(path, name) for path, name in named_code(unresolved) if name in user_code]
    parts = (found for _, found in _dangers(unresolved, unresolved, home))
    needed = dict((*code, *_code(unresolved), *chain.from_iterable(parts)))
    return [override(path, value) for path, value in needed.items()]


def _dangers(config: Mapping[str, Any], unresolved: Any, home: Path) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    """Yield (dangerous action, the keys and values that cause it) for a configuration."""
    yield "start programs", _programs(config, unresolved)
    yield "choose a folder that Qdrant unpickles, which can run code", _folders(config)
    yield "choose where values of this environment are sent to", _secrets(config, unresolved)
    yield "choose whom this process connects to", _connections(config, unresolved)
    yield "choose a file outside of it that is written", _files(config, unresolved, home)


def _named(overrides: Mapping[str, Any]) -> set[str]:
    return {*overrides} | {_join(key, inner) for key, value in overrides.items() for inner, _ in _walk(value)}


def _code(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings that choose a model's Python files, if any are run."""
    model = config.get("model")
    if isinstance(model, Mapping) and model.get("trust_remote_code"):
        yield from ((f"model.{key}", model.get(key)) for key in ("trust_remote_code", "path", "revision"))


def _programs(config: Mapping[str, Any], unresolved: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings that start programs. Settings that the task takes from the environment are not repeated."""
    for at, of, raw in (("", config, unresolved), *_members(config, unresolved)):
        tools = of.get("tools")
        nodes = {f"tools.{key}": node for key, node in tools.items()} if isinstance(tools, Mapping) else {}
        environment, task = of.get("environment"), of.get("task")
        tests = environment.get("tests") if isinstance(environment, Mapping) else None
        for path, node in {**nodes, "environment": environment, "environment.tests": tests, "task": task}.items():
            for setting, value in _starts(node):
                if path != "task" or _under(_under(raw, "task"), setting) != f"${{{at}environment.{setting}}}":
                    yield f"{at}{path}.{setting}", value


def _members(config: Mapping[str, Any], unresolved: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield (prefix of its keys, node, node with unresolved interpolations) for every member of a suite."""
    suite = config.get("suite")
    for name, node in suite.items() if isinstance(suite, Mapping) else ():
        if isinstance(node, Mapping):
            yield f"suite.{name}.", node, _under(_under(unresolved, "suite"), name)


def _starts(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a node that start programs, with their values."""
    if not isinstance(node, Mapping):
        return
    for setting, harmless in PROGRAMS.items():
        if (value := node.get(setting)) is not None and value not in harmless:
            yield setting, value
    setting, mark = PACKAGES.get(str(node.get("name")), ("", ""))
    if setting and any(mark in str(one) for one in _listed(node.get(setting))):
        yield setting, node[setting]


def _folders(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, node in _walk(config):
        for name, key in FOLDERS:
            if isinstance(node, Mapping) and node.get("name") == name and node.get(key) is not None:
                yield _join(path, key), node[key]


def _secrets(config: Mapping[str, Any], unresolved: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, unresolved value) of all settings that decide which environment variables are sent where."""
    reads = any(isinstance(value, str) and "oc.env" in value for _, value in _walk(unresolved))
    for path, node, raw in _nodes(config, unresolved):
        places, keys = [k for k in PLACES if node.get(k)], [k for k in KEYS if node.get(k)]
        always = [k for k in ALWAYS if node.get(k) is not None]
        yield from ((_join(path, k), _under(raw, k)) for k in ([*places, *keys] if keys else always))
        if places and reads:
            yield from _interpolated(raw, path)


def _connections(config: Mapping[str, Any], unresolved: Any) -> Iterator[tuple[str, Any]]:
    for path, node, raw in _nodes(config, unresolved):
        group, _, key = path.rpartition(".")
        places = [k for k in (*HOSTS, *OPENED) if node.get(k)]
        name = node.get("name", key if _TOOLS.fullmatch(group) else None)
        if places:
            yield from ((_join(path, k), _under(raw, k)) for k in places)
        elif name in CONNECTS and not any(node.get(k) for k in KEYS):  # to the default address of its class
            yield _join(path, "name"), name
        if path == "run" and any(board not in BOARDS for board in _listed(node.get("log_with"))):
            yield "run.log_with", _under(raw, "log_with")


def _files(config: Mapping[str, Any], unresolved: Any, home: Path) -> Iterator[tuple[str, Any]]:
    for path, node, raw in _nodes(config, unresolved):
        key = "path" if path == "cassette" and node.get("mode") == "fill" else "cache"
        file = node.get(key)
        if isinstance(file, str) and file and not _is_inside(file, home):
            yield _join(path, key), _under(raw, key)


def _is_inside(name: str, home: Path) -> bool:
    """Whether the file lies in the run directory, or directly in the folder that all runs of this user share."""
    try:
        file = Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, nobody's home, no name at all
        return False
    return file.is_relative_to(home.resolve()) or file.parent == SHARED.expanduser().resolve()


def _nodes(node: Any, raw: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield (key, node, node with unresolved interpolations) for every mapping."""
    if isinstance(node, Mapping):
        yield path, node, raw
    for key, inner in _items(node):
        yield from _nodes(inner, _under(raw, key), _join(path, key))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _interpolated(raw: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield values with interpolations, which may hold environment variables, directly or through other settings."""
    if isinstance(raw, str) and "${" in raw:
        yield path, raw
    for key, inner in _items(raw):
        yield from _interpolated(inner, _join(path, key))


def _under(raw: Any, key: Any) -> Any:
    """Return the child, or the interpolation that all children come from."""
    return raw if isinstance(raw, str) else raw[key]


def override(path: str, value: Any) -> str:
    """Return an override, quoted for a shell."""
    return shlex.quote(f"{path}={literal(value)}")


def literal(value: Any) -> str:
    """Return a value in the grammar of overrides."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{literal(k)}:{literal(v)}' for k, v in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in _items(tree):
        key_path = _join(path, key)
        yield key_path, value
        yield from _walk(value, key_path)


def _items(tree: Any) -> Iterable[tuple[Any, Any]]:
    return tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
