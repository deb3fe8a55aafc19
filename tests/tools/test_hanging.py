"""A call ends within its deadline and a second, whatever the tool does, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest

from agentgrpo.core.types import Outcome, ToolCall
from agentgrpo.tools.toolbox import Toolbox
from tests.thorough import is_thorough, siblings
from tests.tools.hanging import HANGING
from tests.tools.leftovers import new_processes
from tests.tools.places import Place

CALLS = int(os.environ.get("AGENTGRPO_HANGING_CALLS", "3"))
"""Of each tool; 50 for the long version."""
DEADLINE_S = 0.5


def marked(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            found += [" ".join(process.cmdline())] if mark in process.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_there_are_twelve_kinds() -> None:
    assert len(HANGING) == 12


@pytest.mark.clock
@pytest.mark.parametrize("kind", siblings(HANGING, quick=4))
async def test_a_hanging_call_ends_in_time(kind: str, tmp_path: Path) -> None:
    mark = f"agentgrpo-{uuid.uuid4().hex}"
    before = threading.active_count(), descriptors()
    tool = HANGING[kind]()
    box = Toolbox({tool.spec.name: tool}, count_tokens=len, timeout_s=DEADLINE_S)
    arguments = {"mark": mark} if "mark" in tool.spec.parameters.get("properties", {}) else {}
    took = []

    async def call() -> Outcome:
        began = time.monotonic()
        _, record = await box.call(ToolCall(name=tool.spec.name, arguments=arguments), Place(tmp_path), turn=0)
        took.append(time.monotonic() - began)
        return record.outcome

    for _ in range(0, CALLS, 4):
        outcomes = await asyncio.gather(*(call() for _ in range(min(4, CALLS))))
        assert set(outcomes) == {Outcome.TIMEOUT}
    assert min(took) >= DEADLINE_S
    assert not (is_thorough() and max(took) >= DEADLINE_S + 1.0)
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
    await tool.close()
    assert (marked(mark), new_processes()) == ([], [])
    assert (threading.active_count(), descriptors()) == before
