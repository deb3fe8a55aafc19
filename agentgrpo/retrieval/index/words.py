"""The word index of an index folder: Tantivy's files in words/."""

from __future__ import annotations

from pathlib import Path

import tantivy

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import ConfigError
from agentgrpo.retrieval.base import Progress
from agentgrpo.retrieval.bm25 import Bm25Backend, document, open_index
from agentgrpo.retrieval.index.manifest import as_bytes, read_json
from agentgrpo.retrieval.index.passages import PassageFile

WORDS = "words"
_STEMMER = "stemmer.json"
"""The file in words/ that records the stemmer."""
_COMMIT_EVERY = 65536
"""Passages per commit, the most that a crash can lose."""


def build_words(folder: Path, passages: PassageFile, stemmer: str | None, progress: Progress) -> None:
    """Build the word index; continue after the passages that were committed."""
    path = folder / WORDS
    path.mkdir(exist_ok=True)
    write_atomic(path / _STEMMER, as_bytes({"stemmer": stemmer}))
    index = open_index(stemmer, str(path))
    done = index.searcher().num_docs
    if done == len(passages):
        return
    writer = index.writer(num_threads=1)
    while done < len(passages):
        end = min(done + _COMMIT_EVERY, len(passages))
        for position in range(done, end):
            writer.add_document(document(position, passages[position]))
        writer.commit()
        done = end
        progress("words", done, len(passages))
    writer.wait_merging_threads()


def open_words(folder: Path, passages: PassageFile, stemmer: str | None) -> Bm25Backend:
    """Raises ConfigError if the word index is missing or incomplete, or was built with another stemmer."""
    path = folder / WORDS
    if not path.is_dir() or not tantivy.Index.exists(str(path)):
        raise ConfigError(
            f"{folder} has no word index, which retriever.mode=fused needs; build it again with retriever.mode=fused, "
            "or search with retriever.mode=dense"
        )
    if (built := read_json(path / _STEMMER).get("stemmer")) != stemmer:
        raise ConfigError(
            f"{path} was built with stemmer {built}, and retriever.stemmer is {stemmer}; give retriever.stemmer="
            f"{'null' if built is None else built}, or build the index again"
        )
    index = open_index(stemmer, str(path))
    if (found := index.searcher().num_docs) != len(passages):
        raise ConfigError(f"{path} holds {found} of {len(passages)} passages; build it again: agentgrpo index")
    return Bm25Backend(passages, stemmer=stemmer, index=index)
