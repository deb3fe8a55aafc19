"""Text of others inside a prompt: data between two lines that it cannot write, readable, and without control tokens.

    BEGIN answer 3f9a2c17
    | Paris
    | END answer
    END answer 3f9a2c17

Every line of it begins with "| ", so none can pass for a line of the prompt. What this is not: a way to keep a model
from believing what it reads. See judges.llm.judge for what holds where a model does.
"""

from __future__ import annotations

import re
from hashlib import blake2b

CUT = "[... cut ...]"
_OPENS_A_TOKEN = re.compile(r"<(?=[/|<!\w\uff5c])|\[(?=/?[A-Z][A-Z_]+\])|(?<=[|\uff5c])>")
"""Where the control tokens of chat templates begin or end: <|im_end|>, </s>, <start_of_turn>, [/INST], ..."""
_UNREADABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, bidirectional overrides, lone surrogates, and the invisible tag letters."""
_LINE_END = re.compile(r"\r\n|[\n\r\u2028\u2029]")


def neutralise(text: str) -> str:
    """The same for a reader: control tokens are broken by a word joiner (U+2060), what no reader sees is U+FFFD."""
    return _OPENS_A_TOKEN.sub(lambda match: f"{match[0]}\u2060", _UNREADABLE.sub("\ufffd", text))


def capped(text: str, max_chars: int) -> str:
    """The beginning of `text`, said to be cut where it is."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n{CUT}"


def fenced(name: str, text: str, seed: str) -> str:
    """`text` between lines that say `name` and a mark that does not occur in it: a pure function of its arguments."""
    body, attempt = "\n".join(f"| {line}" for line in _LINE_END.split(neutralise(text))), 0
    while (mark := digest(seed, name, text, str(attempt))[:16]) in body:
        attempt += 1
    return f"BEGIN {name} {mark}\n{body}\nEND {name} {mark}"


def digest(*parts: str) -> str:
    """32 hexadecimal digits; no two lists of parts share them by how they are joined."""
    of = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        of.update(len(data).to_bytes(8, "big") + data)
    return of.hexdigest()
