"""The equipment: the retrievers and tools that the environment asks for, built from the configuration.

environment or one of its tools asks for retrievers --> retriever over the corpora
environment asks for tools --------------------------> tools by the names that the policy calls them by, workspaces
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import Any

from agentgrpo.config.build import Child, PartNode, build_node, takes, user_code
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.base import Retriever, TaskRetrievers
from agentgrpo.retrieval.counterfactual import Counterfactual
from agentgrpo.run.examine import Closing
from agentgrpo.run.services import metered
from agentgrpo.services.meter import Meter
from agentgrpo.services.secret import nothing_is_sent
from agentgrpo.tools.base import Tool, Toolset
from agentgrpo.tools.workspace import Workspaces

Corpora = Mapping[str, Sequence[Passage]]
PAGES = "pages"
"""Name of the corpus whose pages are fetched and not searched."""
_NO_COUNTERFACTUAL = {"name": "none"}


def build_part(node: PartNode, meter: Meter | None, /, **injected: Any) -> Any:
    """Build the node's part; with a meter, calls to services go through it."""
    if meter is None:
        return node.build(**injected)

    def finish(child: Child, part: Any) -> Any:
        return metered(child.kind, child.node.get("name", child.name), child.path, part, meter)

    with nothing_is_sent() if meter.replays_only else nullcontext():
        return build_node(node.kind, node.tree, finish, **injected)


class Equipment:
    """Retrievers and tools of a configuration, over its corpora; some tasks may have other corpora. meter: meters the
    retrievers' calls. counterfactual: wraps the retrievers as well, except for demonstrations."""

    def __init__(
        self,
        config: Mapping[str, Any],
        corpora: Corpora,
        meter: Meter | None = None,
        counterfactual: Counterfactual | None = None,
        training: tuple[frozenset[str], Corpora] | None = None,
    ) -> None:
        """training: ids of the tasks that have separate corpora, and these corpora (tasks.base.HeldOutDataset). Raises
        ConfigError, also for two tools of one name and for tools that the environment would not offer."""
        self._config, self._meter = config, meter
        self._corpora = corpora
        if config["tools"] and not self._has_tools:
            raise ConfigError(
                f"environment={config['environment']['name']} calls no tools; use environment=tools, or tools=none"
            )
        self.retrievers = self._retrievers(config["retriever"], corpora, counterfactual)
        self._training: TaskRetrievers | None = None
        in_process = config["retriever"]["name"] == "embedded"
        if training is not None and in_process and self._asks_itself("training_retrievers"):
            task_ids, own = training
            retrievers = self._retrievers(config["retriever"], own, counterfactual)
            self._training = TaskRetrievers(task_ids=task_ids, retrievers=retrievers)
        self.workspaces = Workspaces() if self._has_tools else None
        self._parts = {key: self._tool(key, self.retrievers) for key in self._nodes}
        by_name(self._parts)  # names that clash are an error of construction

    def over(self, corpora: Corpora) -> Mapping[str, Any]:
        """Return `for_environment` over other corpora, always in process; tools that search nothing are shared. For
        demonstrations: the caller need not close it."""
        node = self._config["retriever"]
        node = {k: v for k, v in node.items() if k != "web"} if node["name"] == "embedded" else {"name": "embedded"}
        retrievers = self._retrievers(node, corpora)
        parts = {key: self._tool(key, retrievers) if self._searches(key) else part for key, part in self._parts.items()}
        return self._injected(retrievers, parts, corpora, node)

    @property
    def for_environment(self) -> Mapping[str, Any]:
        """Arguments for an environment factory's constructor."""
        injected = self._injected(self.retrievers, self._parts, self._corpora, self._config["retriever"])
        return {**injected, "training_retrievers": self._training}

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of the tool descriptions shown to the policy, which a server may change between two runs, and of the
        counterfactual; empty without either."""
        specs = [tool.spec for tool in by_name(self._parts).values()]
        told = json.dumps([[s.name, s.description, s.parameters] for s in specs], default=repr)
        found = {"tools": sha256(told.encode()).hexdigest()} if specs else {}
        counterfactual = self._config.get("counterfactual", _NO_COUNTERFACTUAL)
        return found if counterfactual == _NO_COUNTERFACTUAL else {**found, "counterfactual": repr(counterfactual)}

    @property
    def notes(self) -> Sequence[str]:
        """Warnings about settings that may be unintended, one line each."""
        environment = self._config["environment"]
        is_meant = environment.get("max_turns") == 1 or user_code({"environment": environment})
        if not self._has_tools or self._parts or is_meant:
            return ()
        return ("the environment has several turns and no tools: every call will fail; tools=calculator gives one",)

    @property
    def closing(self) -> tuple[Closing, ...]:
        """Parts to close at the end of the run."""
        workspaces = () if self.workspaces is None else (self.workspaces,)
        training = () if self._training is None else self._training.retrievers.values()
        return (*self.retrievers.values(), *training, *self._parts.values(), *workspaces)

    def _injected(
        self,
        retrievers: Mapping[str, Retriever],
        parts: Mapping[str, Tool | Toolset],
        corpora: Corpora,
        retriever: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """corpora: passed on if they are all that can be found; empty if a server may find more."""
        known = retriever["name"] == "embedded" and (retriever.get("web") or {"name": "none"})["name"] == "none"
        return {
            "retrievers": retrievers,
            "tools": by_name(parts),
            "workspaces": self.workspaces,
            "corpora": _searched(corpora) if known else {},
            PAGES: corpora.get(PAGES, ()),
        }

    @property
    def _has_tools(self) -> bool:
        return takes("environment", self._config["environment"], "tools")

    @property
    def _nodes(self) -> Mapping[str, Any]:
        return self._config["tools"] if self._has_tools else {}

    def _searches(self, key: str) -> bool:
        return takes("tool", self._nodes[key], "retrievers", name=key)

    def _asks_for(self, argument: str) -> bool:
        return self._asks_itself(argument) or any(map(self._searches, self._nodes))

    def _asks_itself(self, argument: str) -> bool:
        return takes("environment", self._config["environment"], argument)

    def _retrievers(
        self, node: Mapping[str, Any], corpora: Corpora, counterfactual: Counterfactual | None = None
    ) -> Mapping[str, Retriever]:
        """Build the retrievers; empty if neither the environment nor a tool asks for them. Raises ConfigError."""
        asked = self._asks_for("retrievers")
        if asked and not corpora and node["name"] == "embedded":
            who = [f"tools.{key}" for key in self._nodes if self._searches(key)] or ["the environment"]
            raise ConfigError(
                f"{who[0]} searches, and task={self._config['task']['name']} has no corpus; give it one, search a "
                "server's (retriever=http), or leave the tool out"
            )
        found: Mapping[str, Retriever] = {}
        if asked:
            found = build_part(PartNode("retriever", node), self._meter, corpora=_searched(corpora))
        if counterfactual is None:
            return found
        _refuse_pages(self._config, found)
        return {name: counterfactual(retriever) for name, retriever in found.items()}

    def _tool(self, key: str, retrievers: Mapping[str, Retriever]) -> Tool | Toolset:
        node = PartNode("tool", {"name": key, **self._nodes[key]})
        part: Tool | Toolset = build_part(node, self._meter, retrievers=retrievers)
        return part


class SuiteEquipment(Equipment):
    """The common equipment of a suite; each environment is built with its own member's equipment."""

    def __init__(self, members: Mapping[str, Equipment]) -> None:
        self._members = members

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return {f"{name}/{of}": mark for name, part in self._members.items() for of, mark in part.fingerprints.items()}

    @property
    def notes(self) -> Sequence[str]:
        return [f"suite.{name}: {note}" for name, part in self._members.items() for note in part.notes]

    @property
    def closing(self) -> tuple[Closing, ...]:
        return tuple(closing for part in self._members.values() for closing in part.closing)


