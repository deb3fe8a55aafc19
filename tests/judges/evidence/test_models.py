"""Judges that ask a model: what it is shown, and what becomes of its reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Message, Passage
from agentgrpo.judges.base import QueryResults
from agentgrpo.judges.evidence.llm import LLMEvidence
from agentgrpo.judges.evidence.reranker import RerankerEvidence
from agentgrpo.judges.llm.completer import Reply
from tests.builders import passage, task
from tests.engines import tiny

SEEN = [passage("a", "Velmor was founded by Castin.", title="Velmor"), passage("b", "Castin was born in Roka.")]
RESULTS = [QueryResults(query="q", passages=tuple(SEEN))]


@dataclass
class Model:
    reply: str
    identity: str = "model"
    asked: list[str] = field(default_factory=list)
    closed: bool = False

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        self.asked.append("\n".join(m.content for m in messages))
        return Reply(text=self.reply, prompt_tokens=10, completion_tokens=5)

    async def close(self) -> None:
        self.closed = True


def says(score: float) -> str:
    return json.dumps({"score": score, "reason": "as it is"})


async def test_a_model_reads_question_and_passages_and_no_reference() -> None:
    model = Model(says(0.75))
    judge = LLMEvidence(completer=model, prompt_price=1.0)
    graded = await judge.judge_round(task("Where?", "a secret reference"), RESULTS, SEEN)
    assert (graded.sufficient, graded.score, graded.num_sufficient_queries) == (True, 0.75, 1)
    [asked] = model.asked
    assert all(
        text in asked for text in ("Where?", "Velmor was founded by Castin.", "born in Roka", "enough to answer")
    )
    assert "secret" not in asked
    assert (judge.counts()["calls"], judge.counts()["cost"]) == (1.0, 0.01)
    assert not (await LLMEvidence(completer=model, min_score=0.8).judge_round(task(), RESULTS, SEEN)).sufficient
    await judge.close()
    assert model.closed


async def test_long_passages_are_cut_and_the_newest_are_shown() -> None:
    model = Model(says(0.0))
    judge = LLMEvidence(completer=model, max_passage_chars=10, max_chars=12)
    await judge.judge_round(task(), RESULTS, SEEN)
    assert "Castin was" in model.asked[0]
    assert "Castin was born" not in model.asked[0]
    assert "founded by" not in model.asked[0]


async def test_a_reply_that_is_no_verdict_is_an_error_and_never_a_grade() -> None:
    with pytest.raises(JudgeError) as raised:
        await LLMEvidence(completer=Model("It is enough.")).judge_round(task(), RESULTS, SEEN)
    assert raised.value.kind == "bad_verdict"


@dataclass
class Scores:
    """score by text."""

    by_text: Mapping[str, float]

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        scored = [replace(p, score=self.by_text.get(p.text, 0.1)) for p in passages]
        return sorted(scored, key=lambda p: -(p.score or 0.0))[:top_k]


async def test_the_best_passage_or_all_of_them_as_one() -> None:
    together = "Velmor\nVelmor was founded by Castin.\nCastin was born in Roka."
    for text, sufficient in ((SEEN[1].text, True), (together, True), ("something else", False)):
        graded = await RerankerEvidence(reranker=Scores({text: 0.9})).judge_round(task(), RESULTS, SEEN)
        assert (graded.sufficient, graded.score) == (sufficient, 0.9 if sufficient else 0.1)
    with pytest.raises(JudgeError, match=r"gives the score 7\.5; from 0 to 1 is allowed"):
        await RerankerEvidence(reranker=Scores({SEEN[1].text: 7.5})).judge_round(task(), RESULTS, SEEN)


def test_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.evidence\.min_score=0; above 0"):
        LLMEvidence(completer=Model(""), min_score=0)
    with pytest.raises(ConfigError, match="max_passage_chars=0, max_chars=12000; 1 or more"):
        LLMEvidence(completer=Model(""), max_passage_chars=0)
    with pytest.raises(ConfigError, match=r"environment\.evidence\.reranker\.name=none; cross_encoder"):
        RerankerEvidence(reranker=None)
    with pytest.raises(ConfigError, match=r"environment\.evidence\.min_score=2; above 0"):
        RerankerEvidence(reranker=Scores({}), min_score=2)


async def test_a_model_of_entailment_judges_evidence(tmp_path: Path) -> None:
    """Of random weights; that its scores are the model's is tested with the cross-encoder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={0: "contradiction", 1: "neutral", 2: "entailment"},
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    node = {"name": "reranker", "reranker": {"name": "cross_encoder", "path": str(tmp_path)}, "min_score": 0.01}
    graded = await build_node("evidence", node, thesaurus={}).judge_round(task(), RESULTS, SEEN)
    assert graded.sufficient
    assert 0 < graded.score < 1
