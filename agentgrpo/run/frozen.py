"""The policy must not be its own reader or judge: what reads, judges and grades stays as it is while the policy learns.

It is told by the folder that a model is loaded from, and by the server that it is asked on. A server of the engine's
has one set of weights, and after each step these are the policy's, whatever name it serves them under.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from socket import SOCK_STREAM, getaddrinfo, gethostname
from typing import Any
from urllib.parse import urlsplit

from agentgrpo.config.registry import FROZEN
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.loading import local_folder


def refuse_own_reader(environment: Mapping[str, Any], *, run_dir: Path, policies: Iterable[Path]) -> None:
    """Raise ConfigError where a frozen part of the node `environment`, or a part in it, names the folder of the policy,
    or one in the run's own directory, where checkpoints appear. policies: folders that the policy is loaded from."""
    trained, inside = [policy.resolve() for policy in policies], run_dir.expanduser().resolve()
    for key in sorted(FROZEN & environment.keys()):
        for where, folder in _folders(environment[key], f"environment.{key}"):
            found = folder.resolve()
            if found in trained or inside in (found, *found.parents):
                whose = "the policy's own" if found in trained else f"in the directory of this run, {run_dir}"
                raise ConfigError(
                    f"{where}={folder}: this folder is {whose}, and a {key} must be a model that is not trained here; "
                    "give another one, be it a copy elsewhere"
                )


def _folders(node: Any, where: str) -> Iterator[tuple[str, Path]]:
    """Every folder that a text in the node names; `path` may also be a name in the cache of models."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if not isinstance(value, str):
            yield from _folders(value, f"{where}.{key}")
        elif (folder := local_folder(value) if key == "path" else Path(value).expanduser()).is_dir():
            yield f"{where}.{key}", folder


def refuse_own_endpoint(chosen: Mapping[str, Mapping[str, Any]], *, engine: Mapping[str, Any], adapts: bool) -> None:
    """Raise ConfigError where a part in one of the nodes `chosen` asks a model (base_url) on a server that the node
    `engine` samples from and gives the policy's weights to (urls).

    adapts: an adapter is trained. Then the server keeps the start model beside it, under a name of its own, and that
    one is frozen."""
    trained = {place for url in engine.get("urls", ()) for place in _places(str(url))}
    if not trained or adapts:
        return
    for name, node in chosen.items():
        for where, url in _endpoints(node, name):
            if trained & _places(url):
                raise ConfigError(
                    f"{where}={url}: this server is the engine's (engine.urls), which serves the policy as it is "
                    "trained, and nobody may read or grade its own work; serve a model that is not trained on another "
                    "port or machine and give its address, or put one into this process: completer.name=local"
                )


def _endpoints(node: Any, where: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key == "base_url" and isinstance(value, str):
            yield f"{where}.{key}", value
        else:
            yield from _endpoints(value, f"{where}.{key}")


def _places(url: str) -> set[tuple[str, int]]:
    """Addresses and port that a URL leads to; a host that nobody knows stands for itself. All that is this machine is
    one."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    found = _addresses(host) or {host}
    return {("here" if _is_here(address) else address, port) for address in found}


def _is_here(address: str) -> bool:
    return address in ("::1", "::", "0.0.0.0") or address.startswith("127.") or address in _addresses(gethostname())


def _addresses(host: str) -> set[str]:
    """None of a host that nobody knows."""
    try:
        return {str(info[4][0]) for info in getaddrinfo(host, None, type=SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
