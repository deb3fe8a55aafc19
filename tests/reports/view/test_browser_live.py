"""The page of a run under way, from `agentgrpo view --serve`, in a real browser. make test-browser."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentgrpo.reports.view.page import page_of
from agentgrpo.reports.view.serving import PageServer
from agentgrpo.reports.view.snapshot import Snapshot
from tests.reports.view import made

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_a_page_follows_its_run(browser: Browser, tmp_path: Path) -> None:
    from tests.reports.view.browsing import opened_at

    run = made.make_run(tmp_path / "x")
    metrics = run / "metrics.jsonl"
    with PageServer(Snapshot(made.opened(run)), page_of("served")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with opened_at(browser, server.url) as log:
                assert log.text(".tile:first-child strong") == "2"
                assert log.text(".tile:last-child strong") == "3"
                torn = metrics.read_text()
                metrics.write_text(torn[: torn.rindex("\n") + 1] + '{"step":2,"correctness":1.0}\n')
                made.record(run, replace(made.ANSWERED, tool_records=()), name="train-000003")
                log.page.wait_for_function(
                    "() => document.querySelector('.tile strong').textContent === '3'", timeout=20_000
                )
                assert log.text(".tile:last-child strong") == "4"
                log.go("#episodes")
                assert log.text(".said").startswith("4 episodes")
                log.go("#episode/0")
                assert "ab</search>" in log.text(".message.sampled .tokens")
                assert log.errors == []
                assert {url.split("/")[2] for url in log.requests} == {server.url.split("/")[2]}
                log.page.route("**/block/*", lambda route: route.abort())
                log.page.wait_for_function("() => document.querySelector('.live').textContent === 'the server is gone'")
        finally:
            server.shutdown()
            thread.join()
