"""Every preset composes, every key is read, every constructor argument can be set."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

import agentgrpo
from agentgrpo.cli.main import main, presets
from agentgrpo.config import build
from agentgrpo.config.compose import read_preset
from agentgrpo.config.folders import configs_dir
from agentgrpo.config.values import is_plain
from agentgrpo.core.commands import VERBS, Command, VerbResult

OWN_DATA = ("task.questions=q.jsonl", "task.corpus=c.jsonl", "model.path=m")
PRESETS = [(group, name) for group, names in presets().items() for name in names]
OF_USER = [("reward", "own"), ("environment", "own")]
WHOLE = [(group, name) for group, name in PRESETS if group != "experiment" and (group, name) not in OF_USER]
"""Those that say every argument; that of OF_USER has the class of a user."""
SOURCES = [f for f in sorted(Path(agentgrpo.__file__).parent.rglob("*.py")) if f.name != "settings.py"]
JOBS: list[dict[str, Any]] = []


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append({"config": config, "command": command})
    return VerbResult()


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for verb in ("train", "sft"):
        monkeypatch.setitem(VERBS, verb, replace(VERBS[verb], entry="tests.test_configs:keep"))
    JOBS.clear()
    yield
    JOBS.clear()


def compose(*overrides: str, verb: str = "train") -> dict[str, Any]:
    """The checked configuration of one command line."""
    assert main([verb, "run.dir=r", *overrides]) == 0
    config: dict[str, Any] = JOBS.pop()["config"]
    return config


NEEDED = {"recorded": {"runs": ["r"]}, "reasoning_gym": {"settings": {}, "level": None}, "verifiers": {"args": {}}}
"""By preset, what it leaves to the user, or to another preset, and no text is."""


@cache
def preset(group: str, name: str) -> dict[str, Any]:
    return read_preset(configs_dir(), group, name) | NEEDED.get(name, {})


@pytest.mark.parametrize("name", presets()["experiment"])
def test_every_experiment_composes(name: str) -> None:
    assert set(compose(f"experiment={name}", *(OWN_DATA if name in ("none", "laptop", "documents") else ()))) == set(
        build.ROOT
    )


def test_the_experiment_with_an_own_agent_differs_in_the_agent_and_its_reward_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(AsyncOpenAI=None))  # composing imports the agent
    folder = Path(__file__).parents[1] / "scripts" / "bench" / "own_agent"
    monkeypatch.syspath_prepend(str(folder))
    theirs = compose("--config-dir", str(folder), "experiment=calculator_agent")
    ours = compose("experiment=smollm2")
    assert {key for key in ours if ours[key] != theirs[key]} == {"environment", "tools", "reward"}
    assert ours["environment"]["max_turns"] == theirs["environment"]["max_requests"]
    assert ours["environment"]["max_context"] == theirs["environment"]["max_context"]


@pytest.mark.parametrize("path", sorted(configs_dir().rglob("*.yaml")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_file_opens_with_a_command(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines()[:6] if line.startswith("#")]
    assert any("agentgrpo " in line for line in head), "open it with the command that chooses it"


def test_the_default_is_the_embedded_example() -> None:
    config = compose()
    assert {g: config[g]["name"] for g in config if "name" in config[g]} == {
        "task": "almanac",
        "demonstrations": "none",
        "model": "almanac_tiny",
        "engine": "hf",
        "environment": "search",
        "retriever": "embedded",
        "counterfactual": "none",
        "judge": "exact_match",
        "reward": "weighted",
        "algorithm": "grpo_token_mean",
        "optimizer": "adamw",
    }
    assert config["reward"] == compose("reward=retriever_aware")["reward"]


def test_the_command_line_wins_over_the_experiment() -> None:
    plain, chosen = compose(), compose("reward=sparse_with_search_penalty", "judge=token_f1")
    assert chosen["reward"]["terms"] == {"correctness": {"weight": 1.0}, "per_search": {"weight": -0.02}}
    assert chosen["judge"] == {"name": "token_f1"}
    assert {k: v for k, v in chosen.items() if plain[k] != v}.keys() == {"reward", "judge"}


def test_your_own_data() -> None:
    config = compose("experiment=none", *OWN_DATA)
    assert (config["task"]["name"], config["task"]["corpus"], config["model"]) == (
        "jsonl",
        "c.jsonl",
        {
            "name": "path",
            "path": "m",
            "revision": None,
            "trust_remote_code": False,
            "renderer": "auto",
            "describe_tools": None,
            "lora": {"rank": None, "alpha": 32.0, "targets": "all-linear"},
            "freeze": [],
            "cold_start": {"demonstrations": 0, "epochs": 1, "lr": 0.0001, "tokens_per_batch": 512, "freeze": []},
            "shape": None,
        },
    )


@pytest.mark.parametrize(
    ("overrides", "lr"),
    [((), 1e-3), (("experiment=none", *OWN_DATA), 2e-5), (("experiment=none", *OWN_DATA, "optimizer=lora"), 1e-5)],
)
def test_sft_begins_with_presets_of_its_own(overrides: tuple[str, ...], lr: float) -> None:
    """Whatever the experiment; a tiny model and the command line choose their learning rate."""
    config = compose(*overrides, verb="sft")
    assert {g: config[g]["name"] for g in ("demonstrations", "algorithm")} == {
        "demonstrations": "oracle",
        "algorithm": "sft",
    }
    assert set(config["guards"]) == {"gradient", "kl"}
    assert config["optimizer"]["lr"] == lr


def test_what_the_command_line_says_of_sft_wins() -> None:
    chosen = compose("demonstrations=chat", "demonstrations.path=c.jsonl", "guards=none", "algorithm=rloo", verb="sft")
    assert chosen["demonstrations"] == {"name": "chat", "path": "c.jsonl"}
    assert (chosen["guards"], chosen["algorithm"]["name"]) == ({}, "rloo")


def scale(*overrides: str) -> tuple[float | None, int, float]:
    """What depends on how large a model is: learning rate, sampled tokens of a turn, seconds of a step."""
    config = compose(*overrides)
    assert config["optimizer"]["name"] == "adamw"
    return config["optimizer"]["lr"], config["rollout"]["max_tokens"], config["run"]["step_timeout_s"]


@pytest.mark.slow
def test_defaults_are_those_of_a_published_model() -> None:
    for model in (OWN_DATA[2:], ("model=qwen2_5_7b",), ("model=smollm2_135m",)):
        assert scale("experiment=none", *OWN_DATA[:2], *model) == (None, 512, 3600.0)
    assert scale("model=qwen2_5_7b") == (None, 512, 3600.0)  # in the embedded world, too
    assert scale("experiment=tools", "model=path", "model.path=m") == (None, 512, 3600.0)
    assert scale("experiment=lora_7b_vllm") == (1e-5, 512, 3600.0)
    assert scale("experiment=full_7b_nodes") == (None, 512, 3600.0)


@pytest.mark.slow
def test_a_tiny_model_chooses_what_fits_it_unless_the_command_line_does() -> None:
    assert scale() == scale("experiment=none", "task=almanac", "model=almanac_tiny") == (1e-3, 24, 600.0)
    assert scale("experiment=tools") == (1e-3, 28, 600.0)
    assert scale("experiment=memory") == (7e-4, 72, 600.0)
    assert scale("experiment=memory", "optimizer=lora") == (1e-5, 72, 600.0)
    assert scale("experiment=memory", "optimizer=adamw", "rollout=default", "run=default") == (None, 512, 3600.0)
    assert scale("optimizer.lr=0.5", "rollout.max_tokens=9") == (0.5, 9, 600.0)


def test_terms_and_weights_by_name() -> None:
    terms = compose("reward=second_pass", "reward.terms.per_search.weight=-1", "~reward.terms.duplicate_query")[
        "reward"
    ]["terms"]
    assert terms == {
        "correctness": {"weight": 1.0},
        "per_search": {"weight": -1},
        "citation_support": {"weight": 0.1},
        "unsupported_claim": {"weight": -0.1},
    }
    assert compose("reward.terms.retriever_cost.web=-0.1")["reward"]["terms"]["retriever_cost"]["web"] == -0.1
    assert compose("+reward.terms.format.weight=0.5")["reward"]["terms"]["format"] == {"weight": 0.5}


def test_a_null_in_a_file_of_ones_own_leaves_a_presets_part_out(tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "lean.yaml").write_text(
        "# @package _global_\ndefaults: [override /task: workshop, override /environment: tools, "
        "override /reward: calls]\n"
        "tools: {calculator: null}\nreward: {terms: {bad_format: null, tool_cost: null}}\n"
    )
    config = compose("--config-dir", "mine", "experiment=lean", "tools=[calculator,search]", "model.path=m")
    assert list(config["reward"]["terms"]) == ["correctness", "invalid_calls"]
    assert list(config["tools"]) == ["search"]


# --- the other way round: what a constructor takes is in the file, and what it takes is used


def nodes(child: build.Child) -> Iterator[tuple[Any, set[str], set[str]]]:
    """(constructor, its YAML keys, the node's keys) of a node and of all in it. Raises ConfigError as validate does."""
    target, _, parameters = build._read(child, frozenset())
    inner = list(build._children(child.kind, child.node, child.path))
    nested = {c.key for c in inner}
    hidden = build.PROVIDED.get(child.kind, frozenset())
    sayable = nested | build.FUNCTIONS.get(child.kind, {}).keys()
    keys = {k for k, p in parameters.items() if k not in hidden and (k in sayable or is_plain(p.annotation))}
    yield (
        target.func if isinstance(target, partial) else target,
        keys,
        set(child.node) - {"name"} - (nested - set(parameters)),
    )
    for c in inner:
        yield from nodes(c)


@cache
def preset_nodes(group: str, name: str) -> list[tuple[Any, set[str], set[str]]]:
    if "/" in group:
        outer, key = group.split("/")
        kind = build.NESTED[build.ROOT[outer]][key]
        return list(nodes(build.Child(key, None, kind, preset(group, name), key)))
    root = {group: {"dir": "r", **preset(group, name)} if group == "run" else preset(group, name)}
    if group == "run" and root["run"]["dir"] is None:
        root["run"]["dir"] = "r"
    return [found for child in build._children("", root, "") for found in nodes(child)]


@pytest.mark.parametrize(("group", "name"), WHOLE)
def test_a_preset_and_its_constructor_have_the_same_keys(group: str, name: str) -> None:
    """Every key is read by an argument; and every argument is in the file, so that key=value sets it, --cfg job shows
    it and nobody has to read source to find it."""
    assert [(t.__name__, given ^ keys) for t, keys, given in preset_nodes(group, name) if given != keys] == []


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(f.read_text(encoding="utf-8")) for f in SOURCES]


