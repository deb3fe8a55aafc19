"""The page of `agentgrpo view` in a real browser, from disk. make test-browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.reports.view import pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

SLACK = 10
"""Machines differ, and this one may be busy: what is promised is printed, ten times as much fails."""
SAMPLED = """[...document.querySelectorAll('.message.sampled .tokens')]
  .map(box => [...box.children].map(span => [span.textContent, span.className]))"""
COUNTS = """Object.fromEntries([...document.querySelectorAll('.option')]
  .map(option => [option.children[1].textContent, option.children[2].textContent]))"""


@pytest.fixture
def at(browser: Browser, small: Path) -> Iterator[Any]:
    """The page of 2,000 episodes; after the test nothing may have been said on the console nor asked for."""
    from tests.reports.view.browsing import opened

    with opened(browser, small) as log:
        yield log
        assert log.errors == []
        assert {url.split("#")[0] for url in log.requests} == {small.resolve().as_uri()}


def rows_shown(log: Any) -> list[str]:
    """Their tasks, of those that exist as elements."""
    rows = "[...document.querySelectorAll('.line')].sort((a, b) => a.shown - b.shown)"
    return [str(text) for text in log.js(f"{rows}.map(row => row.children[1].textContent)")]


@pytest.mark.parametrize("episodes, seconds", [(2_000, 2.0), (100_000, 5.0)])
@pytest.mark.parametrize("view", ["#overview", "#episodes"])
def test_a_page_opens_from_disk(
    episodes: int, seconds: float, view: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory, small: Path
) -> None:
    from tests.reports.view.browsing import opened

    file = small if episodes == 2000 else large(tmp_path_factory)
    with opened(browser, file, view) as log:
        clock = log.js("window.clock")
        size, ready = file.stat().st_size / 1e6, clock["ready"] / 1000
        print(f"\n{episodes:,} episodes, {size:.1f} MB, {view}: ready after {ready:.2f} s")
        assert log.errors == []
        assert [url.split("#")[0] for url in log.requests] == [file.resolve().as_uri()]
        assert log.js("overview.num_episodes") == episodes
        assert clock["ready"] < SLACK * seconds * 1000


_large: list[Path] = []


def large(factory: pytest.TempPathFactory) -> Path:
    if not _large:
        _large.append(pages.write_page(factory.mktemp("large") / "view.html", 100_000))
    return _large[0]


def test_a_hundred_thousand_rows_are_filtered_at_once(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.reports.view.browsing import opened

    filter_ = "{task: 'task-1', facets: {kind: ['born', 'hq'], exit: ['answered']}, ranges: {reward: [0.1, 0.9]}}"
    script = f"""async () => {{
      const columns = await indexed(), times = [];
      let found = 0;
      for (let i = 0; i < 5; i++) {{
        const start = performance.now();
        found = select(columns, sift(columns, {filter_}).mask, '').length;
        times.push(performance.now() - start);
      }}
      return [found, times.sort((a, b) => a - b)[2]];
    }}"""
    with opened(browser, large(tmp_path_factory), "#episodes") as log:
        found, milliseconds = log.js(script)
        assert 0 < found < 100_000
        print(f"\n100,000 rows filtered in {milliseconds:.1f} ms")
        assert milliseconds < SLACK * 100
        log.page.keyboard.press("End")
        log.page.wait_for_function("() => list.at === 99999")
        assert len(rows_shown(log)) < 200


def test_a_filter_leaves_what_it_says(at: Any) -> None:
    at.go("#episodes")
    log, rows = at, pages.rows_of(2000)
    expected = [r["number"] for r in rows if r["group"] % 5 == 3 and r["correctness"] == 1.0]
    log.page.check(".option:has-text('hq') input")
    log.page.click("button[data-value='1..']")
    assert log.text(".said").startswith(f"{len(expected):,} of 2,000 episodes")
    assert log.js("[...rowsOf(list.columns).found]") == expected
    log.page.fill("#task", "no such task")
    assert log.text(".said").startswith("0 of 2,000 episodes")
    assert rows_shown(log) == []
    log.page.click("text=Clear")
    assert log.text(".said").startswith("2,000 episodes")
    log.go("#episodes?step=3..5&reward=0.2..0.85")
    files, found = log.js("overview.files"), log.js("[...rowsOf(list.columns).found]")
    steps = [file["step"] for file in files for _ in range(file["count"])]
    inside = [r["number"] for r in rows if steps[r["number"]] in (3, 4, 5) and 0.2 <= r["reward"] <= 0.85]
    assert found == inside
    assert 0 < len(inside) < 120


def test_facets_count_what_each_value_would_leave(at: Any) -> None:
    at.go("#episodes?kind=hq")
    counts = at.js(COUNTS)
    assert {kind: counts[kind] for kind in pages.KINDS} == dict.fromkeys(pages.KINDS, "400")
    assert (
        int(counts["answered"])
        + int(counts["no action" if "no action" in counts else "no_action"])
        + int(counts["max_turns"])
        == 400
    )


def test_columns_sort_both_ways_and_back(at: Any) -> None:
    at.go("#episodes")
    reward = "[...rowsOf(list.columns).found].map(i => list.columns.reward[i])"
    at.page.click(".head .c-reward button")
    down = at.js(reward)
    assert down == sorted(down, reverse=True)
    assert at.page.get_attribute(".head .c-reward", "aria-sort") == "descending"
    at.page.click(".head .c-reward button")
    assert at.js(reward) == sorted(down)
    at.page.click(".head .c-reward button")
    assert at.js("[...rowsOf(list.columns).found]") == list(range(2000))


def test_an_address_opens_the_same_view(at: Any, browser: Browser, small: Path) -> None:
    from tests.reports.view.browsing import opened

    at.go("#episodes")
    at.page.check(".option:has-text('born') input")
    at.page.fill("input[aria-label='step, least']", "3")
    at.page.fill("input[aria-label='reward, most']", "0.85")
    at.page.click(".head .c-tokens button")
    address, found = at.hash(), at.js("[...rowsOf(list.columns).found]")
    assert address == "#episodes?kind=born&step=3..&reward=..0.85&sort=-tokens"
    with opened(browser, small, address) as again:
        assert again.js("[...rowsOf(list.columns).found]") == found
        assert again.hash() == address
        again.page.keyboard.press("j")
        again.page.keyboard.press("Enter")
        again.page.wait_for_selector("article.episode")
        assert again.hash().startswith(f"#episode/{found[1]}?kind=born&step=3..&reward=..0.85&sort=-tokens")
        assert f"2 of {len(found)}" in again.text(".episodehead")


def test_the_keyboard_leads_from_the_list_to_a_group_and_back(at: Any) -> None:
    at.go("#episodes")
    keys = at.page.keyboard
    for _ in range(3):
        keys.press("j")
    keys.press("k")
    assert at.page.inner_text(".line[aria-selected=true] .c-sample") == "2"
    keys.press("Enter")
    at.page.wait_for_selector("article.episode")
    assert at.hash().startswith("#episode/2")
    keys.press("j")
    at.page.wait_for_function("() => location.hash.startsWith('#episode/3')")
    at.page.wait_for_selector("code:text('task-0/3')")
    keys.press("g")
    at.page.wait_for_selector("article.group")
    keys.press("Escape")
    at.page.wait_for_selector("article.episode")
    keys.press("Escape")
    at.page.wait_for_selector(".listing")
    assert at.page.inner_text(".line[aria-selected=true] .c-sample") == "3"
    keys.press("Escape")
    at.page.wait_for_selector(".overview")


def test_tokens_are_coloured_by_what_is_asked_for(at: Any) -> None:
    at.go("#episode/1?color=mask")
    episode = at.js("episodeOf(1)")
    sampled = [m for m in episode["messages"] if m["sampled"]]
    shown = at.js(SAMPLED)
    assert ["".join(text for text, _ in message) for message in shown] == [m["text"] for m in sampled]
    assert [len(message) for message in shown] == [len(m["pieces"]) for m in sampled]
    assert {name for message in shown for _, name in message} == {"t m1"}
    at.page.click("button[data-value=logprob]")
    levels = [min(8, round(-v / 4.605170185988092 * 8)) for m in sampled for v in m["logprobs"]]
    assert [name for message in at.js(SAMPLED) for _, name in message] == [f"t l{n}" if n else "t z" for n in levels]
    assert "color=logprob" in at.hash()
    at.page.keyboard.press("2")
    sign = "p" if episode["messages"][0]["advantage"] > 0 else "n"
    assert {name[:3] for message in at.js(SAMPLED) for _, name in message} <= {f"t {sign}", "t z"}
    at.page.keyboard.press("4")
    assert re.search("≥ 1.5", at.text(".legendline"))
    at.page.hover(".message.sampled .tokens > span:nth-child(2)")
    hint = at.text("#hint")
    assert "sampled" in hint
    assert f"{sampled[0]['ratios'][1]:.4g}".rstrip("0") in hint


def test_a_group_shows_where_its_episodes_part(at: Any) -> None:
    at.go("#group/0?to=0")
    sides = at.js("[...document.querySelectorAll('.side')].length")
    assert sides == pages.GROUP
    episodes = at.js("Promise.all([...Array(8).keys()].map(episodeOf))")
    streams = [[m["text"][i : i + 4] for m in e["messages"] for i in range(0, len(m["text"]), 4)] for e in episodes]
    for place in range(1, pages.GROUP):
        same = next(i for i, (a, b) in enumerate(zip(streams[0], streams[place], strict=False)) if a != b)
        side = f"document.querySelectorAll('.side')[{place}]"
        marked = at.js(f"[...{side}.querySelectorAll('.tokens > .parts')].map(span => span.textContent)")
        assert marked == [streams[place][same]]
        assert at.js(f"document.querySelectorAll('.side')[{place}].querySelectorAll('.tokens > .same').length") == same
    at.page.click(".side:nth-child(3) .pick")
    assert at.page.get_attribute(".side:nth-child(3) .pick", "aria-pressed") == "true"
    assert at.hash().endswith("to=2")


def test_all_charts_read_out_one_step(at: Any) -> None:
    at.page.focus(".plot")
    at.page.keyboard.press("Home")
    at.page.keyboard.press("ArrowRight")
    assert set(at.js("[...document.querySelectorAll('.stamp')].map(s => s.textContent)")) == {"step 1"}
    value = at.js("num(overview.runs[0].metrics.tags['reward/mean'][1])")
    assert f"train{value}" in at.text(".chart .legend").replace("\n", "")
    at.page.keyboard.press("Enter")
    at.page.wait_for_selector(".listing")
    assert at.hash() == "#episodes?source=train&step=1..1"


@pytest.mark.parametrize("width", [390, 768, 1440, 1920])
@pytest.mark.parametrize("view", ["#overview", "#episodes", "#episode/9", "#group/9", "#settings"])
def test_nothing_is_wider_than_the_screen(width: int, view: str, at: Any) -> None:
    at.page.set_viewport_size({"width": width, "height": 900})
    at.go(view if view != "#overview" else "#overview?smooth=5")
    assert at.js("document.documentElement.scrollWidth") <= width


def test_what_cannot_be_seen_is_shown_as_escapes(at: Any) -> None:
    seen = at.js(r"visible('a\u202eb\u0000c\ud800d\u200be\u{e0041}f\n\tg\u200dh')")
    assert seen == "a\\u202eb\\u0000c\\ud800d\\u200be\\u{e0041}f\n\tg\u200dh"
