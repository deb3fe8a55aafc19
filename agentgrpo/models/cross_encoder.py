"""A cross-encoder on this machine as a reranker: it reads query and passage together. Entailment models count too."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from agentgrpo.core.errors import ConfigError, RetrieverError, boundary
from agentgrpo.core.types import Passage
from agentgrpo.models.loading import local_folder
from agentgrpo.retrieval.corpus import searchable_text
from agentgrpo.training.remote_code import loaded


class CrossEncoder:
    """Scores a passage by a sequence classifier of transformers, such as BAAI/bge-reranker-v2-m3 or
    cross-encoder/ms-marco-MiniLM-L6-v2 (Nogueira & Cho 2019, arXiv 1901.04085):

        score = sigmoid(logit)            for a model with one label
              = softmax(logits)[1]        for a model with two labels, of which the second says "relevant"
              = softmax(logits)[e]        for a model with a label "entailment" at index e (natural language inference)

    The score is in [0, 1], to 6 significant digits. An entailment model is asked whether the passage, as the premise,
    entails the `hypothesis` with the query in it (Yin et al. 2019, arXiv 1909.00161); it is recognised by the names of
    its labels in config.json (id2label).

    Batches hold passages of one query, longest first, so that other queries change no score. The model is loaded at the
    first query and stays in memory; it is never trained. Passages with equal scores keep their order."""

    def __init__(
        self,
        *,
        path: str,
        max_length: int = 512,
        batch_size: int = 32,
        device: str = "cpu",
        dtype: str = "float32",
        hypothesis: str = "This answers the question: {query}",
    ) -> None:
        """path: a folder as transformers writes it, or the name of a model in its cache. max_length: tokens of query
        and passage; the longer of the two is cut. batch_size: passages at a time. hypothesis: the hypothesis for an
        entailment model, in which {query} stands for the query; other models do not use it."""
        if max_length < 8 or batch_size < 1 or not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ConfigError(
                f"reranker: max_length={max_length}, batch_size={batch_size}, dtype={dtype}; 8 or more, 1 or more and "
                "a type such as float32 or bfloat16 are allowed"
            )
        if "{query}" not in hypothesis:
            raise ConfigError(f"reranker.hypothesis={hypothesis!r} has no {{query}}; put it where the query belongs")
        self._folder, self._hypothesis = local_folder(path), hypothesis
        if not self._folder.is_dir():
            raise ConfigError(
                f"reranker.path={path}: no such folder, and no model of that name in the cache; download it: "
                f"hf download {path}"
            )
        self._max_length, self._batch_size, self._device, self._dtype = max_length, batch_size, device, dtype
        self._lock = threading.Lock()

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        """The top_k passages with their scores, best first. Raises RetrieverError; ConfigError for a folder without a
        cross-encoder."""
        if not passages:
            return []
        scores = await asyncio.to_thread(self._scores, query, [searchable_text(p) for p in passages])
        scored = [dataclasses.replace(p, score=score) for p, score in zip(passages, scores, strict=True)]
        return sorted(scored, key=lambda p: -(p.score or 0.0))[:top_k]

    async def probe(self) -> None:
        """Load the model. Raises ConfigError."""
        await asyncio.to_thread(self._load)

    async def close(self) -> None:
        """Do nothing: memory is freed with the object."""

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        with loaded(self._folder, "reranker.path"):
            tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False, local_files_only=True)
            model, found = AutoModelForSequenceClassification.from_pretrained(
                self._folder,
                trust_remote_code=False,
                local_files_only=True,
                dtype=getattr(torch, self._dtype),
                output_loading_info=True,
            )
        if missing := sorted(found["missing_keys"]):
            raise ConfigError(
                f"reranker.path={self._folder} has no trained classifier: {', '.join(missing[:3])} would be random; "
                "give a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        if model.config.num_labels not in (1, 2) and entailment_label(model.config) is None:
            raise ConfigError(
                f"reranker.path={self._folder} tells {model.config.num_labels} labels apart; 1 or 2 are allowed, and "
                'more if one is named "entailment" (id2label in config.json)'
            )
        return tokenizer, model.to(self._device).eval().requires_grad_(False)

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            return self._parts

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        with self._lock, boundary(RetrieverError, "reranker model"), torch.inference_mode():
            tokenizer, model = self._parts
            label = entailment_label(model.config)
            first, second = [query] * len(texts), list(texts)
            if label is not None:  # the premise goes first
                first, second = second, [self._hypothesis.replace("{query}", query)] * len(texts)
            pairs = tokenizer(first, second, truncation=True, max_length=self._max_length)
            order = sorted(range(len(texts)), key=lambda i: -len(pairs["input_ids"][i]))
            scores = [0.0] * len(texts)
            for start in range(0, len(order), self._batch_size):
                chosen = order[start : start + self._batch_size]
                rows = {key: [values[i] for i in chosen] for key, values in pairs.items()}
                batch = tokenizer.pad(rows, return_tensors="pt").to(self._device)
                for i, score in zip(chosen, _relevance(model(**batch).logits, label), strict=True):
                    scores[i] = float(f"{score:.6g}")
            return scores


def entailment_label(config: Any) -> int | None:
    """The index of a classifier's label "entailment"; None if the configuration lacks it, or has only one label."""
    places = [int(place) for place, name in (config.id2label or {}).items() if str(name).lower() == "entailment"]
    return places[0] if places and config.num_labels > 1 else None


def _relevance(logits: torch.Tensor, label: int | None) -> list[float]:
    """Logits [rows, labels] to scores [rows], in double precision: in single, the sigmoid of a large logit is 1."""
    wide = logits.double()
    relevance = wide[:, 0].sigmoid() if wide.shape[1] == 1 else wide.softmax(-1)[:, 1 if label is None else label]
    values: list[float] = relevance.tolist()
    return values
