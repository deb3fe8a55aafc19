"""A folder in which a tiny chat model is trained in environments of OpenEnv."""

from __future__ import annotations

from tests.environments.program.conftest import desk

__all__ = ["desk"]
