"""Models of every family that is supported: loaded from a folder, spoken to in their own format with tools, sampled,
trained, saved, and loaded by transformers alone. Random weights; the shapes are the families', the sizes are not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentgrpo.cli.main import main
from tests.e2e.conftest import rows
from tests.renderers.families import tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": ("qwen2", "chatml", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", "qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama": ("llama", "llama3", {"tie_word_embeddings": False}),
    "smollm": ("llama", "chatml", {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "mistral": ("mistral", "mistral", {"sliding_window": None}),
    "gemma": ("gemma", "gemma", {"head_dim": 16}),
    "gemma3": (
        "gemma3_text",
        "gemma",
        {"head_dim": 16, "sliding_window": 2048, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma2": ("gemma2", "gemma", {"head_dim": 16}),
}
"""name -> (model_type, tokenizer and renderer, keys of its config.json)."""
PARITY = "reward.terms.parity.name=tests.e2e.parity:Parity"
SETTINGS = [
    "experiment=none",
    "task=jsonl",
    "task.questions=q.jsonl",
    "model=path",
    "environment=tools",
    "environment.max_turns=2",
    "engine.max_context=1536",
    "environment.min_context_left=10",
    "tools=[calculator]",
    "reward=correctness",
    f"+{PARITY}",
    "+reward.terms.parity.weight=1.0",
    "rollout.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_tokens=6",
    "optimizer=tiny",
    "run.max_steps=1",
    "run.checkpoint_every=1",
    "run.eval_every=0",
    "run.final_eval=false",
    "run.screen=quiet",
    "run.log_with=[]",
    "hardware.threads=1",
    "guards=none",
]


def made(name: str, folder: Path, **changed: Any) -> Path:
    """A model folder as transformers writes it; ids beyond the tokenizer's, as published models have."""
    kind, speaks, facts = MODELS[name]
    words = tokenizer(speaks)
    config = AutoConfig.for_model(
        kind,
        **SIZES | facts | changed,
        vocab_size=len(words) + 24,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        {"id": f"q{i}", "question": f"{i} + 1 = ?", "answers": [str(i + 1)], "split": split}
        for i, split in enumerate(("train", "train", "dev", "dev", "test", "test"))
    ]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


QUICK = {"qwen3", "gemma3"}


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(MODELS.keys() - {"gemma2"})],
)
def test_a_model_is_trained_in_its_own_format_and_saved_as_it_came(name: str) -> None:
    start = made(name, Path("start"))
    assert main(["train", *SETTINGS, "model.path=start", "run.dir=r"]) == 0
    assert [row["step"] for row in rows(Path("r/metrics.jsonl"))] == [0]
    saved = AutoModelForCausalLM.from_pretrained("r/checkpoints/step-000001")
    before = AutoModelForCausalLM.from_pretrained(start)
    both = zip(saved.named_parameters(), before.parameters(), strict=True)
    changed = {name for (name, p), q in both if not p.equal(q)}
    assert changed == {n for n, _ in before.named_parameters()}
    assert (
        AutoTokenizer.from_pretrained("r/checkpoints/step-000001").chat_template
        == tokenizer(MODELS[name][1]).chat_template
    )


