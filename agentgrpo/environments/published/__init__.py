"""Adapters from published environments to environments.base. Only files named *_worker.py import the packages, in
separate processes (aside.py)."""
