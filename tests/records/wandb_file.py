"""The offline file of Weights & Biases, read without it: a log of protocol buffers, in blocks as LevelDB's are."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_BLOCK = 32 * 1024
_FIRST = 7
"""Bytes before the first record."""
_HEAD = struct.Struct("<IHB")
"""Checksum, length and type of a piece of a record."""
_FULL, _LAST = 1, 4


def history(path: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was logged of it."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[int, dict[str, Any]] = {}
    for data in _records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found.setdefault(int(row["_step"]), {}).update(row)
    return found


def _records(log: bytes) -> list[bytes]:
    records, pieces, at = [], b"", _FIRST
    while at + _HEAD.size <= len(log):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD.size:
            at += left
            continue
        _, length, kind = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        pieces += log[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            records.append(pieces)
            pieces = b""
    return records
