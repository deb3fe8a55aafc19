"""From a page's bytes to its text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from agentgrpo.network.pages import Page, PageError
from agentgrpo.network.readable import text_of

_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = re.compile(r"text/(plain|xml|markdown|csv)|application/(json|xml|[\w.-]+\+(json|xml))")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE | re.ASCII)
_KNOWN_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|latin-?1|iso-8859-\d+|windows-\d+|koi8-[ru]|gbk|gb2312|gb18030|big5|euc-(jp|kr)|"
    r"shift_jis",
    re.ASCII,
)
"""Others are read as UTF-8: some of Python's codecs are no charsets, or slow beyond reason."""


async def read(page: Page) -> str:
    """What a person would read of it: of HTML without the markup. Raises PageError (no_text) for images and PDF."""
    kind = page.content_type.partition(";")[0].strip().lower()
    if kind not in _HTML and not _PLAIN.fullmatch(kind):
        raise PageError(f"a page of type {kind[:80] or 'unknown'} has no text", kind="no_text")
    return await asyncio.to_thread(_decode, page, kind in _HTML)  # megabytes of markup take a moment


def _decode(page: Page, is_html: bool) -> str:
    declared: Sequence[str] = _CHARSET.findall(page.content_type)
    if is_html and not declared:
        declared = _CHARSET.findall(page.body[:1024].decode("latin-1"))
    known = [charset.lower() for charset in declared if _KNOWN_CHARSETS.fullmatch(charset.lower())]
    try:
        text = page.body.decode(known[0] if known else "utf-8-sig", "replace")
    except LookupError:  # such as iso-8859-99
        text = page.body.decode("utf-8-sig", "replace")
    return text_of(text) if is_html else text
