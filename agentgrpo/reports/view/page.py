"""The page: markup, style and script of `assets`, and blocks of data. One file, no library, nothing from elsewhere.

Nothing of a run is markup: it lies deflated in base64 in script elements of a type that no browser runs, and the
policy of the page admits exactly our script and our style, by their hashes.
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
"""In the order in which they become one script: what is used while they are read comes before its users."""
_LEVEL = 6
_PLACES = ("csp", "source", "style", "blocks", "script")


class HtmlPage(NamedTuple):
    """Around the blocks."""

    head: bytes
    tail: bytes
    policy: str
    """Content-Security-Policy."""


def page_of(
    source: Literal["embedded", "served"], assets: Path = ASSETS, scripts: tuple[str, ...] = SCRIPTS
) -> HtmlPage:
    """embedded: the blocks lie in the page; served: it asks for them where it came from. Raises ValueError for assets
    that would end an element early."""
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
    """A block in the page: JSON, deflated without a header (RFC 1951), in base64."""
    squeezer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = base64.b64encode(squeezer.compress(block) + squeezer.flush())
    start = f'<script type="application/octet-stream" id="b-{name}" data-bytes="{len(block)}">'
    return b"".join((start.encode(), packed, b"</script>\n"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")  # line ends become what a browser makes of them
