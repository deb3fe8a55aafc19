"""What a setting is called elsewhere leads to what it is called here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hydra
import pytest

from agentgrpo.cli.main import configs_dir, main, presets
from agentgrpo.config.build import build_node, resolve
from agentgrpo.config.compose import to_plain
from agentgrpo.config.other_names import OTHER_NAMES, other_name
from agentgrpo.config.registry import ROOT
from agentgrpo.config.values import parameters_of
from agentgrpo.core.errors import ConfigError
from agentgrpo.grpo.losses import LOSSES
from tests.thorough import siblings


@pytest.mark.parametrize(
    ("override", "hint"),
    siblings(
        [
            ("algorithm.beta=0.04", "Here 'beta' is algorithm.kl_coef."),
            ("beta=0.04", "Here 'beta' is algorithm.kl_coef."),
            ("+beta=0.04", "Here 'beta' is algorithm.kl_coef."),
            ("learning_rate=1e-6", "Here 'learning_rate' is optimizer.lr."),
            ("optimizer.learning_rate=1e-6", "Here 'learning_rate' is optimizer.lr."),
            ("trainer.lr=1e-6", "Here 'lr' is optimizer.lr."),
            ("+trainer.lr=1e-6", "Here 'lr' is optimizer.lr."),
            ("actor_rollout_ref.actor.kl_loss_coef=0.001", "Here 'kl_loss_coef' is algorithm.kl_coef."),
            ("actor_rollout_ref.rollout.n=5", "Here 'n' is rollout.group_size."),
            ("rollout.num_generations=8", "Here 'num_generations' is rollout.group_size."),
            ("~max_completion_length", "Here 'max_completion_length' is rollout.max_tokens, of one turn."),
            ("seed=1", "Here 'seed' is run.seed."),
            ("rollout.seed=1", "Here 'seed' is run.seed."),
            ("algorithm.clip_high=0.28", "Here 'clip_high' is algorithm.loss_args.clip_high."),
            ("hardware.bf16=true", "Here 'bf16' is hardware.dtype=bfloat16, or hardware.mixed_precision=bf16."),
            ("model.name=Qwen/Qwen2.5-7B", "Here 'model.name' is model.path, with model=path."),
        ],
        quick=6,
    ),
)
def test_the_refusal_of_a_foreign_word_says_ours(
    override: str, hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.dir=r", override]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{hint}\n")
    assert error.count("\n") == 1


def test_a_near_miss_of_our_own_word_is_still_found() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'group_size'\?$"):
        build_node("rollout", {"group_sise": 4})
    assert other_name("nobody.has.this") == ""


def test_a_part_of_the_users_has_words_of_its_own() -> None:
    assert (other_name("judge.temperature"), other_name("reward.beta"), other_name("tools.x.n")) == ("", "", "")


def test_every_name_that_is_said_is_there() -> None:
    """A group and preset, a key of a group's default, or an argument of a loss."""
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        overrides = ["experiment=none", "engine=vllm", "model.path=m", "task.questions=q", "task.corpus=c"]
        tree = to_plain(hydra.compose("config", overrides))
    arguments = {name for loss in LOSSES.values() for name in parameters_of(loss, "")}
    unknown = []
    for text in OTHER_NAMES.values():
        named = re.findall(r"\b((?:" + "|".join(ROOT) + r")(?:\.\w+)*)(?:=(\w+))?", text)
        assert named, text
        for key, value in named:
            if "." not in key and key in presets():
                found = not value or value in presets()[key]
            elif key.startswith("algorithm.loss_args."):
                found = key.rpartition(".")[2] in arguments
            else:
                found = is_there(tree, key) or key == "engine.max_context"
            unknown += [] if found else [key]
    assert unknown == []
    assert "max_context" in parameters_of(resolve("engine", "hf", "engine"), "engine")


def is_there(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True
