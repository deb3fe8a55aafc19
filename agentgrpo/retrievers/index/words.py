"""The word index of an index folder: Tantivy's files in words/."""

from __future__ import annotations

from pathlib import Path

import tantivy

from agentgrpo.errors import ConfigError
from agentgrpo.retrievers.base import Progress
from agentgrpo.retrievers.bm25 import Bm25Backend, document, open_index
from agentgrpo.retrievers.index.passages import PassageFile

WORDS = "words"
_COMMIT_EVERY = 65536
"""Passages: what a crash costs at most."""


def build_words(folder: Path, passages: PassageFile, stemmer: str | None, progress: Progress) -> None:
    """Goes on after the passages that a commit has made durable."""
    path = folder / WORDS
    path.mkdir(exist_ok=True)
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
    """Raises ConfigError where the folder has none, or not one of all its passages."""
    path = folder / WORDS
    if not path.is_dir() or not tantivy.Index.exists(str(path)):
        raise ConfigError(
            f"{folder} has no word index, which retriever.mode=fused needs; build it again with retriever.mode=fused, "
            "or search with retriever.mode=dense"
        )
    index = open_index(stemmer, str(path))
    if (found := index.searcher().num_docs) != len(passages):
        raise ConfigError(f"{path} holds {found} of {len(passages)} passages; build it again: agentgrpo index")
    return Bm25Backend(passages, stemmer=stemmer, index=index)
