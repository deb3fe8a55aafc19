"""A page in a real browser, with all that it says, asks for and changes written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 390, "height": 844}
CLOCK = """
window.clock = {};
new MutationObserver(() => {
  for (const name of ['ready', 'indexed']) {
    if (document.documentElement?.hasAttribute('data-' + name)) window.clock[name] ??= performance.now();
  }
}).observe(document, {attributes: true, childList: true, subtree: true});
"""


@dataclass
class Opened:
    """A page and its log."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Of the console and of scripts; dialogs and violations of the policy too."""
    requests: list[str] = field(default_factory=list)

    def go(self, hash_: str) -> None:
        """The view of an address, drawn."""
        before = self.page.get_attribute("html", "data-drawn")
        self.page.evaluate("hash => { location.hash = hash }", hash_)
        self.page.wait_for_function(
            "before => document.documentElement.getAttribute('data-drawn') !== before", arg=before
        )

    def text(self, selector: str = "main") -> str:
        return self.page.inner_text(selector)

    def hash(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.page.evaluate(script, *arguments)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's; CHROMIUM names another."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("there is no chromium; install it (apt-get install chromium) or name one in CHROMIUM")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, file: Path, hash_: str = "", *, size: Any = None, scheme: Any = "light"
) -> Iterator[Opened]:
    """The page from disk, its view drawn and its index read."""
    with opened_at(browser, f"{file.resolve().as_uri()}{hash_}", size=size, scheme=scheme) as log:
        yield log


@contextmanager
def opened_at(browser: Browser, url: str, *, size: Any = None, scheme: Any = "light") -> Iterator[Opened]:
    context = browser.new_context(viewport=size or WIDE, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(CLOCK)
    log = Opened(page)
    page.on("console", lambda m: log.errors.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: log.errors.append(f"pageerror: {e}"))
    page.on("dialog", lambda d: (log.errors.append(f"dialog: {d.message}"), d.dismiss()))
    page.on("popup", lambda p: log.errors.append(f"popup: {p.url}"))
    page.on("request", lambda r: log.requests.append(r.url))
    page.goto(url)
    page.wait_for_selector("html[data-ready][data-indexed]", timeout=120_000)
    try:
        yield log
    finally:
        context.close()
