"""Indexes of corpora that do not fit into memory: building, storage, and vector search."""
