"""Tools that ask services outside, behind the meter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import BudgetSpent, ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome
from agentgrpo.services.asking import asking_episode
from agentgrpo.services.cassette import CassetteMiss
from agentgrpo.tools.base import ToolResult, Toolset
from agentgrpo.tools.services import ToolService, ToolsetService
from tests.services.stand_ins import meter

ENVIRONMENT: Any = None
OK = ToolResult(outcome=Outcome.SUCCESS, text="page 1", num_results=2, result_ids=("a",), detail="http://a/")


class Scripted:
    """Gives `results`, one a call, the last for ever; an exception is raised."""

    at_once = 3

    def __init__(self, *results: ToolResult | Exception, name: str = "fetch") -> None:
        self.spec = ToolSpec(name=name, description="d", parameters={"type": "object"})
        self.asked: list[Mapping[str, Any]] = []
        self.is_closed = False
        self._results = results

    async def call(self, arguments: Mapping[str, Any], workspace: Any) -> ToolResult:
        self.asked.append(arguments)
        await asyncio.sleep(0)
        result = self._results[min(len(self.asked), len(self._results)) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        self.is_closed = True


async def test_calls_are_counted_priced_recorded_and_replayed(tmp_path: Path) -> None:
    real, m = Scripted(OK, replace(OK, text="page 2")), meter(tmp_path, "fill", prices={"fetch": 0.5})
    tool = ToolService(real, kind="fetch", meter=m)
    assert (tool.spec, tool.at_once) == (real.spec, 3)
    first = await tool.call({"url": "a"}, ENVIRONMENT)
    again = await tool.call({"url": "a"}, ENVIRONMENT)
    other = await tool.call({"url": "b"}, ENVIRONMENT)
    assert (first, again, other.text, len(real.asked)) == (OK, OK, "page 2", 2)
    assert (m.counts["calls/fetch"], m.counts["replayed"]) == (2, 1)
    assert m._ledger.totals()["fetch"].money == 1.0
    await tool.close()
    await m.close()
    assert real.is_closed
    silent, strict = Scripted(), meter(tmp_path, "strict")
    replayed = ToolService(silent, kind="fetch", meter=strict)
    assert await replayed.call({"url": "a"}, ENVIRONMENT) == OK
    with pytest.raises(CassetteMiss):
        await replayed.call({"url": "c"}, ENVIRONMENT)
    changed = ToolService(Scripted(name="other"), kind="fetch", meter=strict)
    with pytest.raises(CassetteMiss):  # what the policy is told of it is another tool
        await changed.call({"url": "a"}, ENVIRONMENT)
    assert silent.asked == []
    await strict.close()


SLOW = ToolResult(outcome=Outcome.TIMEOUT, text="error: slow")
FAULTS = {
    "no such page": ("fetch", replace(ToolResult.failed("HTTP 404"), detail="http_404"), True),
    "a server that is down": ("fetch", replace(ToolResult.failed("HTTP 503"), detail="http_503"), False),
    "too slow": ("fetch", SLOW, False),
    "forbidden": ("fetch", ToolResult.refused("private"), True),
    "an error of an mcp tool": ("mcp", ToolResult.failed("no such file"), True),
    "an mcp tool that is too slow": ("mcp", SLOW, False),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_passes_is_told_and_not_recorded(name: str, tmp_path: Path) -> None:
    kind, result, is_kept = FAULTS[name]
    real, m = Scripted(result, OK), meter(tmp_path, "fill")
    tool = ToolService(real, kind=kind, meter=m)
    assert await tool.call({}, ENVIRONMENT) == result
    assert await tool.call({}, ENVIRONMENT) == (result if is_kept else OK)
    assert m.counts["unrecorded"] == (not is_kept)
    await m.close()


async def test_limits_are_told_to_the_policy_or_end_the_run(tmp_path: Path) -> None:
    tool = ToolService(Scripted(OK), kind="mcp", meter=meter(tmp_path, episode={"mcp": 1}, run={"mcp": 2}))
    for number in range(2):
        with asking_episode():
            assert await tool.call({"n": number}, ENVIRONMENT) == OK
            said = await tool.call({"n": 9}, ENVIRONMENT)
            assert said == ToolResult.failed("budget.per_episode.calls.mcp=1 is spent")
    with asking_episode(), pytest.raises(BudgetSpent, match=r"budget\.per_run\.calls\.mcp=2"):
        await tool.call({"n": 3}, ENVIRONMENT)


async def test_failures_of_the_tool_itself_pass_as_they_are(tmp_path: Path) -> None:
    m = meter(tmp_path, "fill")
    tool = ToolService(Scripted(ToolError("crashed", kind="server"), OK), kind="mcp", meter=m)
    with pytest.raises(ToolError, match="crashed"):
        await tool.call({}, ENVIRONMENT)
    assert await tool.call({}, ENVIRONMENT) == OK
    assert await tool.call({"n": float("nan")}, ENVIRONMENT) == ToolResult.refused(
        "a number is not finite; none such can be sent"
    )
    await m.close()


async def test_a_toolset_is_metered_tool_by_tool(tmp_path: Path) -> None:
    class Set:
        def __init__(self) -> None:
            self.tools = [Scripted(OK, name="one"), Scripted(OK, name="two")]
            self.is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    real, m = Set(), meter(tmp_path)
    found = ToolsetService(real, kind="mcp", meter=m)
    assert isinstance(found, Toolset)
    assert [tool.spec.name for tool in found.tools] == ["one", "two"]
    for tool in found.tools:
        await tool.call({}, ENVIRONMENT)
    assert (m.counts["calls/mcp"], [len(tool.asked) for tool in real.tools]) == (2, [1, 1])
    await found.close()
    assert real.is_closed


@pytest.mark.parametrize(("kind", "mode", "calls"), [("mcp", "live", 3), ("mcp", "fill", 1), ("fetch", "live", 1)])
async def test_equal_calls_at_once_are_each_made_where_they_may_change_something(
    kind: str, mode: str, calls: int, tmp_path: Path
) -> None:
    """Episodes of a group begin alike; a page is only read, and on a cassette equal calls are one."""
    m = meter(tmp_path, mode, prices={kind: 1.0})
    real = Scripted(OK)
    tool = ToolService(real, kind=kind, meter=m)
    assert await asyncio.gather(*(tool.call({"x": 1}, ENVIRONMENT) for _ in range(3))) == [OK] * 3
    assert (len(real.asked), m.counts[f"calls/{kind}"], m.counts["money"]) == (calls, calls, calls * 10**9)
    await m.close()
