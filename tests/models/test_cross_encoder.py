"""A cross-encoder on this machine, as a reranker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.models.cross_encoder import CrossEncoder
from tests.builders import passage
from tests.engines import tiny

QUERY = "who founded Velmor"
PASSAGES = [
    passage("a", "Velmor was founded by Castin.", title="Velmor"),
    passage("b", "Tours are popular.", score=9.0),
    passage("c", "Castin lives in Roka, in the long street behind the mill, where the road to the sea begins."),
    passage("d", "No."),
]


def save(folder: Path, num_labels: int = 1, labels: Sequence[str] = ()) -> BertForSequenceClassification:
    """labels: names of all of them."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": tiny.VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.3,
    }
    named = {"id2label": dict(enumerate(labels))} if labels else {"num_labels": num_labels}
    model = BertForSequenceClassification(BertConfig(**shape, **named)).eval()
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model


def alone(model: torch.nn.Module, query: str, text: str) -> torch.Tensor:
    """The model's logits for one pair, without padding."""
    with torch.inference_mode():
        logits: torch.Tensor = model(**tiny.tokenizer()(query, text, return_tensors="pt")).logits[0]
    return logits


@pytest.mark.parametrize("num_labels", [1, 2])
async def test_scores_are_the_models_for_each_pair_and_sort(tmp_path: Path, num_labels: int) -> None:
    model = save(tmp_path, num_labels)
    ranked = await CrossEncoder(path=str(tmp_path), batch_size=3).rerank(QUERY, PASSAGES, top_k=9)
    texts = {p.id: f"{p.title}\n{p.text}" if p.title else p.text for p in PASSAGES}
    expected = {}
    for id, text in texts.items():
        logits = alone(model, QUERY, text).double()
        expected[id] = float(logits.sigmoid() if num_labels == 1 else logits.softmax(-1)[1])
    assert {p.id: p.score for p in ranked} == pytest.approx(expected, rel=1e-4)
    assert [p.id for p in ranked] == sorted(expected, key=lambda id: -expected[id])
    assert len({p.score for p in ranked}) == 4
    by_id = {p.id: p for p in PASSAGES}
    assert all((p.text, p.title) == (by_id[p.id].text, by_id[p.id].title) for p in ranked)


@pytest.mark.parametrize(
    "labels", [["contradiction", "Entailment", "neutral"], ["entailment", "not_entailment"], ["a", "b", "entailment"]]
)
async def test_a_model_of_entailment_is_asked_whether_the_passage_entails_the_hypothesis(
    tmp_path: Path, labels: list[str]
) -> None:
    model = save(tmp_path, labels=labels)
    place = [label.lower() for label in labels].index("entailment")
    for given, hypothesis in (
        ({}, f"This answers the question: {QUERY}"),
        ({"hypothesis": "It says {query}."}, f"It says {QUERY}."),
    ):
        ranked = await CrossEncoder(path=str(tmp_path), **given).rerank(QUERY, PASSAGES, top_k=9)
        texts = {p.id: f"{p.title}\n{p.text}" if p.title else p.text for p in PASSAGES}
        expected = {id: float(alone(model, text, hypothesis).double().softmax(-1)[place]) for id, text in texts.items()}
        assert {p.id: p.score for p in ranked} == pytest.approx(expected, rel=1e-4)
        assert [p.id for p in ranked] == sorted(expected, key=lambda id: -expected[id])


async def test_one_label_is_relevance_whatever_its_name(tmp_path: Path) -> None:
    model = save(tmp_path, labels=["entailment"])
    [ranked] = await CrossEncoder(path=str(tmp_path)).rerank(QUERY, PASSAGES[1:2], top_k=1)
    assert ranked.score == pytest.approx(float(alone(model, QUERY, PASSAGES[1].text).double().sigmoid()), rel=1e-4)


async def test_the_best_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path)
    reranker = CrossEncoder(path=str(tmp_path))
    everything = await reranker.rerank(QUERY, PASSAGES, top_k=4)
    assert await reranker.rerank(QUERY, PASSAGES, top_k=2) == everything[:2]
    assert await reranker.rerank(QUERY, [], top_k=2) == []


