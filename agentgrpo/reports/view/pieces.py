"""Maps each token of a recorded text to the characters that it spells, for colours by token."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentgrpo.records.run_dir import RunDir

FILE = "tokenizer.json"
_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_DIRECT = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level tokenizers write as the character with the same number; the others are written as characters
from 256 on."""


def _byte_letters() -> dict[str, int]:
    others = (b for b in range(256) if b not in _DIRECT)
    return {chr(b): b for b in _DIRECT} | {chr(256 + i): b for i, b in enumerate(others)}


class TokenTexts:
    """Texts of tokens, for byte-level tokenizers and for tokenizers that write spaces as U+2581 and rare characters as
    bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        self._letters = _byte_letters() if decoder is not None and b'"ByteLevel"' in decoder.__getstate__() else {}
        self._texts: dict[int, str | None] = {}
        """Text of each token met so far; None if it begins or ends within a character."""

    def vocabulary(self) -> dict[str, int]:
        """Every token and its id."""
        return self._tokenizer.get_vocab()

    def of(self, token_ids: Sequence[int], text: str) -> list[int] | None:
        """The number of UTF-16 code units of `text` that each token spells; they add up to its length. A character of
        several tokens counts for the last of them. None if the tokens do not spell `text`."""
        known = self._texts
        try:
            spelled = [known[i] for i in token_ids]
        except KeyError:
            self._learn(token_ids)
            spelled = [known[i] for i in token_ids]
        parts = self._by_bytes(token_ids) if None in spelled else [part or "" for part in spelled]
        whole = "".join(parts)
        if whole != text:
            if whole != f" {text}" or not parts[0].startswith(" "):
                return None
            parts[0] = parts[0][1:]  # some tokenizers prepend a space to the text
        return [len(part) for part in parts] if text.isascii() else [_units(part) for part in parts]

    def _learn(self, token_ids: Sequence[int]) -> None:
        for i in set(token_ids) - self._texts.keys():
            try:
                self._texts[i] = self._bytes(i).decode()
            except UnicodeDecodeError:
                self._texts[i] = None

    def _by_bytes(self, token_ids: Sequence[int]) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts = [decoder.decode(self._bytes(i)) for i in token_ids]
        parts[-1] += decoder.decode(b"", final=True)
        return parts

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # a model may have more ids than its tokenizer
        if self._letters:
            spelled = [self._letters.get(letter) for letter in token]
            return token.encode() if None in spelled else bytes(b for b in spelled if b is not None)
        byte = _ONE_BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def pieces_of(run: RunDir, config: Mapping[str, Any]) -> TokenTexts | None:
    """Use the tokenizer of the newest checkpoint that has one, or else that of model.path; None if neither exists."""
    folders = [*reversed(run.checkpoints().values())]
    file = next((path for folder in folders if (path := folder / FILE).is_file()), None) or _of_model(config)
    if file is None:
        return None
    try:
        return TokenTexts(Tokenizer.from_file(str(file)))
    except Exception as e:  # the library raises nothing narrower
        raise OSError(f"{file}: {next(iter(str(e).splitlines()), type(e).__name__)}") from e


def _of_model(config: Mapping[str, Any]) -> Path | None:
    """The tokenizer of model.path: a folder, or a hub name that is in the cache."""
    model = config.get("model")
    path = model.get("path") if isinstance(model, Mapping) else None
    if not isinstance(path, str) or not path:
        return None
    if (file := Path(path).expanduser() / FILE).is_file():
        return file
    from huggingface_hub import try_to_load_from_cache  # takes half a second, and is needed only for a hub name
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, FILE, revision=model.get("revision") if model else None)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
