"""The report as one HTML file that opens from disk, without scripts and without network requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentgrpo import __version__
from agentgrpo.records.html_page import admitted
from agentgrpo.reports.pareto.prices import sentence
from agentgrpo.reports.pareto.svg import ChartLine, Mark, lines, scatter, text

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5c6570;--rule:#d8dde3;--back:#fff;--card:#f6f8fa;
--trained:#1667b7;--start:#8a4b00;--baseline:#6b4fa0;--oracle:#20794a;--front:#c2410c;
--s0:#1667b7;--s1:#c2410c;--s2:#20794a;--s3:#6b4fa0;--s4:#8a6d00;--s5:#a02060}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--dim:#9aa4b0;--rule:#363d46;--back:#14171b;--card:#1c2127;
--trained:#6db1f2;--start:#e5a35b;--baseline:#b9a2ea;--oracle:#6ccb95;--front:#fb8c54;
--s0:#6db1f2;--s1:#fb8c54;--s2:#6ccb95;--s3:#b9a2ea;--s4:#dcc05a;--s5:#ee8fb8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1100px;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.5rem;margin:.2em 0}
h2{font-size:1.2rem;margin:1.6em 0 .3em;border-top:1px solid var(--rule);padding-top:.8em}
h3{font-size:1rem;margin:1.2em 0 .3em}p{margin:.4em 0}.dim{color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px;
align-items:start}
figure{margin:0;padding:10px;background:var(--card);border-radius:8px}figcaption{font-weight:600}
svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:right;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:600}td.wide,th.wide{text-align:left;min-width:9em;max-width:26em;overflow-wrap:anywhere}
td small{display:block;white-space:nowrap;color:var(--dim);font-size:12px}
@media (max-width:700px){table,tbody{display:block}tr:first-child{display:none}
tr{display:block;padding:6px 0;border-bottom:1px solid var(--rule)}
td,td.wide{display:flex;gap:1em;justify-content:space-between;max-width:none;padding:1px 0;border:0}
td span{text-align:right}td::before{content:attr(data-name);color:var(--dim);text-align:left;flex:none}
td small{display:inline}td[data-name=""]{display:block;text-align:left;font-weight:600}
td[data-name=""]::before{content:none}}
ul.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:2px 16px;margin:.5em 0}
.grid{stroke:var(--rule);stroke-width:1}.tick{font-size:13px;fill:var(--dim)}.name{font-size:14px;fill:var(--ink)}
.number{font-size:13px;font-weight:600;fill:var(--ink)}.bar{stroke-width:1.6;opacity:.75}.one{fill:var(--dim);opacity:.7}
@media (max-width:600px){.tick{font-size:15px}.name,.number{font-size:16px}}
.front{fill:none;stroke:var(--front);stroke-width:2;stroke-dasharray:6 4}.line{fill:none;stroke-width:2}
.dot.trained{fill:var(--trained)}.bar.trained{stroke:var(--trained)}.dot.start{fill:var(--start)}
.bar.start{stroke:var(--start)}.dot.baseline{fill:var(--baseline)}.bar.baseline{stroke:var(--baseline)}
.dot.oracle{fill:var(--oracle)}b.trained{color:var(--trained)}b.start{color:var(--start)}
b.baseline{color:var(--baseline)}b.oracle{color:var(--oracle)}b.s0{color:var(--s0)}b.s1{color:var(--s1)}
b.s2{color:var(--s2)}b.s3{color:var(--s3)}b.s4{color:var(--s4)}b.s5{color:var(--s5)}
"""
_SERIES = "".join(f".s{i}{{stroke:var(--s{i})}}.dot.s{i}{{fill:var(--s{i})}}\n" for i in range(6))
MARK = b"<title>agentgrpo report</title>"
"""The report's marker in its head: only a page with it may be replaced."""
_NAMED = 3
"""Maximum number of dominating points that are named; --json lists all."""
_SIGNS = {"trained": "●", "baseline": "●", "start": "■", "oracle": "◆"}
_HOW = (
    "Bars are 95 % intervals of a bootstrap over tasks; where a point joins several runs (seeds, the small dots), over "
    "runs and tasks. The dashed stair is the Pareto front: no other policy costs no more and is right as often. "
    "“Beyond noise” says that the interval of one of the two paired differences does not hold 0."
)