@pytest.mark.parametrize("name", ["qwen2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mistral", "gemma3"))])
@pytest.mark.slow
def test_an_adapter_is_trained_in_bfloat16_with_layers_computed_twice(name: str) -> None:
    made(name, Path("start"))
    settings = ["model.lora.rank=4", "hardware.dtype=bfloat16", "hardware.activation_checkpointing=true"]
    assert main(["train", *SETTINGS, *settings, "model.path=start", "run.dir=r"]) == 0
    saved = AutoModelForCausalLM.from_pretrained("r/checkpoints/step-000001")
    factors = {n: p for n, p in saved.named_parameters() if ".lora_B." in n}
    assert len(factors) == 2 * 7  # every linear layer of both decoder layers, and not the head
    assert all(p.any() for p in factors.values())


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("gemma3", ["engine.max_context=2049"], "looks back 2048 tokens in some layers, and max_context=2049; .* set "),
        (
            "gemma2",
            [],
            "Gemma2Attention uses softcap: only plain causal attention is supported; choose a model without",
        ),
    ],
)
def test_attention_that_would_be_another_is_refused_in_a_line(
    name: str, settings: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(name, Path("start"))
    capsys.readouterr()
    assert main(["train", *SETTINGS, "model.path=start", "run.dir=r", *settings]) == 2
    error = capsys.readouterr().err
    assert re.search(f"agentgrpo: .*{reason}", error)
    assert error.count("\n") == 1


# --- Python files of a model

COMMIT, OTHER = "a" * 40, "b" * 40
CODE = """
import os
from transformers import Qwen2Config, Qwen2ForCausalLM

with open(os.environ["RAN"], "a") as file:
    file.write(__name__ + "\\n")

class OddConfig(Qwen2Config):
    model_type = "odd"

class OddForCausalLM(Qwen2ForCausalLM):
    config_class = OddConfig
"""
NAMED = ["model.path=someone/odd", f"model.revision={COMMIT}", "model.trust_remote_code=true"]


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The hub's cache with a model whose class comes with it; the file that its code writes to."""
    hub, ran = tmp_path / "hub", tmp_path / "ran"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("RAN", str(ran))
    folder = made("qwen2", hub / "models--someone--odd" / "snapshots" / COMMIT)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.OddForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "odd", "auto_map": classes}))
    (folder / "odd.py").write_text(CODE)
    return ran


@pytest.mark.slow
def test_code_of_a_model_runs_where_the_command_line_trusts_that_commit(
    cached: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SETTINGS, *NAMED, "run.dir=r"]) == 0
    assert cached.is_file()
    cached.unlink()
    capsys.readouterr()
    for missing in (NAMED, NAMED[1:], NAMED[:2], [NAMED[0], NAMED[2]]):  # RUN says all of it, which is not enough
        given = [] if missing is NAMED else missing
        assert main(["resume", "r", "run.max_steps=2", *given]) == 2
        assert "model.trust_remote_code=true runs code of someone/odd; to allow it, add" in capsys.readouterr().err
    assert not cached.exists()
    assert main(["resume", "r", "run.max_steps=2", PARITY, *NAMED]) == 0
    assert [row["step"] for row in rows(Path("r/metrics.jsonl"))] == [0, 1]


def test_code_of_a_model_never_runs_unasked(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SETTINGS, *NAMED[:2], "run.dir=r"]) == 2
    mine = Path("mine/model/odd.yaml")
    mine.parent.mkdir(parents=True)
    keys = "".join(f"{key}: {value}\n" for key, value in (text.removeprefix("model.").split("=") for text in NAMED))
    mine.write_text("defaults: [path, _self_]\n" + keys)
    settings = [text for text in SETTINGS if text != "model=path"]
    assert main(["train", *settings, "--config-dir", "mine", "model=odd", "run.dir=s"]) == 2
    shutil.copytree(Path("hub/models--someone--odd/snapshots") / COMMIT, "copy")
    refused = {
        "model.revision=main": "it needs a hub name and the commit",
        "model.path=copy": "it needs a hub name and the commit",
        f"model.revision={OTHER}": f"(hf download someone/odd --revision {OTHER}), or give a folder",
    }
    capsys.readouterr()
    for changed, reason in refused.items():
        assert main(["train", *SETTINGS, *NAMED, changed, f"run.dir=t{len(reason)}"]) == 2
        assert reason in capsys.readouterr().err
    config = Path("hub/models--someone--odd/snapshots", COMMIT, "config.json")
    config.write_text(config.read_text().replace("odd.OddFor", "someone/else--odd.OddFor"))
    assert main(["train", *SETTINGS, *NAMED, "run.dir=u"]) == 2
    assert "is code of another repository, which no revision here pins" in capsys.readouterr().err
    assert not cached.exists()
