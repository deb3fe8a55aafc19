"""What every call has in common, whatever the tool does. (What the policy is told of it: tests/agents/tool.)"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome, ToolCall, ToolRecord
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.toolbox import Toolbox
from agentgrpo.tools.workspace import Workspaces
from tests import builders
from tests.environments.tools.scripted import Saying, echo
from tests.thorough import late


def box(*tools: Saying, **options: object) -> Toolbox:
    return Toolbox({tool.spec.name: tool for tool in tools}, count_tokens=len, **options)  # type: ignore[arg-type]


def calls(*texts: str, name: str = "say") -> list[ToolCall]:
    return [ToolCall(name=name, arguments={"text": text}) for text in texts]


def test_a_tool_is_called_by_the_name_that_the_policy_is_told() -> None:
    with pytest.raises(ConfigError, match="tool 'echo' has the name 'say' in its spec; use one name"):
        Toolbox({"echo": Saying(echo)}, count_tokens=len)


async def test_calls_of_all_episodes_share_the_slots(tmp_path: Path) -> None:
    live, most = 0, 0

    async def watched(text: str, workspace: object) -> ToolResult:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return ToolResult.ok(text)

    tools = box(Saying(watched), max_concurrent=3)
    workspaces = Workspaces(tmp_path)
    episodes = [
        tools.call_all(calls("a", "b", "c", "d"), workspaces.open(builders.task(), seed=str(i)), turn=0)
        for i in range(5)
    ]
    answers = await asyncio.gather(*episodes)
    assert [[reply.text for reply, _ in row] for row in answers] == [["a", "b", "c", "d"]] * 5
    assert most == 3


@pytest.mark.clock
async def test_calls_that_hang_take_no_slot_from_other_tools(tmp_path: Path) -> None:
    async def hang(text: str, workspace: object) -> ToolResult:
        await asyncio.get_running_loop().create_future()
        return ToolResult.ok(text)

    hanging, said = Saying(hang, name="hang"), Saying(echo)
    tools = Toolbox({"hang": hanging, "say": said}, count_tokens=len, max_concurrent=1, timeout_s=0.3)
    workspace = Workspaces(tmp_path).open(builders.task(), seed="a")
    stuck = [
        asyncio.create_task(tools.call(ToolCall(name="hang", arguments={"text": "x"}), workspace, turn=0))
        for _ in range(2)
    ]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    reply, _ = await tools.call(ToolCall(name="say", arguments={"text": "a"}), workspace, turn=0)
    assert reply.text == "a"
    assert not all(task.done() for task in stuck)
    assert not late(began, 0.2)
    assert [(await task)[1].outcome for task in stuck] == [Outcome.TIMEOUT] * 2


async def test_the_queue_of_a_small_tool_is_not_counted_against_the_deadline(tmp_path: Path) -> None:
    async def slow(text: str, workspace: object) -> ToolResult:
        async with alone:
            await asyncio.sleep(0.08)
        return ToolResult.ok(text)

    alone, tool = asyncio.Semaphore(1), Saying(slow)
    tool.at_once = 1  # type: ignore[attr-defined]
    workspace = Workspaces(tmp_path).open(builders.task(), seed="a")
    answers = await box(tool, timeout_s=0.2).call_all(calls("a", "b", "c", "d"), workspace, turn=0)
    assert [record.outcome for _, record in answers] == [Outcome.SUCCESS] * 4


async def test_waiting_for_a_slot_is_not_counted_against_the_deadline(tmp_path: Path) -> None:
    async def slow(text: str, workspace: object) -> ToolResult:
        await asyncio.sleep(0.08)
        return ToolResult.ok(text)

    tools = box(Saying(slow), max_concurrent=1, timeout_s=0.2)
    workspace = Workspaces(tmp_path).open(builders.task(), seed="a")
    began = time.monotonic()
    answers = await tools.call_all(calls("a", "b", "c", "d"), workspace, turn=0)
    took = time.monotonic() - began
    assert [reply.text for reply, _ in answers] == ["a", "b", "c", "d"]
    assert min(record.seconds for _, record in answers) > 0.07
    assert sum(record.seconds for _, record in answers) <= took, "the record's seconds are the call's own"


async def test_exclusive_calls_are_made_in_order_beside_the_others(tmp_path: Path) -> None:
    order: list[str] = []

    async def noted(text: str, workspace: object) -> ToolResult:
        order.append(f"{text} begins")
        await asyncio.sleep(0.01)
        order.append(f"{text} ends")
        return ToolResult.ok(text)

    tools = box(Saying(noted, name="write", exclusive=True), Saying(noted))
    asked = [*calls("w1", name="write"), *calls("s"), *calls("w2", name="write")]
    answers = await tools.call_all(asked, Workspaces(tmp_path).open(builders.task(), seed="a"), turn=0)
    assert [reply.text for reply, _ in answers] == ["w1", "s", "w2"]
    assert [o for o in order if o != "s begins" and o != "s ends"] == ["w1 begins", "w1 ends", "w2 begins", "w2 ends"]
    assert order.index("s begins") < order.index("w1 ends")


async def test_what_a_tool_says_of_its_result_is_recorded(tmp_path: Path) -> None:
    result = ToolResult.ok("ü")
    tools = box(Saying(lambda text, workspace: result), prices={"say": 0.5})
    [call] = calls("a")
    _, record = await tools.call(call, Workspaces(tmp_path).open(builders.task(), seed="a"), turn=4)
    assert record == ToolRecord(
        name="say", arguments={"text": "a"}, outcome=result.outcome, turn=4, num_bytes=2, cost=0.5
    )


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0.0}, {"max_output_tokens": 0}, {"retries": -1}, {"max_concurrent": 0}]
)
def test_limits_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        box(Saying(echo), **options)


def test_a_tool_without_a_schema_is_refused() -> None:
    tool = Saying(echo)
    tool.spec = ToolSpec(name="say", description="", parameters={"type": "objekt"})
    with pytest.raises(ConfigError, match="tool say: its parameters are not a JSON schema"):
        box(tool)
