"""Hostile texts in the page of `agentgrpo view`, in a real browser. make test-browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reports.view import hostile, pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

FOLDS = "document.querySelectorAll('details').forEach(d => { d.open = true })"
TURN = "new Promise(done => setTimeout(done, 20))"
"""Folds are filled when the browser says that they were opened."""
SHAPE = """() => [...document.querySelectorAll('*')].filter(e => e.tagName !== 'SCRIPT' || !e.id)
  .map(e => e.tagName + ' ' + e.getAttributeNames().sort().join(' ') + ' ' + e.childElementCount)"""
HARMFUL = """() => {
  const loads = ['src', 'srcdoc', 'srcset', 'action', 'formaction', 'xlink:href', 'data', 'poster'];
  const numbers = /^(--[a-z]+: ?-?[0-9.e+-]+;? ?)*$/;
  return [...document.querySelectorAll('body *')].flatMap(e => [...e.attributes].map(a => [a.name, a.value]))
    .filter(([name, value]) => name.startsWith('on') || loads.includes(name)
      || (name === 'href' && !value.startsWith('#')) || (name === 'style' && !numbers.test(value)));
}"""
VIEWS = (
    "#overview?find=a",
    "#episodes",
    "#settings",
    "#episode/0",
    "#episode/8",
    "#episode/8?tab=talk",
    "#group/0",
    "#group/8",
)
"""Odd groups are memory episodes."""


def shapes(browser: Browser, file: Path) -> tuple[list[list[str]], str]:
    """The elements of every view, all folds open, and all text that was seen; nothing may have run."""
    from tests.reports.view.browsing import NARROW, WIDE, opened

    found, seen = [], ""
    for size, views in ((WIDE, [*VIEWS, *(f"#episode/{i}" for i in range(1, 64))]), (NARROW, VIEWS)):
        with opened(browser, file, size=size) as log:
            for view in views:
                log.go(view)
                log.js(FOLDS)
                log.js(TURN)
                log.js(FOLDS)
                log.js(TURN)
                found.append(log.js(SHAPE))
                seen += log.page.text_content("main") + log.page.text_content("#top")
                assert log.js(HARMFUL) == []
            assert log.js(
                "[window.pwned, document.querySelectorAll('iframe, object, embed, img, link, base').length]"
            ) == [None, 0]
            assert log.errors == []
            assert {url.split("#")[0] for url in log.requests} == {file.resolve().as_uri()}
    return found, seen


def test_five_hundred_hostile_texts_are_only_text(browser: Browser, tmp_path: Path) -> None:
    texts = hostile.strings()
    assert len(set(texts)) == 500
    tame = hostile.harmless(texts)
    assert len(set(tame)) > 490
    found = {}
    for name, strings in (("hostile", texts), ("harmless", tame)):
        file = pages.write_page(tmp_path / f"{name}.html", 64, text=pages.in_turn(strings), runs=("one", "two"))
        found[name] = shapes(browser, file)
    for place, (ours, plain) in enumerate(zip(found["hostile"][0], found["harmless"][0], strict=True)):
        assert len(ours) == len(plain), place
        assert ours == plain
    from tests.reports.view.browsing import opened

    with opened(browser, tmp_path / "hostile.html") as log:
        unseen = [t for t in texts if log.js("t => visible(t)", t) not in found["hostile"][1]]
    # All were there to be read.
    assert unseen == []


def test_the_check_of_hostile_texts_can_fail(browser: Browser, small: Path) -> None:
    from tests.reports.view.browsing import opened

    with opened(browser, small) as log:
        before = log.js(SHAPE)
        log.js(
            "document.getElementById('main').insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned=1\">')"
        )
        log.page.wait_for_timeout(200)
        assert log.js(SHAPE) != before
        assert log.js(HARMFUL) != []
        # The page's policy stops the handler even so, and says it.
        assert log.js("window.pwned") is None
        assert any("Content Security Policy" in error for error in log.errors)
