"""The tools of episodes.py, working and faulty, and the expected end of an episode with each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from agentgrpo.core.errors import ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.base import Tool, ToolResult, Workspace
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.files import Files
from agentgrpo.tools.functions import FunctionTool
from agentgrpo.tools.python import PythonTool
from scripts.soak.functions import greet, sleep_on, trouble

DEADLINE_S = 1.5
KEEPS_PROCESSES = ("greet", "trouble")
"""Functions that return: their processes, two for each concurrent call, are kept for the next calls."""
HANGS = ("await_never", "swallowed_cancellation", "hanging_function", "hanging_program")
SHARES: Mapping[str, int] = {
    "none": 630,
    "program": 70,  # no fault either, but a sandbox is slower than the other tools
    "await_never": 40,
    "swallowed_cancellation": 20,
    "hanging_function": 30,
    "hanging_program": 10,
    "raising_function": 40,
    "crashing_function": 20,
    "tool_exception": 30,
    "server_down": 20,
    "no_result": 20,
    "huge_output": 20,
    "malformed": 20,
    "cancelled_call": 10,
    "episode_cancelled": 20,
}
"""Episodes in 1,000: in 700 every tool works, and 300 have one fault each."""
END: Mapping[str, str] = {
    **dict.fromkeys(HANGS, "answered, timeout"),
    **dict.fromkeys(("raising_function", "crashing_function"), "answered, runtime_error"),
    **dict.fromkeys(("none", "program", "huge_output"), "answered, success"),
    **dict.fromkeys(("tool_exception", "no_result", "cancelled_call"), "failed, ToolError"),
    "server_down": "failed, http_503",
    "malformed": "answered, invalid_args",
    "episode_cancelled": "cancelled",
}
"""The expected end of an episode: answered correctly, with the outcome of its last call; or failed, with the kind of
failure.
"""


def draw(*key: object) -> float:
    """A number in [0, 1); equal keys give equal numbers."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest()) / 2**56


def fate_of(number: int, seed: int) -> str:
    left = draw(seed, number) * 1000
    for fate, share in SHARES.items():
        left -= share
        if left < 0:
            return fate
    raise AssertionError("the shares add up to 1,000")


class Unreliable:
    """A tool on the event loop that fails in several ways."""

    def __init__(self) -> None:
        self.spec = ToolSpec(
            name="unreliable",
            description="Fails as it is told.",
            parameters={"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        kind = arguments["kind"]
        (workspace.path / "begun").write_text(kind)
        await asyncio.sleep(0)
        if kind == "tool_exception":
            raise RuntimeError("a bug of the tool")
        if kind == "server_down":
            raise ToolError("503", kind="http_503")
        if kind == "no_result":
            return {"text": "not what was asked for"}  # type: ignore[return-value]
        if kind == "huge_output":
            return ToolResult.ok("\ud800\x00</tool>" * 10_000)
        raise asyncio.CancelledError

    async def close(self) -> None: ...


class Awaiting:
    """Waits for ever, and ignores its first `stubborn` cancellations."""

    def __init__(self, name: str, *, stubborn: int) -> None:
        self.spec = ToolSpec(name=name, description="Awaits.", parameters={"type": "object"})
        self._stubborn = stubborn

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        for _ in range(self._stubborn):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async def close(self) -> None: ...


def tools() -> dict[str, Tool]:
    """Tools by name. Hanging tools are separate, so that callers of the other tools are unaffected."""
    working = [Calculator(), *Files().tools, FunctionTool(greet, processes=2), PythonTool()]
    troubled = [FunctionTool(trouble, processes=4), FunctionTool(sleep_on, processes=8), Unreliable()]
    hanging = [Awaiting("await_never", stubborn=0), Awaiting("swallowed_cancellation", stubborn=3)]
    return {tool.spec.name: tool for tool in (*working, *troubled, *hanging)}


def called(fate: str, number: int) -> tuple[str, Any]:
    """The name of the tool and the arguments of the call that decides how the episode ends."""
    if fate == "none":
        return "read_file", {"path": "result.txt"}
    if fate == "program":
        return "python", {"code": f"print({number} * 2)"}
    if fate == "hanging_program":
        return "python", {"code": f"import time; time.sleep({number} + 3600)"}
    if fate in ("hanging_function", "episode_cancelled"):
        return "sleep_on", {"name": str(number)}
    if fate in ("raising_function", "crashing_function"):
        return "trouble", {"kind": fate}
    if fate == "malformed":
        return "calculator", {"expression": number}
    if fate in ("await_never", "swallowed_cancellation"):
        return fate, {}
    return "unreliable", {"kind": fate}
