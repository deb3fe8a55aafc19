"""What tests of the page in a browser share; playwright is imported in them alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reports.view import pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from tests.reports.view.browsing import chromium

    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 2,000 episodes."""
    return pages.write_page(tmp_path_factory.mktemp("small") / "view.html", 2000)
