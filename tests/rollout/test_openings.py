"""Tasks whose opening fills the context are found before the first step, and few texts are tokenised for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Message, Task, ToolCall
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.factory import EnvironmentDefaults
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.openings import overlong
from agentgrpo.tools.workspace import Workspaces
from tests.environments.tools.scripted import Adder
from tests.renderers import families
from tests.runners import tool_runner

ROOM = 200


class Counting(ReactRenderer):
    """How many openings it has written."""

    opened = 0

    def open_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        self.opened += 1
        return super().open_with_tools(messages, tools)


def runner(folder: Path, **options: Any) -> PolicyRunner:
    renderer = Counting(tokenizer=families.tokenizer("react"))
    engine = ScriptedEngine(
        encode=renderer.encode_action, decode=renderer.decode, script=lambda key, _: "Final Answer: 5", max_context=ROOM
    )
    return tool_runner(
        engine=engine, renderer=renderer, tools={"add": Adder()}, workspaces=Workspaces(folder), **options
    )


def asking(id: str, *texts: str, calls: tuple[ToolCall, ...] = ()) -> Task:
    messages = [Message(role="user", content=text) for text in texts]
    messages[0] = Message(role="user", content=texts[0], tool_calls=calls)
    return Task(id=id, messages=tuple(messages), references=("5",))


def of_length(of: PolicyRunner, num_tokens: int) -> Task:
    """Opens with so many tokens, a letter each."""
    frame = of.environment.opening_tokens(asking("x", "z"), most=ROOM)
    assert frame is not None
    return asking(f"t{num_tokens}", "z" * (num_tokens - frame + 1))


@pytest.mark.parametrize("left", [1, 30])
@pytest.mark.parametrize("limit", [None, 120])
async def test_exactly_those_that_have_no_room_for_a_turn(tmp_path: Path, left: int, limit: int | None) -> None:
    of = runner(tmp_path, min_context_left=left, max_context=limit)
    room = (limit or ROOM) - left
    tasks = [of_length(of, n) for n in (room + 1, room - 1, room, room + 2)]
    found = overlong(of, tasks)
    assert (found.num_tasks, found.ids, found.longest, found.room) == (4, (tasks[0].id, tasks[3].id), room + 2, room)
    for task in tasks:
        episode = await of.run(task, sample_index=0, stream="s", sampling=SamplingParams(max_tokens=5))
        assert bool(episode.turns) is (task.id not in found.ids)
    key = f"{'environment' if limit else 'engine'}.max_context"
    assert found.line("training tasks", "left out of training") == (
        f"2 of 4 training tasks open with more than {room} tokens, the longest with {room + 2}, and "
        f"{key}={limit or ROOM}{'' if left == 1 else ', less environment.min_context_left=30,'} leaves no room for a "
        f"turn; left out of training: t{room + 1}, t{room + 2}. Raise {key}, or shorten them"
    )


def test_few_of_many_are_tokenised(tmp_path: Path) -> None:
    of = runner(tmp_path)
    tasks = [asking(f"t{i}", f"What is {i} and {i}?") for i in range(5_000)]
    tasks[17] = asking("long", "word " * 4_000)
    tasks[18] = asking("many", *["?"] * 30)
    found = overlong(of, tasks)
    assert found.ids == ("long",)
    assert found.longest > 4_000
    assert of.renderer.opened <= 4  # type: ignore[attr-defined]


def test_the_names_of_a_few_stand_for_all(tmp_path: Path) -> None:
    tasks = [asking(f"t{i}", "z" * 999) for i in range(7)]
    line = overlong(runner(tmp_path), tasks).line("test tasks", "evaluated as unanswered")
    assert line.startswith("7 of 7 test tasks open with more than ")
    assert "; evaluated as unanswered: t0, t1, t2 and 4 more. Raise engine.max_context, or" in line


def test_nothing_is_said_of_an_environment_that_opens_by_itself(tmp_path: Path) -> None:
    of = runner(tmp_path)
    assert EnvironmentDefaults().opening_tokens(asking("t", "z"), most=9) is None
    assert overlong(of, []).ids == ()