_WITHOUT = (
    "The same checkpoints with results that are blank, of another query (shuffled), or with answers exchanged "
    "(swapped); the change is paired by task."
)


def page(found: Mapping[str, Any]) -> str:
    """The HTML page for the result of `pareto.compared`."""
    style = _STYLE + _SERIES
    policy = f"default-src 'none'; style-src {admitted(style)}; base-uri 'none'; form-action 'none'"
    body = ["<h1>Correctness against cost</h1>", _dim(f"{found['folder']} · agentgrpo {__version__}")]
    body += [_family(family) for family in found["families"]]
    if found["skipped"]:
        body.append("<h2>Left out</h2>")
        body.append(_list(f"{row['name']}: {row['reason']}" for row in found["skipped"]))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"{MARK.decode()}\n<style>{style}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _family(family: Mapping[str, Any]) -> str:
    head = f"{family['task']}, environment {family['agent']}, {family['n']} tasks"
    varied = ", ".join(family["varied"]) or "nothing but the seed"
    parts = [f"<h2>{text(head)}</h2>", f"<p>Varied: {text(varied)}.</p>"]
    parts.append(_list(family["notes"]))
    charts = [_scatter(family, mode, points) for mode, points in family["modes"].items() if points]
    parts.append(f'<div class="charts">{"".join(charts)}</div>\n{_dim(_HOW)}')
    for mode, points in family["modes"].items():
        parts += [f"<h3>{text(mode)}</h3>", _points(family, points)] if points else []
    for sweep in family["sweeps"]:
        parts.append(_sweep(sweep))
    rows = {mode: rows for mode, rows in family["counterfactuals"].items() if rows}
    if rows:
        parts.append("<h3>How much of it is retrieval</h3>")
        parts.append(_dim(_WITHOUT))
        parts += [_counterfactuals(family, mode, found) for mode, found in rows.items()]
    return "\n".join(part for part in parts if part)


def _scatter(family: Mapping[str, Any], mode: str, points: Sequence[Mapping[str, Any]]) -> str:
    known = [(i, p) for i, p in enumerate(points, start=1) if p["cost"][0] is not None]
    if not known:
        return ""
    marks = [
        Mark(
            x=p["cost"][0],
            y=p["quality"][0],
            number=str(i),
            title=f"{p['label']}: {family['quality']} {_interval(p['quality'])}, cost {_interval(p['cost'])}",
            kind=p["kind"],
            x_low=p["cost"][1],
            x_high=p["cost"][2],
            y_low=p["quality"][1],
            y_high=p["quality"][2],
        )
        for i, p in known
    ]
    front = [(p["cost"][0], p["quality"][0]) for _, p in known if p["on_front"]]
    single = [(cost, quality) for _, p in known if len(p["members"]) > 1 for quality, cost in p["members"]]
    title = f"{family['quality']} against cost, {mode}"
    chart = scatter(
        marks,
        front=front,
        small=[(x, y) for x, y in single if x is not None] if len(single) < 400 else (),
        x_name="cost of an episode",
        y_name=family["quality"],
        title=title,
    )
    key = "".join(
        f'<li><b class="{text(p["kind"])}">{_SIGNS.get(p["kind"], "●")} {i}</b> {text(p["label"])}</li>'
        for i, p in known
    )
    return f'<figure><figcaption>{text(title)}</figcaption>\n{chart}\n<ul class="key">{key}</ul></figure>'