def _searched(corpora: Corpora) -> Corpora:
    return {name: passages for name, passages in corpora.items() if name != PAGES}


def _refuse_pages(config: Mapping[str, Any], retrievers: Mapping[str, Retriever]) -> None:
    """Raise ConfigError if a counterfactual would have no effect, or fetched pages would show what it withholds."""
    name = config["counterfactual"]["name"]
    if not retrievers:
        raise ConfigError(f"counterfactual={name}, and nothing searches here; use counterfactual=none")
    if config["environment"].get("fetcher", {"name": "none"})["name"] != "none":
        raise ConfigError(
            f"counterfactual={name}, and pages would show what it withholds; add environment.fetcher.name=none"
        )


def by_name(parts: Mapping[str, Tool | Toolset]) -> dict[str, Tool]:
    """Return every tool of `parts` by its own name. Raises ConfigError for duplicate names and for parts that are not
    tools."""
    found: dict[str, Tool] = {}
    brought: dict[str, str] = {}
    for key, part in parts.items():
        for tool in part.tools if isinstance(part, Toolset) else (part,):
            if not isinstance(tool, Tool) or not isinstance(tool.spec, ToolSpec):
                raise ConfigError(
                    f"tools.{key}: {type(tool).__name__} is no tool; a class needs spec (an "
                    "agentgrpo.core.messages.ToolSpec), async call(arguments, workspace) and async close() (see "
                    "agentgrpo.tools.base.Tool); a plain function with annotations is a tool as it is"
                )
            name = tool.spec.name
            if name in found:
                raise ConfigError(f"tools.{key} and tools.{brought[name]} are both called {name}; leave one out")
            found[name], brought[name] = tool, key
    return found
