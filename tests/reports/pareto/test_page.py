"""The page of the report: it holds what was found, runs nothing, fetches nothing, and is not forged by a run's name."""

from __future__ import annotations

import base64
import re
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentgrpo.reports.pareto import compared
from agentgrpo.reports.pareto.page import page
from agentgrpo.reports.pareto.svg import Mark, scatter, text, ticks
from tests import builders
from tests.reports.pareto.sweep import TASKS, evaluated, priced

HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)> \"'&[red]\u202e\x1b[31m"
ALL = ((1.0, 1),) * 4


class Elements(HTMLParser):
    """Every element with its attributes' names, and all texts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()
        self.values: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag, *(name for name, _ in attrs)] += 1
        self.values += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def made(root: Path, name: str, setting: str, kind: str) -> str:
    """The page of two prices with a counterfactual, a baseline and an oracle; their texts as given."""
    ideal = {"correctness": 1.0, "cost": 0.0} | dict.fromkeys(
        ("search_rounds", "web_searches", "vdb_searches", "rerank_calls"), 0.5
    )
    tasks = [builders.task(t.question, id=t.id, kind=kind) for t in TASKS]
    for price in (0.0, 0.2, 0.4):
        config = priced(price) | {"task": {"name": setting}, "model": {setting: price > 0.3}}
        run = evaluated(root / f"{name}{price}", config, ALL, oracle=ideal, tasks=tasks, baselines={"base": ALL})
        blank = config | {"counterfactual": {"name": "blank"}}
        ckpt = run / "checkpoints" / "step-000002"
        evaluated(run / "blank", blank, ((0.0, 1),) * 4, tasks=tasks, trains=False, ckpt=ckpt)
    broken = evaluated(root / f"{name}-old", priced(0.0), ALL)
    (broken / "trajectories" / "eval-end-greedy.jsonl").write_text("{}\n")
    return page({**compared(root), "folder": setting})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("plain"), "run", "almanac", "founder")


def test_hostile_names_and_settings_change_no_element(tmp_path: Path, source: str) -> None:
    name = HOSTILE.replace("/", "").replace("\x1b", "")
    hostile = Elements(made(tmp_path / "hostile", name, HOSTILE, HOSTILE))
    plain = Elements(source)
    assert hostile.found == plain.found
    assert [v for n, v in hostile.values if n != "aria-label"] == [v for n, v in plain.values if n != "aria-label"]
    whole = "".join(hostile.texts)
    assert ("<script>alert(1)</script>" in whole, {"\x1b", "\u202e"} & {*whole}) == (True, set())


def test_nothing_runs_and_nothing_is_fetched(source: str) -> None:
    found = Elements(source)
    assert {element[0] for element in found.found} == {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "figure", "figcaption", "svg",
        "line", "text", "path", "polyline", "circle", "rect", "ul", "li", "b", "table", "tr", "th", "td",
        "span", "small",
    }  # fmt: skip
    names = {name for element in found.found for name in element[1:]}
    assert {name for name in names if name.startswith("on") or name in ("style", "src", "href", "action")} == set()
    assert re.findall(r"(?:https?:|url\(|@import)", source) == []


def test_the_policy_allows_the_pages_own_style_alone(source: str) -> None:
    [style] = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert f"\"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\"" in source


def test_it_says_what_was_found(source: str) -> None:
    whole = " ".join("".join(Elements(source).texts).split())
    for part in (
        "almanac, environment search, 4 tasks",
        "Varied: model.almanac, reward.terms.retriever_cost.web.",
        "on the front",
        "How much of it is retrieval",
        "-1.000 [-1.000, -1.000]",
        "100 %",
        "run-old: ",
        "dominated by",
    ):
        assert part in whole, part


def test_a_cell_has_the_name_of_its_column_for_narrow_screens_and_an_interval_a_line_of_its_own(source: str) -> None:
    table = source[source.index("<table>") : source.index("</table>")]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table)
    rows = [
        re.findall(r'<td[^>]* data-name="(.*?)"><span>(.*?)</span></td>', row) for row in table.split("</tr>")[1:-1]
    ]
    assert [[name for name, _ in row] for row in rows] == [heads] * len(rows)
    assert all(re.fullmatch(r"\S+ <small>\[\S+, \S+\]</small>", dict(row)["correctness"]) for row in rows[:1])


def test_equal_reports_are_equal_bytes(tmp_path: Path) -> None:
    made(tmp_path / "run", "a", "b", "c")
    assert page(compared(tmp_path / "run")) == page(compared(tmp_path / "run"))


# --- charts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.013, 0.041, [0.01, 0.02, 0.03, 0.04, 0.05]),
        (-0.3, 0.7, [-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8]),
        (97.0, 1013.0, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0]),
        (0.0, 0.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (2.0, 2.0, [1.0, 1.5, 2.0, 2.5, 3.0]),
        (0.1, 0.10000000000000002, [0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16]),
    ],
)
def test_ticks_are_round_and_hold_all(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_mark_stands_where_its_figures_are() -> None:
    """The plane is 406 wide from 58 on and 280 high from 294 down; 0 to 1 on both axes."""
    marks = [
        Mark(x=0.0, y=0.0, number="1", title="a", kind="trained"),
        Mark(x=1.0, y=1.0, number="2", title="b", kind="start", y_low=0.5, y_high=1.0),
    ]
    drawn = scatter(marks, front=[(0.0, 0.0), (1.0, 1.0)], small=[(0.5, 0.5)], x_name="x", y_name="y", title="t")
    for part in (
        '<circle class="dot trained" cx="58" cy="294" r="5.5"><title>a</title></circle>',
        '<rect class="dot start" x="459" y="9" width="10" height="10"><title>b</title></rect>',
        '<line class="bar start" x1="464" y1="154" x2="464" y2="14"/>',
        '<circle class="one" cx="261" cy="154" r="2"/>',
        '<path class="front" d="M58 294 H464 L464 14 H464"/>',
    ):
        assert part in drawn, part


def test_text_of_a_chart_is_escaped_and_on_one_line() -> None:
    assert text("a<b>&\"'\x1b\n c") == "a&lt;b&gt;&amp;&quot;&#x27; c"
