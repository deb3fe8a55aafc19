"""Presets that a command line implies without naming them.

    environment.dataset=chain_sum    environment=reasoning_gym, the only preset with this key
    tools=[calculator]               environment=tools, which calls them
    task.questions=Q, no corpus      environment=single_turn, which searches nothing
    environment=tools                reward=calls, as the preset's own file declares

A preset that is named on the command line, or in an experiment named there, takes precedence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from agentgrpo.config.compose import Presets
from agentgrpo.config.overrides import OPEN, OWN, brought, is_group, makes_room, parse
from agentgrpo.core.errors import ConfigError

_OWNED = ("task", "demonstrations", "engine", "retriever", "counterfactual", "judge", "environment", "model")
"""Groups in which a key can imply a preset, because their presets differ in keys and not only in values."""
_CORPORA = ("task.corpus", "task.web_corpus")
_QUESTIONS = ("task.questions", "task.sources.")
_SEARCHES = ("jsonl", "questions")
"""Task presets with the user's questions, with or without a corpus."""
_RECIPE = "laptop"
_SMALLEST, _LARGEST = 50_000_000, 500_000_000
"""Smallest and largest number of weights of the chat models that the recipe is for."""


class Implied(NamedTuple):
    """overrides: the complete overrides, implied presets first. notes: the reasons, a line for each preset."""

    overrides: list[str]
    notes: list[str]


def implied(overrides: Sequence[str], presets: Presets, *, learns: bool = True) -> Implied:
    """Return normalised overrides with the presets that they imply, and notes on these presets. learns: the run uses
    reinforcement learning, for which there is a recipe. Raises ConfigError for a key that several presets have, and for
    a key that the chosen preset lacks."""
    line = _Line([*overrides], presets)
    notes = [*line.tools(), *line.renamed(), *line.one_turn(), *line.owners(), *line.tested()]
    if own := brought(line.overrides):
        is_small = learns and line.is_small
        room = makes_room(own, line.overrides, _RECIPE if is_small else "none")
        why = " (a small chat model on a CPU; experiment=none leaves its recipe out)" if is_small else ""
        notes.insert(0, f"{', '.join(own)}: your own, so {' '.join(room)}{why}")
        line = _Line([*room, *line.overrides], presets)
    return Implied(line.overrides, [*notes, *line.declared()])


