"""Environments that others have published, as adapters over environments.base. The packages themselves are imported
only in processes of their own (aside.py), by the files that end with _worker."""
