"""Which parts of a run are metered: all parts that ask a service outside this process.

Among tools these are fetch and mcp; other tools work in this process, or may do anything. Index builds are not metered.
An engine that asks an endpoint is given the meter, because it alone knows the cost of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.judges.llm.completer import CompleterService
from agentgrpo.retrieval.services import FetcherService, RerankerService, RetrieverService
from agentgrpo.services.budget import Budget
from agentgrpo.services.meter import Meter
from agentgrpo.tools.base import Toolset
from agentgrpo.tools.services import ToolService, ToolsetService

IN_PROCESS: Mapping[str, frozenset[str]] = {
    "retriever": frozenset({"embedded"}),
    "web": frozenset({"none"}),
    "reranker": frozenset({"none", "lexical", "cross_encoder"}),
    "fetcher": frozenset({"none", "task"}),
    "completer": frozenset({"local"}),
    "evidence": frozenset({"gold", "heuristic", "lexical"}),
}
"""Kind of metered part -> names of the parts that ask no service."""


METERED_TOOLS = frozenset({"fetch", "mcp"})
"""Names of metered tools; their calls are counted under the same names."""


def metered(kind: str, name: str, path: str, part: Any, meter: Meter) -> Any:
    """Return `part`, metered if it asks a service. path: its node's path, which tells whom a completer works for."""
    if kind == "embedder" and name == "openai" and not path.startswith("retriever"):
        _refuse_unmetered(path, meter)
    if kind == "tool" and name in METERED_TOOLS:
        meter.in_use = True
        behind = ToolsetService if isinstance(part, Toolset) else ToolService
        return behind(part, kind=name, meter=meter)
    if part is None or name in IN_PROCESS.get(kind, {name}):
        return part
    meter.in_use = True
    if kind == "retriever":
        return {key: _retriever(one, key, meter) for key, one in part.items()}
    if kind == "web":
        return _retriever(part, "web", meter)
    if kind == "reranker":
        return RerankerService(part, meter=meter)
    if kind == "fetcher":
        return FetcherService(part, meter=meter)
    if kind != "completer":
        return part
    role = next((key for key in reversed(path.split(".")) if key in ("judge", "reader", "validity")), "judge")
    return CompleterService(part, kind=role, meter=meter)


def _refuse_unmetered(path: str, meter: Meter) -> None:
    """Refuse vectors for memory entries or an evidence judge's words from a service: they are computed in synchronous
    code, which cannot wait for a meter. Raises ConfigError if calls are to be recorded or limited."""
    if meter.has_cassette or meter.budget != Budget():
        raise ConfigError(
            f"{path}.name=openai asks a service that is neither recorded nor counted; with a cassette or a budget use "
            f"hashing or encoder: {path}.name=hashing, or use cassette=live budget=none"
        )


def _retriever(part: Any, kind: str, meter: Meter) -> Any:
    return part if isinstance(part, RetrieverService) else RetrieverService(part, kind=kind, meter=meter)
