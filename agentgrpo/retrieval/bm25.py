"""Search by words: BM25 in a Tantivy index, in memory or in a folder."""

from __future__ import annotations

from collections.abc import Sequence

import tantivy

from agentgrpo.core.errors import ConfigError, DataError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.corpus import best_passages, searchable_text, well_formed


class Bm25Backend:
    """Passages that share a word with the query, ranked by BM25 (k1 1.2, b 0.75: fixed in Tantivy). Words are runs of
    letters and digits in lower case, cut to their stem (Snowball's for the language `stemmer`; None = whole words).

    A query is a set of words joined by OR; no character is an operator. A passage without a common word is not found.
    """

    def __init__(
        self, passages: Sequence[Passage], *, stemmer: str | None = "english", index: tantivy.Index | None = None
    ) -> None:
        """index: an existing index of `passages`, opened by `open_index`; None = built in memory."""
        if not passages:
            raise DataError("a BM25 index of no passages; give at least one")
        self._passages = passages if index else tuple(passages)
        self._analyzer = analyzer(stemmer)
        self._schema = SCHEMA
        self._searcher = (index or self._write(stemmer)).searcher()

    def _write(self, stemmer: str | None) -> tantivy.Index:
        index = open_index(stemmer)
        writer = index.writer(num_threads=1)
        for position, passage in enumerate(self._passages):
            writer.add_document(document(position, passage))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        return index

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Passage] | RetrieverError]:
        return [self._search(query, top_k) for query in queries]

    def _search(self, query: str, top_k: int) -> list[Passage]:
        # Sorted, because float addition is not associative: a score must not depend on the order of the query's words.
        words = sorted(set(self._analyzer.analyze(well_formed(query))))
        terms = [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", word, "freq")) for word in words]
        asked = tantivy.Query.boolean_query(terms)

        def nearest(n: int) -> tuple[list[float], list[int]]:
            hits = self._searcher.search(asked, n, count=False).hits
            positions = self._searcher.fast_field_values("position", [address for _, address in hits])
            return [score for score, _ in hits], positions

        return best_passages(self._passages, nearest, top_k)


SCHEMA = (
    tantivy.SchemaBuilder()
    .add_text_field("text", tokenizer_name="words", index_option="freq")
    .add_unsigned_field("position", fast=True)
    .build()
)


def open_index(stemmer: str | None, path: str | None = None) -> tantivy.Index:
    """Open an index in memory, or in the existing folder `path`. Raises ConfigError for an unknown stemmer."""
    words = analyzer(stemmer)
    index = tantivy.Index(SCHEMA, path=path)
    index.register_tokenizer("words", words)
    return index


def document(position: int, passage: Passage) -> tantivy.Document:
    found = tantivy.Document()
    found.add_text("text", searchable_text(passage))
    found.add_unsigned("position", position)
    return found


def analyzer(stemmer: str | None, *, lowercase: bool = True) -> tantivy.TextAnalyzer:
    """An analyzer that splits a text into words, in order. Raises ConfigError for an unknown stemmer."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.lowercase()) if lowercase else builder
    if stemmer is not None:
        try:
            builder = builder.filter(tantivy.Filter.stemmer(stemmer))
        except ValueError as e:
            raise ConfigError(
                f"stemmer={stemmer!r}: {e}; allowed are a Snowball language such as 'english' or 'german', or null"
            ) from e
    return builder.build()
