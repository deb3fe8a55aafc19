"""Retrievers: query to ranked passages. A backend is wrapped by `batching.Batched`; `embedded.embedded` and
`http.remote` make what a configuration names. Nothing is imported here, so that FAISS, Tantivy and httpx load only
where they are used."""
