"""A run whose steps would take hours on a CPU says so, and what is quicker; others say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from agentgrpo.run.first_look import SHORTER, too_long

SMOLLM2 = 134_515_008


def tree(*, max_tokens: int = 512, device: str = "cpu", engine: str = "hf", **environment: Any) -> dict[str, Any]:
    return {
        "rollout": {"tasks_per_step": 16, "group_size": 8, "max_tokens": max_tokens},
        "environment": environment,
        "run": {"max_steps": 150, "eval": {"tasks": 10}},
        "hardware": {"device": device},
        "engine": {"name": engine},
    }


def test_hours_are_said_with_what_makes_them_minutes() -> None:
    said = too_long(tree(max_turns=5), SMOLLM2)
    assert said is not None
    assert "327,680 tokens at most (128 episodes x 5 turns x 512)" in said
    assert "134,515,008 weights" in said
    assert said.endswith(
        "rollout.tasks_per_step=4 rollout.max_tokens=64 environment.max_turns=3 run.max_steps=20"
    )  # 10 tasks are few


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (tree(max_turns=5), 600_000),
        (tree(max_turns=5, max_tokens=16), SMOLLM2),
        (tree(max_turns=5, device="cuda"), SMOLLM2),
        (tree(max_turns=5, engine="vllm"), SMOLLM2),
    ],
    ids=["a toy model", "short turns", "a GPU", "a server"],
)
def test_what_is_quick_or_unknown_says_nothing(node: dict[str, Any], weights: int) -> None:
    assert too_long(node, weights) is None


def test_what_is_proposed_is_short_itself() -> None:
    node = tree(max_turns=5)
    for key, value in SHORTER.items():
        group, _, field = key.rpartition(".")
        (node["run"]["eval"] if group == "run.eval" else node[group])[field] = value
    assert too_long(node, SMOLLM2) is None


def test_an_environment_without_turns_counts_one() -> None:
    assert "x 1 turn x" in (too_long(tree(), 10 * SMOLLM2) or "")
