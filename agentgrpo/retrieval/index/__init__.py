"""Indexes of corpora that do not fit into memory: how they are built, kept on disk, and searched by vectors."""