def attributes_read() -> set[str]:
    return {node.attr for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_every_argument_is_used() -> None:
    """An argument of a function is read in its body, a field of a dataclass as an attribute somewhere."""
    read, unused = attributes_read(), set()
    for target, keys, _ in (n for g, p in WHOLE for n in preset_nodes(g, p)):
        if hasattr(target, "__dataclass_fields__"):
            unused |= {f"{target.__name__}.{k}" for k in keys if k not in read}
        elif keys:
            function = target.__init__ if inspect.isclass(target) else target
            names = {n.id for n in ast.walk(ast.parse(dedent(inspect.getsource(function)))) if isinstance(n, ast.Name)}
            unused |= {f"{target.__name__}({k})" for k in keys if k not in names}
    assert sorted(unused) == []


OWNERS = {"run", "eval", "settings", "rollout", "hardware"}


def test_every_setting_is_read_from_settings() -> None:
    """`seed` as an attribute of anything would be too weak a proof: it must be run.seed, settings.tasks, ..."""
    read = set()
    for tree in trees():
        aliases = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and _last_name(node.value) in OWNERS
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _last_name(node.value) in OWNERS | aliases:
                read.add(node.attr)
    fields = {
        f"{kind}.{field}"
        for kind in ("run", "eval", "rollout")
        for field in build.resolve(kind, None, kind).__dataclass_fields__
    }
    assert sorted(f for f in fields if f.partition(".")[2] not in read) == []


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


# --- secrets


def test_a_secret_from_the_environment_stays_off_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "s3cr3t")
    assert main(["train", "run.dir=r", "environment.system_prompt=${oc.env:CANARY}"]) == 0
    job = JOBS.pop()
    assert job["config"]["environment"]["system_prompt"] == "s3cr3t"
    assert "system_prompt: ${oc.env:CANARY}" in job["command"].snapshot
    assert "s3cr3t" not in job["command"].snapshot
