"""A GGUF file of a stranger's: whatever its header says, the answer is a line, soon and without memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.models.gguf import converted
from agentgrpo.models.gguf_header import read_header
from tests.models.test_gguf import written

BIG = 2**63


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def tensor(name: bytes, shape: list[int], offset: int, kind: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file(*parts: bytes, tensors: int = 0, keys: int = 0, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


HOSTILE = {
    "nothing": (b"", "the header ends behind the end of the file"),
    "another magic": (file(magic=b"GGJT"), "it does not begin with GGUF"),
    "bytes the other way round": (file(version=3 << 24), "version 50331648; allowed are 2 and 3"),
    "2^63 tensors": (file(tensors=BIG), f"{BIG} tensors; 100000 are allowed"),
    "2^63 keys": (file(keys=BIG), f"{BIG} keys; 100000 are allowed"),
    "keys that are not there": (file(keys=99_999), "the header ends behind the end"),
    "a name of 2^63 bytes": (file(struct.pack("<Q", BIG), keys=1), f"a name of {BIG} bytes; 65535 are allowed"),
    "a text of 2^63 bytes": (file(key(b"a", 8, struct.pack("<Q", BIG)), keys=1), "the header ends behind the end"),
    "a text beyond the end": (file(key(b"a", 8, struct.pack("<Q", 50)), keys=1), "the header ends behind the end"),
    "a kind that is none": (file(key(b"a", 77, b""), keys=1), "'a' is of kind 77; allowed are 0 to 12"),
    "2^63 numbers": (file(key(b"a", 9, array(4, BIG)), keys=1), f"'a' has {BIG} values; 4000000 are allowed"),
    "numbers beyond the end": (file(key(b"a", 9, array(4, 10**6)), keys=1), "the header ends behind the end"),
    "texts beyond the end": (file(key(b"a", 9, array(8, 3, text(b"x"))), keys=1), "the header ends behind the end"),
    "lists in lists": (
        file(key(b"a", 9, array(9, 1, array(9, 1) * 1000)), keys=1),
        "items of kind 9; numbers and texts",
    ),
    "many lists": (
        file(*(key(b"%d" % i, 9, array(0, 10**6, bytes(10**6))) for i in range(5)), keys=5),
        "4000000 are allowed in all lists",
    ),
    "a key twice": (file(key(b"a", 0, b"\1") * 2, keys=2), "it has two keys 'a'"),
    "an odd alignment": (file(key(b"general.alignment", 4, struct.pack("<I", 3)), keys=1), "no power of two"),
    "no alignment": (file(key(b"general.alignment", 4, struct.pack("<I", 0)), keys=1), "no power of two"),
    "an alignment in words": (file(key(b"general.alignment", 8, text(b"32")), keys=1), "no power of two"),
    "a tensor twice": (file(tensor(b"t", [1], 0), tensor(b"t", [1], 32), bytes(99), tensors=2), "two tensors 't'"),
    "a tensor beyond the end": (file(tensor(b"t", [10**6], 0), tensors=1), "'t' ends behind the end of the file"),
    "a tensor far away": (file(tensor(b"t", [1], 2**62), tensors=1), "'t' ends behind the end of the file"),
    "tensors over each other": (
        file(tensor(b"t", [16], 0), tensor(b"u", [16], 32), bytes(999), tensors=2),
        "'t' and 'u' overlap",
    ),
    "a tensor out of line": (file(tensor(b"t", [1], 7), bytes(99), tensors=1), "its kind does not allow it"),
    "a tensor of nothing": (file(tensor(b"t", [0, 9], 0), tensors=1), "its kind does not allow it"),
    "half a block": (file(tensor(b"t", [33], 0, 2), bytes(99), tensors=1), "its kind does not allow it"),
    "a tensor of no kind": (file(tensor(b"t", [1], 0, 999), bytes(99), tensors=1), "the package gguf has no such kind"),
    "2^32 dimensions": (file(text(b"t"), struct.pack("<I", 2**32 - 1), tensors=1), "has 4294967295 dimensions"),
    "a product that wraps round": (file(tensor(b"t", [2**32, 2**32], 0), bytes(99), tensors=1), "ends behind the end"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, said = HOSTILE[case]
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ConfigError) as e:
        converted(str(tmp_path / "m.gguf"), tell=print)
    assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    tracemalloc.stop()
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_what_its_writer_makes_is_read(tmp_path: Path) -> None:
    assert read_header(written(tmp_path / "m.gguf")) > 10_000


def test_more_than_the_tensors_have_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))
    whole = written(tmp_path / "m.gguf").read_bytes()

    def set_to(name: bytes, value: int) -> str:
        at = whole.index(text(name)) + len(text(name)) + 4
        (tmp_path / "m.gguf").write_bytes(whole[:at] + struct.pack("<I", value) + whole[at + 4 :])
        with pytest.raises(ConfigError) as e:
            converted(str(tmp_path / "m.gguf"), tell=print)
        return str(e.value)

    assert "is more than 1000, which no model has" in set_to(b"llama.block_count", 10**9)
    assert "and its tensors have" in set_to(b"llama.embedding_length", 2**20)
    assert "and its tensors have" in set_to(b"llama.feed_forward_length", 2**30)


def test_whatever_byte_is_another_the_answer_is_a_number_or_a_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "m.gguf").read_bytes()
    chance, end, refused = random.Random(0), whole.index(b"blk."), 0

    def damaged(change: Callable[[bytearray], object]) -> None:
        nonlocal refused
        content = bytearray(whole)
        change(content)
        (tmp_path / "m.gguf").write_bytes(content)
        try:
            read_header(tmp_path / "m.gguf")
        except ValueError as e:
            refused += "\n" not in str(e)

    for _ in range(150):
        at = chance.randrange(end)
        damaged(lambda content, at=at: content.__setitem__(at, chance.randrange(256)))
        damaged(lambda content: content.__delitem__(slice(chance.randrange(len(content)), None)))
        damaged(lambda content, at=at: content.__setitem__(slice(at, at + 8), b"\xff" * 8))
    assert refused > 200
