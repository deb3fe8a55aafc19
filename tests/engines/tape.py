"""What a CUDA graph does, on any device: the operations of a first run, again on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers.utils import import_utils

from agentgrpo.engines.recorded import Key, RecordedDecoding

WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
"""Operations whose result the program looks at, which no graph can hold."""


class Tape(TorchDispatchMode):
    """Everything that is no tensor is what it was while it was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            raise RuntimeError(f"{func} waits for the device")
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out

    def play(self) -> None:
        made: dict[int, Tensor] = {}

        def now(x: Any) -> Any:
            return made.get(id(x), x) if isinstance(x, Tensor) else x

        for func, args, kwargs, out in self._operations:
            again = func(*tree_map(now, args), **tree_map(now, kwargs))
            made |= {id(a): b for a, b in zip(tree_leaves(out), tree_leaves(again), strict=True)}


class Tapes:
    """A recorder."""

    capturing = False

    def __init__(self) -> None:
        self.captures = 0
        self._tapes: dict[Key, Tape] = {}

    def replay(self, key: Key, run: Callable[[], None]) -> None:
        if key in self._tapes:
            self._tapes[key].play()
            return
        run()
        Tapes.capturing = True
        try:
            with Tape() as tape:
                run()
        finally:
            Tapes.capturing = False
        self._tapes[key] = tape
        self.captures += 1

    def forget(self) -> None:
        self._tapes = {}


class Watched:
    """A recorder that records every key once, and is called with the same memory every time."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.decoding: RecordedDecoding
        self.keys: list[Key] = []
        self.forgotten = 0
        self._addresses: dict[Key, tuple[int, ...]] = {}

    @property
    def captures(self) -> int:
        captures: int = self._recorder.captures
        return captures

    def replay(self, key: Key, run: Callable[[], None]) -> None:
        rows = self.decoding._rows
        addresses = tuple(t.data_ptr() for t in (rows.kv, rows.table, self.decoding._logits))
        before, known = self.captures, key in self._addresses
        assert self._addresses.setdefault(key, addresses) == addresses
        self._recorder.replay(key, run)
        assert self.captures - before == (not known)
        self.keys.append(key)

    def forget(self) -> None:
        self._addresses, self.forgotten = {}, self.forgotten + 1
        self._recorder.forget()


def record_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers looks at values, to save work, but not while a stream is captured."""
    on_cuda = import_utils.is_cuda_stream_capturing
    monkeypatch.setattr(import_utils, "is_cuda_stream_capturing", lambda: Tapes.capturing or on_cuda())