class _Line:
    """A command line to which implied presets are added."""

    def __init__(self, overrides: Sequence[str], presets: Presets) -> None:
        self.parsed, self.presets = list(parse(overrides)), presets

    @property
    def overrides(self) -> list[str]:
        return [str(o.input_line) for o in self.parsed]

    @property
    def named(self) -> dict[str, str]:
        """Return group -> the preset that the command line names; "" for several presets, as in a sweep."""
        return {
            o.key_or_group: "" if o.is_sweep_override() or o.is_delete() else o.get_value_string()
            for o in self.parsed
            if is_group(o.key_or_group) and "." not in o.key_or_group and not o.package
        }

    @property
    def keys(self) -> list[str]:
        """Return the keys that are set, not added; for keys in a mapping with the user's own names, the mapping."""
        lines = [(o.key_or_group, o.is_add() or o.is_force_add() or o.is_delete()) for o in self.parsed]
        keys = [(next((path for path in OPEN if key.startswith(path)), key), adds) for key, adds in lines]
        return [key for key, adds in keys if "." in key and (key in OPEN or not adds)]

    @cached_property
    def experiment(self) -> str:
        named = self.named.get("experiment")
        return named if named is not None else "none" if brought(self.overrides) else self.presets.default("experiment")

    @property
    def is_open(self) -> bool:
        """Whether no experiment chooses an environment and its related presets."""
        return bool(self.experiment) and "environment" not in self.presets.declares("experiment", self.experiment)

    @property
    def is_small(self) -> bool:
        """Whether a chat model trains on a CPU and is as small as those that the recipe was measured with."""
        said = {o.key_or_group: o.value() for o in self.parsed}
        is_other = self.chosen("engine")[0] != "hf" or self.chosen("hardware")[0] != "cpu"
        if is_other or said.get("hardware.device", "cpu") != "cpu" or any(key.startswith("model.lora") for key in said):
            return False
        return _SMALLEST <= _weights(self._shape(said)) <= _LARGEST

    def _shape(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys of the model's config.json, as far as they are known before the model is fetched."""
        path, preset = said.get("model.path"), self.named.get("model", "")
        file = Path(str(path)).expanduser() / "config.json"
        if path is not None and file.is_file():
            with suppress(OSError, ValueError):
                shape = json.loads(file.read_text("utf-8"))
                return shape if isinstance(shape, dict) else {}
        for name in self.presets.names["model"]:
            node = self.presets.read("model", name)
            if (node.get("path") == path if path is not None else name == preset) and node.get("shape"):
                return dict(node["shape"])
        return {}

    def chosen(self, group: str) -> tuple[str, str]:
        """Return the preset of a group, "" if it is unknown, and the choice that sets it; "" = the default or an
        experiment that is not named."""
        named, chooses = self.named, self.presets.declares
        if group in named:
            return named[group], group
        if self.experiment and group in (of_experiment := chooses("experiment", self.experiment)):
            return of_experiment[group], f"experiment={self.experiment}" if "experiment" in named else ""
        for other in ("environment", "model") if group not in ("environment", "model") else ():
            preset, _ = self.chosen(other)
            if preset and group in (of_preset := chooses(other, preset)):
                return of_preset[group], f"{other}={preset}"
        return self.presets.default(group), ""

    def choose(self, group: str, preset: str, because: str) -> str:
        self.parsed[:0] = parse([f"{group}={preset}"])
        return f"{because}, so {group.replace('/', '.')}={preset}"

    # --- the rules

    @property
    def has_tools(self) -> bool:
        """Whether the command line names tools."""
        chosen = [self.named["tools"]] if "tools" in self.named else []
        parts = [o.key_or_group for o in self.parsed if o.key_or_group.startswith("tools.") and not o.is_delete()]
        return bool(parts) or any(preset not in ("none", "[]") for preset in chosen)

    def tools(self) -> Iterator[str]:
        """Imply environment=tools for tools, unless another environment is named."""
        is_free = "environment" not in self.named and self.is_open and not self._lacking("environment", "tools")
        if is_free and self.has_tools:
            yield self.choose("environment", "tools", "tools are called")

    def renamed(self) -> Iterator[str]:
        """Rename task.questions to task.path for task=memory_files, whose files contain their questions."""
        if self.chosen("task")[0] == "memory_files" and "task" not in self.named and "task.questions" in self.keys:
            lines = [re.sub(r"^task\.questions=", "task.path=", line) for line in self.overrides]
            self.parsed = list(parse(lines))
            yield "task.questions of task=memory_files is task.path"

    def owners(self) -> Iterator[str]:
        """Imply the only preset of a group that has a given key."""
        groups = dict.fromkeys(self._group_of(key) for key in self.keys)
        for group in sorted(filter(None, groups), key=lambda g: (g != "environment", g)):
            current, by = self.chosen(group)
            lacking = self._lacking(group, current)
            if not lacking or current == OWN:
                continue
            owners = [name for name in self.presets.names[group] if not self._lacking(group, name)]
            owners = owners or [name for name in self.presets.names[group] if self._has(group, name, lacking[0])]
            if heads := self._heads(group, owners):
                if len(heads) > 1 or by:
                    raise ConfigError(self._unclear(group, lacking[0], heads, current, by))
                yield self.choose(group, heads[0], f"no other preset has {lacking[0]}")

    def one_turn(self) -> Iterator[str]:
        """Imply environment=single_turn for questions without a corpus to search."""
        keys = [o.key_or_group for o in self.parsed]
        asks = any(key.startswith(_QUESTIONS) for key in keys) and self.chosen("task")[0] in _SEARCHES
        named = any(group.partition("/")[0] in ("environment", "retriever") for group in self.named)
        searches = any(key.startswith((*_CORPORA, "retriever.", "suite.")) for key in keys) or self.has_tools
        if self.is_open and asks and not named and not searches and not self._lacking("environment", "single_turn"):
            yield self.choose("environment", "single_turn", "there is no task.corpus to search")

    def tested(self) -> Iterator[str]:
        """Imply reward=environment for the user's own tests."""
        tests = [o for o in self.parsed if o.key_or_group == "environment.tests.name" and o.value() != "none"]
        preset, by = self.chosen("reward")
        if tests and self.is_open and by != "reward" and preset != "environment":
            yield self.choose("reward", "environment", str(tests[0].input_line))

    def declared(self) -> Iterator[str]:
        """Note the presets that the named or implied environment chooses by itself."""
        preset, _ = self.chosen("environment")
        if not self.is_open or "environment" not in self.named or not preset:
            return
        chosen = [
            f"{group}={name}"
            for group, name in self.presets.declares("environment", preset).items()
            if group not in self.named
        ]
        if chosen:
            names = {o.key_or_group: o.value() for o in self.parsed}
            yield f"environment={names.get('environment.name', preset)}, so {' '.join(chosen)}"

    # --- keys and presets

    def _group_of(self, key: str) -> str:
        """Return the group whose presets may have the key: an inner group if the outer preset has such a part."""
        outer, *rest = key.split(".")
        if outer not in _OWNED:
            return ""
        if rest and f"{outer}/{rest[0]}" in self.presets.names and len(rest) > 1:
            current = self.chosen(outer)[0]
            if current and rest[0] in self.presets.read(outer, current):
                return f"{outer}/{rest[0]}"
        return outer

    def _lacking(self, group: str, preset: str) -> list[str]:
        """Return the keys of the group that neither the preset nor the experiment has."""
        if not preset or preset not in self.presets.names.get(group, ()):
            return []
        keys = [key for key in self.keys if self._group_of(key) == group and not self._has(group, preset, key)]
        known = self.experiment in self.presets.names["experiment"]
        of_experiment = self.presets.file("experiment", self.experiment) if known else {}
        return [key for key in keys if not (of_experiment and _leads(of_experiment, key.split(".")))]

    def _has(self, group: str, preset: str, key: str) -> bool:
        node = self.presets.read(group, preset)
        return node.get("name") != "???" and _leads(node, key.split(".")[group.count("/") + 1 :])

    def _heads(self, group: str, owners: Sequence[str]) -> list[str]:
        """Reduce presets with the same class to the preset that is named like the class, if there is one."""
        names = [str(self.presets.read(group, owner).get("name")) for owner in owners]
        return list(dict.fromkeys(name if name in owners else o for name, o in zip(names, owners, strict=True)))

    def _unclear(self, group: str, key: str, heads: Sequence[str], current: str, by: str) -> str:
        shown = group.replace("/", ".")
        owners = " and ".join(f"{shown}={name}" for name in heads)
        if not by:
            return f"{key} is a key of {owners}; add the one that is meant"
        chooses = "is named" if by == group else f"is what {by} chooses"
        return f"{key} is a key of {owners}, and {shown}={current} {chooses}; choose another, or leave the key out"


def _leads(node: Any, path: Sequence[str]) -> bool:
    """Whether the tree has the path, or has an open mapping for the user's own names on the way."""
    for part in path:
        if node == {} or isinstance(node, list):
            return True
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _weights(shape: Mapping[str, Any]) -> int:
    """Return the number of weights of a decoder of this shape, norms and biases aside; 0 if unknown."""
    try:
        hidden, layers, heads = (shape[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        head = shape.get("head_dim") or hidden // heads
        attention = 2 * hidden * head * (heads + (shape.get("num_key_value_heads") or heads))
        embeddings = shape["vocab_size"] * hidden * (1 if shape.get("tie_word_embeddings", True) else 2)
        return int(layers * (attention + 3 * hidden * shape["intermediate_size"]) + embeddings)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0
