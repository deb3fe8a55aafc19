"""Text cut to a number of tokens."""

from __future__ import annotations

from collections.abc import Callable

MARKER = "[... output truncated ...]"


def cut(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> tuple[str, bool]:
    """`text` if it has at most max_tokens tokens, else the longest beginning (as bisection finds it) that has, with a
    line MARKER after it; and whether it was cut. Where not even the marker fits, the marker alone.

    Only the part that may be shown is ever encoded, so the cost does not grow with the text."""
    window = 4 * max_tokens
    while window < len(text) and count_tokens(text[:window]) <= max_tokens:
        window *= 2  # long tokens, such as runs of spaces
    if window >= len(text) and count_tokens(text) <= max_tokens:
        return text, False
    fits, too_long = 0, min(window, len(text)) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens(_marked(text, middle)) <= max_tokens:
            fits = middle
        else:
            too_long = middle
    return _marked(text, fits), True


def _marked(text: str, length: int) -> str:
    return f"{text[:length]}\n{MARKER}" if length else MARKER
