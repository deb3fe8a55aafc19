"""Long files first: what is left at the end is short, so that no core waits for the other."""

from __future__ import annotations

import pytest

FIRST = ("tests/test_readme.py", "tests/e2e/test_tool_controls.py", "tests/e2e/")
"""The first two make the two warm starts, one each, that everything after them finds in the cache."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=rank)
