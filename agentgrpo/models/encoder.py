"""`embedder: encoder`: a transformers encoder on this machine. It is here because agentgrpo.retrieval is torch-free."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from agentgrpo.core.errors import ConfigError, RetrieverError, boundary, did_you_mean
from agentgrpo.models.loading import local_folder
from agentgrpo.retrieval.embedder import Vectors
from agentgrpo.training.remote_code import loaded, plain_config

POOLINGS = ("mean", "cls")
_FILES = ("config.json", "tokenizer.json", "vocab.txt", "*.safetensors", "*.bin")
"""Files that decide the vectors."""
_digests: dict[tuple[str, int, int], bytes] = {}
"""(path, bytes, ns of its last change) -> digest of the file's content, so that a process reads gigabytes only once."""


class Encoder:
    """A text's vector is the mean over its tokens in the last layer, or the vector of the first token (cls). E5 needs
    "query: " and "passage: " before the texts, and the mean; BGE needs cls. The model is loaded at the first text."""

    def __init__(
        self,
        *,
        path: str,
        pooling: str = "mean",
        normalize: bool = True,
        query_prefix: str = "query: ",
        passage_prefix: str = "passage: ",
        max_tokens: int = 512,
        batch_size: int = 32,
        query_batch_size: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """path: a folder as transformers writes it, or the name of a model in its cache. With query_batch_size=1 the
        last bits of a query's vector do not depend on other queries. Raises ConfigError."""
        if pooling not in POOLINGS:
            raise ConfigError(
                f"embedder.pooling={pooling}; allowed are {', '.join(POOLINGS)}.{did_you_mean(pooling, POOLINGS)}"
            )
        if min(max_tokens, batch_size, query_batch_size) < 1 or not isinstance(
            getattr(torch, dtype, None), torch.dtype
        ):
            raise ConfigError(
                f"embedder: max_tokens={max_tokens}, batch_size={batch_size}, query_batch_size="
                f"{query_batch_size}, dtype={dtype}; 1 or more and a type such as float32 or bfloat16 are allowed"
            )
        self._folder = local_folder(path)
        if not (self._folder / "config.json").is_file():
            raise ConfigError(
                f"embedder.path={path}: no model folder, and no model of that name in the cache; download "
                f"it: hf download {path}"
            )
        self._pooling, self._normalize = pooling, normalize
        self._prefixes = query_prefix, passage_prefix
        self._max_tokens, self._batch_sizes = max_tokens, (query_batch_size, batch_size)
        self._device, self._dtype = device, dtype
        self._lock = threading.Lock()

    @cached_property
    def identity(self) -> str:
        """Identifies the vectors by model and settings, independent of the model's folder and the device."""
        prefixes = f"prefixes {self._prefixes[0]!r} {self._prefixes[1]!r}"
        scaled = "normalized" if self._normalize else "as it is"
        kind = type(self._config).__name__.removesuffix("Config")
        return (
            f"encoder {kind} {_content(self._folder)} {self._pooling} {scaled} {prefixes} max_tokens={self._max_tokens}"
        )

    @cached_property
    def dim(self) -> int:
        return int(self._config.hidden_size)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prefixes[1] + text for text in texts], self._batch_sizes[1])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prefixes[0] + text for text in texts], self._batch_sizes[0])

    @cached_property
    def _config(self) -> Any:
        return plain_config(self._folder)

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        options: dict[str, Any] = {"local_files_only": True}
        with loaded(self._folder, "embedder.path"):
            tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False, **options)
            dtype = getattr(torch, self._dtype)
            model = AutoModel.from_pretrained(self._folder, trust_remote_code=False, dtype=dtype, **options)
        return tokenizer, model.to(self._device).eval().requires_grad_(False)

    def _embed(self, texts: Sequence[str], batch_size: int) -> Vectors:
        found = np.zeros((len(texts), self.dim), np.float32)
        with self._lock, boundary(RetrieverError, "embedder"), torch.inference_mode():
            tokenizer, model = self._parts
            ids = tokenizer(list(texts), truncation=True, max_length=self._max_tokens)["input_ids"] if texts else []
            # Texts of similar length share a batch, because padding is wasted work.
            order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                found[rows] = self._pooled(tokenizer, model, [ids[row] for row in rows])
        return found

    def _pooled(self, tokenizer: Any, model: Any, ids: Sequence[Sequence[int]]) -> Vectors:
        padding = tokenizer.pad_token_id or 0
        longest = max(map(len, ids))
        tokens = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in ids], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=self._device)
        states = model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        if self._pooling == "cls":
            vectors = states[:, 0]
        else:
            vectors = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        pooled: Vectors = vectors.cpu().numpy()
        return pooled


def _content(folder: Path) -> str:
    """The hash of the configuration, the tokenizer and all weights, since weights may differ only in the middle, for
    instance after training one layer."""
    digest = blake2b(digest_size=8)
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern)}):
        digest.update(f"{path.name} ".encode() + _digest(path))
    return digest.hexdigest()


def _digest(path: Path) -> bytes:
    state = path.stat()
    key = str(path.resolve()), state.st_size, state.st_mtime_ns
    if key not in _digests:
        with path.open("rb") as file:
            _digests[key] = file_digest(file, blake2b).digest()
    return _digests[key]