def _points(family: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    use = list(points[0]["use"])
    head = ["", "policy", family["quality"], "cost", "Pareto", *(name.replace("_", " ") for name in use), "runs"]
    rows = []
    numbers = {p["label"]: i for i, p in enumerate(points, start=1)}
    for i, p in enumerate(points, start=1):
        figures = [_interval(p["quality"]), _interval(p["cost"]), _standing(p, numbers)]
        used = [_interval(p["use"].get(name)) for name in use]
        rows.append([str(i), p["label"], *figures, *used, str(len(p["runs"]))])
    made = [f"{i}: {', '.join(p['runs'])}" for i, p in enumerate(points, start=1)]
    return f"{_table(head, rows, wide=(1, 4))}\n{_dim('Runs: ' + '; '.join(made))}"


def _standing(point: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """Like `standing`, with the numbers of the table in place of labels."""
    if not point["dominated_by"]:
        return standing(point)
    by = [numbers[row["label"]] for row in point["dominated_by"]]
    clear = [numbers[row["label"]] for row in point["dominated_by"] if row["beyond_noise"]]
    found = "dominated by " + ", ".join(map(str, by))
    if not clear:
        return found
    return f"{found}; beyond noise" + ("" if clear == by else f" by {', '.join(map(str, clear))}")


def standing(point: Mapping[str, Any]) -> str:
    """State that the point is on the front, or name the points that dominate it."""
    if point["on_front"]:
        return "on the front"
    by = [row["label"] + (" (beyond noise)" if row["beyond_noise"] else "") for row in point["dominated_by"]]
    more = f"; and {len(by) - _NAMED} more" if len(by) > _NAMED else ""
    return f"dominated by {'; '.join(by[:_NAMED])}{more}" if by else "–"


def _sweep(sweep: Mapping[str, Any]) -> str:
    name = f"price: {sweep['name']}" if sweep["is_price"] else sweep["name"]
    fixed = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in sweep["fixed"].items())
    parts = [f"<h3>{text('What is used, by ' + name)}</h3>", _dim(fixed) if fixed else ""]
    charts, said = [], []
    for mode, found in sweep["modes"].items():
        series = [
            ChartLine(
                name=figure.replace("_", " "),
                points=[(x, y[0], y[1], y[2]) for x, y in zip(sweep["values"], row, strict=True) if y[0] is not None],
            )
            for figure, row in found["use"].items()
            if len(row) == len(sweep["values"])
        ]
        series = [line for line in series if line.points]
        if series:
            chart = lines(series, x_name=name, y_name="per episode", title=f"use by {name}, {mode}")
            key = "".join(f'<li><b class="s{i % 6}">●</b> {text(line.name)}</li>' for i, line in enumerate(series))
            caption = f"<figcaption>{text(f'per episode, {mode}')}</figcaption>"
            charts.append(f'<figure>{caption}\n{chart}\n<ul class="key">{key}</ul></figure>')
            said += [f"{mode}: {sentence(statement, sweep)}" for statement in found["statements"]]
    return "\n".join([*parts, f'<div class="charts">{"".join(charts)}</div>', _list(said)])


def _counterfactuals(family: Mapping[str, Any], mode: str, rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["policy", "counterfactual", f"{family['quality']} as it is", "with it", "change", "lost", "tasks", "runs"]
    cells = [
        [
            row["setting"],
            row["counterfactual"],
            f"{row['with']:.3f}",
            f"{row['without']:.3f}",
            _interval(row["change"], signed=True),
            "–" if row["share"] is None else f"{row['share'] * 100:.0f} %",
            str(row["n"]),
            str(len(row["runs"])),
        ]
        for row in rows
    ]
    return f"<p>{text(mode)}</p>\n{_table(head, cells, wide=(0, 1))}"


def _interval(found: Sequence[float | None] | None, *, signed: bool = False) -> str:
    if not found or found[0] is None:
        return "–"
    form = "+.3f" if signed else ".3f"
    mean = format(found[0], form)
    return mean if found[1] is None or found[2] is None else f"{mean} [{found[1]:{form}}, {found[2]:{form}}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, wide: Sequence[int]) -> str:
    """On a narrow screen each row becomes a list, with the column's name before each cell."""
    kind = dict.fromkeys(wide, ' class="wide"')
    names = "".join(f"<th{kind.get(i, '')}>{text(name)}</th>" for i, name in enumerate(head))

    def cell(i: int, said: str) -> str:
        inside = text(said) if i in wide else _figure(said)
        return f'<td{kind.get(i, "")} data-name="{text(head[i])}"><span>{inside}</span></td>'

    body = "\n".join(f"<tr>{''.join(map(cell, range(len(row)), row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{names}</tr>\n{body}\n</table></div>'


def _figure(said: str) -> str:
    """The figure with its interval on a separate line."""
    mean, bracket, interval = said.partition(" [")
    return text(said) if not bracket else f"{text(mean)} <small>[{text(interval)}</small>"


def _dim(said: str) -> str:
    return f'<p class="dim">{text(said)}</p>'


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{text(item)}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""
