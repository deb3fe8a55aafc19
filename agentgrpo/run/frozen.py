"""The policy must not be its own reader or judge: models that read, judge or grade stay fixed while the policy learns.

A model is recognised by its folder, or by the server that runs it. An engine's server has a single set of weights,
which after each step are the policy's, whatever name they are served under.
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
    """Raise ConfigError if a frozen part in the node `environment`, at any depth, names the folder of the policy, or a
    folder in the run directory, where checkpoints appear. policies: folders that the policy is loaded from."""
    trained, inside = [policy.resolve() for policy in policies], run_dir.expanduser().resolve()
    for key in sorted(FROZEN & environment.keys()):
        for where, folder in _folders(environment[key], f"environment.{key}"):
            found = folder.resolve()
            if found in trained or inside in (found, *found.parents):
                whose = "the policy's own" if found in trained else f"in the directory of this run, {run_dir}"
                raise ConfigError(
                    f"{where}={folder}: this folder is {whose}, and a {key} must be a model that is not trained here; "
                    "give another folder, such as a copy elsewhere"
                )


def _folders(node: Any, where: str) -> Iterator[tuple[str, Path]]:
    """Yield every folder that a string in the node names; `path` may also name a model in the cache."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if not isinstance(value, str):
            yield from _folders(value, f"{where}.{key}")
        elif (folder := local_folder(value) if key == "path" else Path(value).expanduser()).is_dir():
            yield f"{where}.{key}", folder


def refuse_own_endpoint(chosen: Mapping[str, Mapping[str, Any]], *, engine: Mapping[str, Any], adapts: bool) -> None:
    """Raise ConfigError if a part in one of the nodes `chosen` asks a model (base_url) on a server that the node
    `engine` samples from (urls), since that server receives the policy's weights.

    adapts: an adapter is trained. The server then also keeps the start model, under another name, and that model is
    frozen."""
    trained = {place for url in engine.get("urls", ()) for place in _places(str(url))}
    if not trained or adapts:
        return
    for name, node in chosen.items():
        for where, url in _endpoints(node, name):
            if trained & _places(url):
                raise ConfigError(
                    f"{where}={url}: this server is the engine's (engine.urls), which serves the policy as it is "
                    "trained, and a policy may not read or grade its own work; serve an untrained model on another "
                    "port or machine and give its address, or put one into this process: completer.name=local"
                )


def _endpoints(node: Any, where: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key == "base_url" and isinstance(value, str):
            yield f"{where}.{key}", value
        else:
            yield from _endpoints(value, f"{where}.{key}")


def _places(url: str) -> set[tuple[str, int]]:
    """Return the (address, port) pairs that a URL leads to; an unknown host stands for itself. This machine's addresses
    all count as "here"."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    found = _addresses(host) or {host}
    return {("here" if _is_here(address) else address, port) for address in found}


def _is_here(address: str) -> bool:
    return address in ("::1", "::", "0.0.0.0") or address.startswith("127.") or address in _addresses(gethostname())


def _addresses(host: str) -> set[str]:
    """Return the addresses of a host; empty if the host is unknown."""
    try:
        return {str(info[4][0]) for info in getaddrinfo(host, None, type=SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
