"""The model card: a pure function of what it is told."""

from __future__ import annotations

import math

import yaml

from agentgrpo.records.card import flatten, model_card

CONFIG = {"run": {"seed": 0, "log_with": ["tensorboard"]}, "key": "${oc.env:API_KEY}", "reward": {}}


def test_the_card_says_what_how_and_with_what() -> None:
    card = model_card(
        task="almanac",
        base="Qwen/Qwen3-0.6B",
        step=40,
        metrics={"reward/mean": 0.123456789, "correctness": 0.5, "policy/kl": math.nan},
        config=CONFIG,
        version="0.1.0",
    )
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["agentgrpo", "grpo", "reinforcement-learning"],
        "base_model": "Qwen/Qwen3-0.6B",
    }
    assert "# almanac, step 40\n" in body
    assert "agentgrpo 0.1.0: 40 steps on the task almanac, starting from Qwen/Qwen3-0.6B." in body
    assert "| correctness | 0.5 |\n| policy/kl | not finite |\n| reward/mean | 0.123457 |\n" in body
    settings = body.split("```yaml\n")[1].split("\n```")[0]
    assert yaml.safe_load(settings) == {
        "key": "${oc.env:API_KEY}",
        "reward": {},
        "run.log_with": ["tensorboard"],
        "run.seed": 0,
    }
    assert "AutoModelForCausalLM.from_pretrained(folder)" in body


def test_start_weights_have_no_metrics_and_a_folder_is_no_hub_id() -> None:
    card = model_card(task="t", base="runs/start/model", step=0, metrics={}, config={}, version="1")
    assert "None yet: these are the start weights." in card
    assert "base_model" not in card


def test_a_name_cannot_write_markup() -> None:
    card = model_card(
        task="a\n# big | <b>`x`[y](z)", base="x", step=1, metrics={"m|n": 1.0}, config={"k": "```\n# no"}, version="1"
    )
    assert "# a \\# big \\| \\<b>\\`x\\`\\[y](z), step 1\n" in card
    assert "| m\\|n | 1 |" in card
    assert 'k: "```\\n# no"' in card


def test_equal_arguments_give_equal_text() -> None:
    one = model_card(task="t", base="b", step=1, metrics={"a": 1.0, "b": 2.0}, config={"x": 1, "y": 2}, version="1")
    two = model_card(task="t", base="b", step=1, metrics={"b": 2.0, "a": 1.0}, config={"y": 2, "x": 1}, version="1")
    assert one == two


def test_flatten_keeps_empty_mappings() -> None:
    assert flatten(CONFIG) == {
        "run.seed": 0,
        "run.log_with": ["tensorboard"],
        "key": "${oc.env:API_KEY}",
        "reward": {},
    }
