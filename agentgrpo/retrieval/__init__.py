"""Retrievers: query to ranked passages. `batching.Batched` wraps a backend; `embedded.embedded` and `http.remote` build
the retrievers that a configuration names. Nothing is imported here, so that FAISS, Tantivy and httpx load only where
they are used."""
