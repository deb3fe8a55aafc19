"""What the questions are answered from, where a retriever does not bring its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path

from agentgrpo.errors import ConfigError
from agentgrpo.tasks.reading import read_passages, read_thesaurus
from agentgrpo.types import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    passages: Mapping[str, Sequence[Passage]]
    """By the name of their retriever: vdb, web."""
    thesaurus: Mapping[str, Sequence[str]]
    fingerprint: tuple[str, ...]


def corpora_of(corpus: str | None, web_corpus: str | None, thesaurus: str | None) -> Corpora:
    """corpus, web_corpus: lines {"id", "text", "title"?, "url"?}; thesaurus: a JSON object {query word: [words that
    documents use instead]} for the reranker. Raises DataError, and ConfigError for a web corpus alone."""
    if corpus is None and web_corpus is not None:
        raise ConfigError(f"task.web_corpus={web_corpus} without task.corpus; give both, or only task.corpus")
    passages = {name: read_passages(p) for name, p in (("vdb", corpus), ("web", web_corpus)) if p is not None}
    files = {"vdb": corpus, "web": web_corpus, "thesaurus": thesaurus}
    return Corpora(
        passages=passages,
        thesaurus=read_thesaurus(thesaurus) if thesaurus is not None else {},
        fingerprint=tuple(f"{name}={_digest(path)}" for name, path in files.items() if path is not None),
    )


def _digest(path: str) -> str:
    with Path(path).expanduser().open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
