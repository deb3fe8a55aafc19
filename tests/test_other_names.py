"""What a setting is called elsewhere leads to what it is called here."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from agentgrpo.cli.main import main, presets
from agentgrpo.config.build import build_node
from agentgrpo.config.compose import Presets
from agentgrpo.config.folders import configs_dir
from agentgrpo.config.other_names import OTHER_NAMES, OTHER_PRESETS, other_name
from agentgrpo.config.registry import ROOT
from agentgrpo.config.values import parameters_of
from agentgrpo.core.errors import ConfigError, did_you_mean
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
            ("rollout_n=8", "Here 'rollout_n' is rollout.group_size."),
            ("sample_timeout_s=60", "Here 'sample_timeout_s' is rollout.episode_timeout_s."),
            ("max_search_limit=3", "Here 'max_search_limit' is environment.max_search_limit."),
            ("retriever.web_search_url=http://h:1", "is retriever.web_url, with retriever=http."),
            ("reward.retriever_cost_web=-1", "is reward.terms.retriever_cost.web, with reward=retriever_aware."),
            ("reward.beta=0.05", "is reward.terms.compression.weight, Mem-alpha's, with reward=mem_alpha."),
            ("judge.model=gpt-4.1", "Here 'judge.model' is judge.completer.model, with judge=llm."),
            ("per_search_penalty=-0.1", "Here 'per_search_penalty' is reward.terms.per_search.weight."),
            ("data.train_files=t.parquet", "Here 'train_files' is task.questions."),
            ("vllm_server_port=8000", "Here 'vllm_server_port' is engine.urls, with engine=vllm."),
            ("algorithm.use_bias_correction_kl=true", "Here 'use_bias_correction_kl' is algorithm.kl_importance."),
            ("router_aux_loss_coef=0.1", "nothing: no auxiliary loss is added to that of the policy."),
            ("hardware=gpu", "Here that is hardware=single_gpu."),
            ("algorithm=ppo", "Here that is algorithm=grpo, which has PPO's clip and no critic."),
        ],
        quick=12,
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
    assert (other_name("judge.temperature"), other_name("reward.lr"), other_name("tools.x.n")) == ("", "", "")


def test_every_name_that_is_said_is_there() -> None:
    """A group and preset, a key of one of a group's presets, or an argument of a loss."""
    files = Presets([configs_dir()], presets())
    arguments = {name for loss in LOSSES.values() for name in parameters_of(loss, "")}
    unknown = []
    for text in (*OTHER_NAMES.values(), *OTHER_PRESETS.values()):
        named = re.findall(r"\b((?:" + "|".join(ROOT) + r")(?:\.\w+)*)(?:=(\w+))?", text)
        assert named or text.startswith("nothing: "), text
        for key, value in named:
            group, _, path = key.partition(".")
            if not path:
                known = not value or value in {*presets().get(group, ()), "NAME", "PRESET", "module"}
            elif key.startswith("algorithm.loss_args."):
                known = key.rpartition(".")[2] in arguments
            else:
                path = path.replace("terms.NAME", "terms.correctness")
                known = any(is_there(files.read(group, name), path) for name in presets()[group])
            unknown += [] if known else [key]
    assert unknown == []


def test_every_setting_of_transformers_and_trl_has_a_hint() -> None:
    assert [f.name for f in fields(TrainingArguments) if not other_name(f.name)] == []
    trl = pytest.importorskip("trl")
    assert [f.name for f in fields(trl.GRPOConfig) if not other_name(f.name)] == []


def test_a_word_that_shares_few_letters_is_not_proposed() -> None:
    for given, allowed in (("help", ["eval"]), ("gpu", ["cpu"]), ("ppo", ["sapo"])):
        assert did_you_mean(given, allowed) == ""
    assert did_you_mean("evaluate", ["train", "eval"]) == " Did you mean 'eval'?"


def is_there(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True
