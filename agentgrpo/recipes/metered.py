"""Which parts of a run are behind its meter: all that ask a service outside of this process.

Not the tools, which may do anything, and not what makes an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.errors import ConfigError
from agentgrpo.judges.llm.metered import MeteredCompleter
from agentgrpo.metering import Budget, Meter
from agentgrpo.retrievers.metered import MeteredFetcher, MeteredReranker, MeteredRetriever

IN_PROCESS: Mapping[str, frozenset[str]] = {
    "retriever": frozenset({"embedded"}),
    "web": frozenset({"none"}),
    "reranker": frozenset({"none", "lexical", "cross_encoder"}),
    "fetcher": frozenset({"none"}),
    "completer": frozenset({"local"}),
}
"""Kind of part that is metered -> names of those that ask nobody."""


def metered(kind: str, name: str, path: str, part: Any, meter: Meter) -> Any:
    """`part`, behind the meter where it asks a service. path: of its node; it says for whom a completer works."""
    if kind == "embedder" and name == "openai" and not path.startswith("retriever"):
        _refuse_unmetered(path, meter)
    if part is None or name in IN_PROCESS.get(kind, {name}):
        return part
    meter.in_use = True
    if kind == "retriever":
        return {key: _retriever(one, key, meter) for key, one in part.items()}
    if kind == "web":
        return _retriever(part, "web", meter)
    if kind == "reranker":
        return MeteredReranker(part, meter=meter)
    if kind == "fetcher":
        return MeteredFetcher(part, meter=meter)
    role = next((key for key in reversed(path.split(".")) if key in ("judge", "reader", "validity")), "judge")
    return MeteredCompleter(part, kind=role, meter=meter)


def _refuse_unmetered(path: str, meter: Meter) -> None:
    """Vectors of entries are computed in the midst of a search: nothing there can wait for a meter."""
    if meter.has_cassette or meter.budget != Budget():
        raise ConfigError(
            f"{path}.name=openai asks a service that is neither recorded nor counted; allowed with a cassette or a "
            f"budget are hashing and encoder: {path}.name=hashing, or use cassette=live budget=none"
        )


def _retriever(part: Any, kind: str, meter: Meter) -> Any:
    return part if isinstance(part, MeteredRetriever) else MeteredRetriever(part, kind=kind, meter=meter)
