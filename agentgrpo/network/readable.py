"""What a person would read of a web page. Linear in its length, whatever it says: a page is a stranger's text."""

from __future__ import annotations

import html
import re

_MARKUP = re.compile(r"<(?:/?[a-zA-Z]|[!?])")
# Possessive throughout (+, *): nothing that was read is read again. A quote counts only after "=", as in HTML.
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^=>]++|=\s*+(?:"[^"]*+"|'[^']*+')|=(?!\s*+["']))*+)>""")
_HUGE_REFERENCE = re.compile(r"&#[0-9]{8,}+;?", re.ASCII)
"""No character; Python refuses to read such numbers at all."""
_UNREAD = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object", "select"})
_OWN_LINE = frozenset(
    {
        *(
            "address",
            "article",
            "aside",
            "blockquote",
            "br",
            "dd",
            "div",
            "dl",
            "dt",
            "fieldset",
            "figcaption",
            "figure",
        ),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option"),
        *("p", "pre", "section", "table", "title", "tr", "ul"),
    }
)
_CELL = frozenset({"td", "th"})
_END_OF = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in _UNREAD}


def text_of(page: str) -> str:
    """The text of an HTML page, a line for each block: no scripts, styles, comments or tags. As in a browser, what is
    never closed (a tag, a comment, a script) swallows the rest."""
    parts: list[str] = []
    at = 0
    while (markup := _MARKUP.search(page, at)) is not None:
        start = markup.start()
        parts.append(_inline(page[at:start]))
        tag = _TAG.match(page, start)
        at = _skip_comment(page, start) if tag is None else _skip_tag(page, tag, parts)
    parts.append(_inline(page[at:]))
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return "\n".join(line for line in lines if line and line != "|")


def _inline(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(_HUGE_REFERENCE.sub("\ufffd", text)))


def _skip_comment(page: str, start: int) -> int:
    """Where a comment, a declaration or a tag that is never closed ends."""
    mark = "-->" if page.startswith("<!--", start) else ">"
    end = page.find(mark, start + 2) if page[start + 1] in "!?" else -1
    return len(page) if end < 0 else end + len(mark)


def _skip_tag(page: str, tag: re.Match[str], parts: list[str]) -> int:
    """Where reading goes on after `tag`; what it means for the layout is appended to parts."""
    closing, name = tag[1], tag[2].lower()
    if name in _OWN_LINE:
        parts.append("\n- " if name == "li" and not closing else "\n")
    elif name in _CELL and closing:
        parts.append(" | ")
    if name not in _UNREAD or closing or tag[3].endswith("/"):
        return tag.end()
    end = _END_OF[name].search(page, tag.end())
    return len(page) if end is None else end.start()
