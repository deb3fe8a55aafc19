"""An encoder of random weights, against transformers' own forward pass of one text."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.encoder import Encoder
from tests.retrieval.stores import corpus, index, refusal, rows_of

WORDS = sorted({w for p in corpus(200) for w in re.findall(r"\w+|[^\w\s]", p.text)} | {"query", "passage", ":"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As E5 lies in a folder, but small and of random weights."""
    path = tmp_path_factory.mktemp("model") / "e5-of-random-weights"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(path)
    return path


TEXTS = ["Homfak was founded by Zirnek .", "by", "Few books explain Zirnek , or so it is said by all who read ."]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_one_text_at_a_time(pooling: str, folder: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    wanted = []
    for text in TEXTS:
        with torch.inference_mode():
            states = model(**tokenizer("passage: " + text, return_tensors="pt")).last_hidden_state[0]
        vector = states.mean(0) if pooling == "mean" else states[0]
        wanted.append((vector / vector.norm()).numpy())
    found = Encoder(path=str(folder), pooling=pooling, batch_size=3).embed(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.stack(wanted), atol=1e-6)


def test_queries_and_passages_have_prefixes_of_their_own(folder: Path) -> None:
    e5 = Encoder(path=str(folder))
    plain = Encoder(path=str(folder), query_prefix="", passage_prefix="", normalize=False)
    np.testing.assert_allclose(e5.embed_queries(["by"]), unit(plain.embed(["query: by"])), atol=1e-6)
    np.testing.assert_allclose(e5.embed(["by"]), unit(plain.embed_queries(["passage: by"])), atol=1e-6)
    assert not np.allclose(e5.embed(["by"]), e5.embed_queries(["by"]), atol=1e-3)
    assert Encoder(path=str(folder)).embed([]).shape == (0, 32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_query_does_not_depend_on_the_others(folder: Path) -> None:
    encoder = Encoder(path=str(folder))
    together = encoder.embed_queries(TEXTS)
    assert [v.tobytes() for v in together] == [encoder.embed_queries([text])[0].tobytes() for text in TEXTS]


def test_long_texts_are_cut(folder: Path) -> None:
    encoder = Encoder(path=str(folder), max_tokens=6)
    cut = [encoder.embed(["by " * n])[0].tobytes() for n in (2, 3, 300)]
    assert cut[0] == cut[1] == cut[2]


def test_it_is_the_same_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert Encoder(path=str(moved)).identity == Encoder(path=str(folder), batch_size=7).identity
    assert Encoder(path=str(folder)).identity.startswith("encoder Bert ")
    others = [{"pooling": "cls"}, {"query_prefix": ""}, {"passage_prefix": ""}, {"normalize": False}, {"max_tokens": 9}]
    assert len({Encoder(path=str(folder), **other).identity for other in [{}, *others]}) == 6
    (moved / "notes.txt").write_text("mine")
    assert Encoder(path=str(moved)).identity == Encoder(path=str(folder)).identity


def test_its_identity_is_of_all_that_it_computes_with(folder: Path, tmp_path: Path) -> None:
    seen = [Encoder(path=str(folder)).identity]
    for name, changed in (
        ("model.safetensors", -1),
        ("config.json", 1),
        ("tokenizer.json", 1),
        ("pytorch_model.bin", 2**20 + 2),  # far from either end
    ):
        moved = shutil.copytree(folder, tmp_path / name)
        file = moved / name
        if not file.is_file():
            file.write_bytes(bytes(2**21 + 2**20))
            seen.append(Encoder(path=str(moved)).identity)
        data = bytearray(file.read_bytes())
        data[changed] ^= 2 if changed < 0 or changed > 1 else data[changed] ^ ord(" ")
        file.write_bytes(data)
        seen.append(Encoder(path=str(moved)).identity)
    assert len({*seen}) == 6


def test_an_index_by_an_encoder(folder: Path, tmp_path: Path) -> None:
    node: dict[str, Any] = {"name": "faiss_index", "embedder": {"name": "encoder", "path": str(folder)}}
    index(node, corpus(200), tmp_path / "index")
    at = {**node, "path": str(tmp_path / "index")}
    encoder = Encoder(path=str(folder))
    scores = encoder.embed([p.text for p in corpus(200)]) @ encoder.embed_queries(["by Zirnek"])[0]
    [row] = rows_of(at, ["by Zirnek"], top_k=5)
    assert [p.score for p in row] == pytest.approx(sorted(scores.tolist(), reverse=True)[:5], abs=1e-5)
    assert "and retriever.embedder is encoder Bert" in refusal({**at, "embedder": {**at["embedder"], "pooling": "cls"}})
    hashing = {**at, "embedder": {"name": "hashing", "dim": 32}}
    assert "retriever.embedder is hashing dim=32; set it as it was" in refusal(hashing)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"path": "no/such"},
            "no model folder, and no model of that name in the cache; download it: hf download no/such",
        ),
        ({"pooling": "meen"}, r"pooling=meen; allowed are mean, cls. Did you mean 'mean'\?"),
        ({"dtype": "float33"}, "dtype=float33; 1 or more and a type such as float32"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_keys_are_checked(wrong: dict[str, object], said: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        build_node("embedder", {"name": "encoder", "path": str(folder), **wrong})
