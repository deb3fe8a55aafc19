"""The file: nothing of a run is markup, and nothing runs but our script."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentgrpo.reports.view.page import ASSETS, SCRIPTS, element, page_of
from tests import builders
from tests.reports.view import made

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>\u2028\u202e\x00\ud800"
ROOT = Path(__file__).parents[3]


class Elements(HTMLParser):
    """As a browser reads it: the text of scripts and styles is none of the markup."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("script", "style") and self.cdata_elem:
            self.texts[-1] += data


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("source", ["embedded", "served"])
def test_the_policy_admits_exactly_what_is_there(source: str, tmp_path: Path) -> None:
    page = made.assets(tmp_path)(source)
    elements = Elements((page.head + page.tail).decode())
    texts = dict(zip([tag for tag, _ in elements.found], elements.texts, strict=True))
    assert texts["script"] == "let a = 1;\nlet \u00e9 = '<b>';\na + 1;\n"
    [policy] = [a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    connect = "'self'" if source == "served" else "'none'"
    assert policy == page.policy
    assert policy == (
        f"default-src 'none'; script-src {digest(texts['script'])}; style-src {digest(texts['style'])}; "
        f"img-src data:; base-uri 'none'; form-action 'none'; connect-src {connect}"
    )
    assert [a["content"] for _, a in elements.found if a.get("name") == "agentgrpo-source"] == [source]


def test_no_text_of_a_run_is_outside_of_a_block(tmp_path: Path) -> None:
    task = builders.task(HOSTILE, HOSTILE, id=HOSTILE, kind=HOSTILE)
    call = replace(made.CALL, name=HOSTILE, arguments={HOSTILE: HOSTILE}, detail=HOSTILE)
    segment = replace(builders.given(1), text=HOSTILE)
    episode = replace(
        made.ANSWERED,
        task=task,
        answer=HOSTILE,
        tool_records=(call,),
        branches=(replace(made.ANSWERED.branches[0], segments=(segment,)),),
    )
    run = tmp_path / "<b>x"
    made.record(run, episode)
    (run / "config.yaml").write_text(f"task: {{name: '{HOSTILE[:40]}'}}\n")
    blocks, damage = made.written(tmp_path, run)
    assert damage == ()
    [shown] = blocks["chunk-0"]
    assert (shown["question"], shown["messages"][0]["text"], shown["tools"][0]["arguments"]) == (
        HOSTILE,
        HOSTILE,
        {HOSTILE: HOSTILE},
    )
    assert blocks["overview"]["runs"][0]["name"] == "<b>x"
    page = (tmp_path / "page.html").read_text()
    kinds = ["meta", "meta", "meta", "style", "script", "script", "script", "script"]
    assert [tag for tag, _ in Elements(page).found] == kinds
    outside = re.sub(
        r'(<script type="application/octet-stream" id="b-[a-z0-9-]+" data-bytes="\d+">)[A-Za-z0-9+/=]*<', "", page
    )
    plain = made.assets(tmp_path / "assets")("embedded")
    assert outside.replace("/script>\n", "") == (plain.head + plain.tail).decode().replace("/script>\n", "")


def test_a_block_is_deflated_without_a_header() -> None:
    assert element("x", b'{"a":1}') == (
        b'<script type="application/octet-stream" id="b-x" data-bytes="7">q1ZKVLIyrAUA</script>\n'
    )


@pytest.mark.parametrize("script", ["'</SCRIPT >'", "// <!-- "])
def test_a_script_that_would_end_its_element_is_refused(script: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the script of the page holds <"):
        made.assets(tmp_path, script=script)("embedded")


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    make = made.assets(tmp_path)
    (tmp_path / "page.html").write_text(made.MARKUP.replace("{{blocks}}", ""))
    with pytest.raises(ValueError, match="must have each place once: csp, source, style, blocks, script"):
        make("embedded")


def test_the_page_itself() -> None:
    """Every script is used, nothing is loaded from elsewhere, and no place is left."""
    assert sorted(SCRIPTS) == sorted(path.stem for path in ASSETS.glob("*.js"))
    page = page_of("embedded")
    text = (page.head + page.tail).decode()
    assert "{{" not in text.replace("${{", "")
    assert re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text) == []
    assert [a.get("src") for tag, a in Elements(text).found if tag in ("script", "link", "img", "iframe")] == [None]


def test_the_page_is_in_the_wheel() -> None:
    """All files of the package are, of whatever kind, unless git is told to look away."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert (wheel["packages"], wheel.get("exclude"), wheel.get("only-include")) == (["agentgrpo"], None, None)
    assert ASSETS.relative_to(ROOT).parts[0] == "agentgrpo"
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert [line for line in ignored if line.strip().endswith((".html", ".js", ".css", "assets", "assets/"))] == []
