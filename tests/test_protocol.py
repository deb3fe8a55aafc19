"""The message protocol's closed vocabulary (SPEC 3.2), row by row."""

from __future__ import annotations

import numpy as np
import pytest

from agentgrpo.core.errors import BadValue
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
    row = {"type": "text", "text": "x", "id": 3}
    assert content_of([row]) == str([row])
    assert content_of([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]) == "abc"


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "text", "text": "a"}, {"type": "image", "image": b"\x89PNG"}],
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
        [{"type": "input_image", "image_url": "data:image/png;base64,iVBO"}],
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},),
        [{"type": "image"}, {"type": "text", "text": "a"}],
        [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}],
        "data:image/png;base64,iVBO",
        np.zeros((4, 4, 3), np.uint8),
    ],
)
def test_an_image_is_no_content(value: object) -> None:
    with pytest.raises(BadValue, match=r"^what it gives has a part of type (image|audio); a policy reads text"):
        content_of(value, "what it gives")


def test_a_picture_of_pillow_is_no_content() -> None:
    picture = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    with pytest.raises(BadValue, match=r"^what it gives has a part of type image"):
        content_of(["a", picture], "what it gives")
