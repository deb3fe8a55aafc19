"""Parts of a long page, chosen by number or by words in the part."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    text: str
    number: int
    """Number of the part, from 1."""
    of: int
    more: tuple[int, ...] = ()
    """Later parts that also have the searched words."""

    @property
    def note(self) -> str:
        """The position of the part in words; "" for a whole page."""
        if self.of == 1:
            return ""
        also = f" Also found in part {', '.join(map(str, self.more))}." if self.more else ""
        return f"Part {self.number} of {self.of}.{also}"


def open_part(text: str, *, max_chars: int, part: int = 1, find: str = "") -> PagePart | None:
    """Return part number `part`, in parts of max_chars. With `find`, return the first part from there on in which these
    words begin, in upper or lower case. None if no part is found."""
    of = max(1, -(-len(text) // max_chars))
    if part > of:
        return None
    found = [part]
    if words := find.split():
        pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
        hits = {match.start() // max_chars + 1 for match in pattern.finditer(text, (part - 1) * max_chars)}
        found = sorted(hits)
    if not found:
        return None
    first, *more = found
    return PagePart(text=text[(first - 1) * max_chars : first * max_chars], number=first, of=of, more=tuple(more))
