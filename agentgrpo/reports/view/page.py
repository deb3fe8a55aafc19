"""The page: markup, style and script of `assets`, and blocks of data, in one file without libraries or external
resources.

Data of a run is never markup: it is stored compressed in base64, in script elements of a type that no browser runs. The
page's Content-Security-Policy admits exactly our script and our style, by their hashes.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

from agentgrpo.records.html_page import admitted

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "dom",
    "numbers",
    "blocks",
    "state",
    "columns",
    "scale",
    "chart",
    "lines",
    "stacks",
    "intervals",
    "figures",
    "evaluation",
    "overview",
    "settings",
    "filters",
    "listing",
    "tokens",
    "calls",
    "memory",
    "facts",
    "episode",
    "group",
    "keys",
    "main",
)
"""Concatenation order of the script: definitions used at load time come before their users."""
_LEVEL = 6
_PLACES = ("csp", "source", "style", "blocks", "script")


class HtmlPage(NamedTuple):
    """The page's bytes before and after the blocks."""

    head: bytes
    tail: bytes
    policy: str
    """The Content-Security-Policy."""


def page_of(
    source: Literal["embedded", "served"], assets: Path = ASSETS, scripts: tuple[str, ...] = SCRIPTS
) -> HtmlPage:
    """embedded: the page contains the blocks; served: the page requests them from its server. Raises ValueError for
    assets that would end an element early."""
    markup, style = (_read(assets / name) for name in ("page.html", "style.css"))
    script = "\n".join(_read(assets / f"{name}.js") for name in scripts)
    for name, text, ends in (("style", style, ("</style",)), ("script", script, ("</script", "<!--"))):
        if found := next((end for end in ends if end in text.lower()), None):
            raise ValueError(f"the {name} of the page holds {found}, which would end its element")
    if [markup.count(f"{{{{{place}}}}}") for place in _PLACES] != [1] * len(_PLACES):
        raise ValueError(f"page.html must have each place once: {', '.join(_PLACES)}")
    policy = (
        f"default-src 'none'; script-src {admitted(script)}; style-src {admitted(style)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'; connect-src '{'self' if source == 'served' else 'none'}'"
    )
    head, tail = markup.split("{{blocks}}")
    head = head.replace("{{csp}}", policy).replace("{{source}}", source).replace("{{style}}", style)
    return HtmlPage(head.encode(), tail.replace("{{script}}", script).encode(), policy)


def element(name: str, block: bytes) -> bytes:
    """Embed a block in the page: JSON, deflated without a header (RFC 1951), in base64."""
    squeezer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = base64.b64encode(squeezer.compress(block) + squeezer.flush())
    start = f'<script type="application/octet-stream" id="b-{name}" data-bytes="{len(block)}">'
    return b"".join((start.encode(), packed, b"</script>\n"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")  # with line ends normalised, as browsers do
