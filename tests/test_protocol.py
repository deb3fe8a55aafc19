"""The message protocol's closed vocabulary (SPEC 3.2), row by row."""

from __future__ import annotations

import pytest

from agentgrpo.core.messages import AgentMessage, Status, content_of, finish_reason_of, group_status, status_of
from agentgrpo.core.types import Exit


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [
        ("stop", Status.COMPLETED),
        ("length", Status.COMPLETED),
        ("tool_calls", Status.COMPLETED),
        ("abort", Status.FAILED),
        ("timeout", Status.FAILED),
        ("error", Status.FAILED),
        ("content_filter", Status.FAILED),
        ("", Status.FAILED),
    ],
)
def test_the_status_follows_from_the_finish_reason(finish_reason: str, status: Status) -> None:
    assert status_of(finish_reason) is status
    assert AgentMessage(content="", finish_reason=finish_reason).status is status


@pytest.mark.parametrize(
    ("statuses", "of_group"),
    [
        ("completed completed", "completed"),
        ("init failed completed", "failed"),
        ("failed failed", "failed"),
        ("completed init", "init"),
        ("", "init"),
    ],
)
def test_the_worst_status_is_the_groups(statuses: str, of_group: str) -> None:
    given = [Status(name) for name in statuses.split()]
    assert group_status(given) == group_status(reversed(given)) == of_group


def test_only_who_stops_by_himself_has_stopped() -> None:
    reasons = {exit.value: finish_reason_of(exit) for exit in Exit}
    assert reasons == {
        "answered": "stop",
        "no_action": "stop",
        "max_turns": "length",
        "search_limit": "length",
        "format_error_limit": "length",
        "context_overflow": "length",
        "timeout": "timeout",
        "error": "error",
    }


def test_content_is_always_a_text() -> None:
    assert [content_of(value) for value in ("a", "", None, 0, ["x"])] == ["a", "", "", "0", "['x']"]
