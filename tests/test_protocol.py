"""The message protocol's closed vocabulary (SPEC 3.2), row by row."""

from __future__ import annotations

import pytest

from agentgrpo.core.messages import AgentMessage, Status, content_of, group_status, status_of


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [
        ("stop", Status.COMPLETED),
        ("length", Status.COMPLETED),
        ("tool_calls", Status.COMPLETED),
        ("abort", Status.ABORTED),
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
        ("filtered completed", "filtered"),
        ("filtered expired", "expired"),
        ("expired aborted", "aborted"),
        ("aborted failed expired filtered completed", "failed"),
        ("failed failed", "failed"),
        ("completed init", "init"),
        ("archived", "init"),
        ("", "init"),
    ],
)
def test_the_worst_status_is_the_groups(statuses: str, of_group: str) -> None:
    given = [Status(name) for name in statuses.split()]
    assert group_status(given) == group_status(reversed(given)) == of_group


def test_content_is_always_a_text() -> None:
    assert [content_of(value) for value in ("a", "", None, 0, ["x"])] == ["a", "", "", "0", "['x']"]
