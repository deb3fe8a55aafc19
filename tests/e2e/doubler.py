"""A user's tool whose server fails: at random, or for some episodes for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from agentgrpo.core.errors import ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.base import ToolResult, Workspace

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


class Doubler:
    """double: twice the number, which it also writes into the workspace. `faults`: the share of attempts that fail, the
    same ones in every run; `lost`: the share of episodes that never reach it."""

    exclusive = True

    def __init__(self, *, faults: float = 0.0, lost: float = 0.0) -> None:
        self.spec = ToolSpec(name="double", description="Doubles.", parameters=NUMBER)
        self._faults, self._lost = faults, lost
        self._attempts: Counter[tuple[str, int]] = Counter()

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        number = int(arguments["number"])
        self._attempts[workspace.seed, number] += 1
        if unit(workspace.seed, number, self._attempts[workspace.seed, number]) < self._faults:
            raise ToolError("the doubling server answered 500", kind="http_500")
        if unit(workspace.seed) < self._lost:
            raise ToolError("the doubling server is gone", kind="transport")
        (workspace.path / "doubled.txt").write_text(str(2 * number))
        return ToolResult.ok(str(2 * number))

    async def close(self) -> None:
        """Nothing is open."""


def unit(*key: object) -> float:
    """A number in [0, 1) that only the key determines."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest()) / 2**56