async def test_scores_do_not_depend_on_what_else_is_asked(tmp_path: Path) -> None:
    save(tmp_path)
    reranker = CrossEncoder(path=str(tmp_path))
    queries = [f"{QUERY} {i}" for i in range(6)]
    one_by_one = [await reranker.rerank(q, PASSAGES, top_k=4) for q in queries]
    together = await asyncio.gather(*(reranker.rerank(q, PASSAGES, top_k=4) for q in queries))
    assert together == one_by_one
    turned = await reranker.rerank(queries[0], PASSAGES[::-1], top_k=4)
    assert turned == one_by_one[0]


async def test_the_loop_is_free_meanwhile(tmp_path: Path) -> None:
    save(tmp_path)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    reranker, ticking = CrossEncoder(path=str(tmp_path)), asyncio.create_task(tick())
    await reranker.rerank(QUERY, [passage(str(i), "word " * 300) for i in range(64)], top_k=1)
    ticking.cancel()
    assert ticks > 3


async def test_long_pairs_are_cut(tmp_path: Path) -> None:
    save(tmp_path)
    reranker = CrossEncoder(path=str(tmp_path), max_length=64)
    long = passage("long", "x" * 100_000)
    [ranked] = await reranker.rerank(QUERY, [long], top_k=1)
    assert ranked.score is not None
    assert math.isfinite(ranked.score)


def test_it_is_loaded_when_it_is_asked(tmp_path: Path) -> None:
    CrossEncoder(path=str(tmp_path))  # an empty folder, which nobody has looked into
    with pytest.raises(ConfigError, match=r"reranker\.path=.* cannot be loaded: .*"):
        asyncio.run(CrossEncoder(path=str(tmp_path)).probe())


async def test_a_model_without_a_classifier_is_refused(tmp_path: Path) -> None:
    BertModel(save(tmp_path).config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as e:
        await CrossEncoder(path=str(tmp_path)).rerank(QUERY, PASSAGES, top_k=1)
    assert str(e.value) == (
        f"reranker.path={tmp_path} has no trained classifier: classifier.bias, classifier.weight would be random; give "
        "a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L6-v2"
    )


async def test_three_labels_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with pytest.raises(ConfigError, match="tells 3 labels apart; 1 or 2 are allowed, and more if one is named"):
        await CrossEncoder(path=str(tmp_path)).probe()


async def test_what_the_model_raises_is_a_retrievers_error(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=tiny.VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config.num_labels = 1
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)  # it cannot tell padding from text
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RetrieverError, match="reranker model: ValueError: "):
        await CrossEncoder(path=str(tmp_path)).rerank(QUERY, PASSAGES, top_k=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "no/such/model"}, "reranker.path=no/such/model: no such folder, and no model of that name"),
        ({"path": ".", "dtype": "float33"}, "dtype=float33"),
        ({"path": ".", "batch_size": 0}, "batch_size=0"),
        ({"path": ".", "max_length": 2}, "max_length=2"),
        ({"path": ".", "hypothesis": "It is so."}, "reranker.hypothesis='It is so.' has no {query}; put it where"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        build_node("reranker", {"name": "cross_encoder", **settings}, thesaurus=None)
    assert message in str(e.value)


def test_equal_texts_have_equal_scores_whatever_they_are_padded_to_and_keep_their_order(tmp_path: Path) -> None:
    save(tmp_path)
    texts = {str(i): f"the same {i % 8}" for i in range(48)} | {f"long {n}": f"w{n} " * (9 + 6 * n) for n in range(9)}
    asked = [Passage(id=id, text=text) for id, text in texts.items()]
    ranked = asyncio.run(CrossEncoder(path=str(tmp_path), batch_size=3).rerank(QUERY, asked, top_k=99))
    scores = {text: {p.score for p in ranked if p.text == text} for text in texts.values()}
    assert {text: len(given) for text, given in scores.items()} == dict.fromkeys(scores, 1)
    same = [p.id for p in ranked if p.text == "the same 0"]
    assert same == ["0", "8", "16", "24", "32", "40"]
