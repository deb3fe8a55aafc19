"""One recorded episode: the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgrpo.types import Branch

SCHEMA_VERSION = 3
"""Raised whenever a field comes, goes, or changes its name or meaning.

2: group_status; num_bytes, was_cut and cost of a call.
3: memory, reward_branches.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """One episode as it was recorded; the fields are the keys of its line, `branches` excepted."""

    id: str
    """"<task>/<sample_index>", unique within the file."""
    group: str
    task: str
    sample_index: int
    data_source: str
    metadata: dict[str, Any]
    """The data set's own fields of the task."""
    step: int
    split: str
    status: str
    """As protocol.status_of: completed | failed. An episode that failed (by the infrastructure, its judge included, or
    the time limit) has no reward: training drops its group, an evaluation counts it as wrong in `denominator`."""
    group_status: str
    """As protocol.group_status, of all episodes of its group: completed | failed (one of them did)."""
    finish_reason: str
    """stop | length (the context was full) | timeout | error."""
    error: dict[str, Any] | None
    """{"kind","stage","message"} of the failure, be it the episode's or its judge's."""
    dropped: str | None
    """Why the episode was not trained on; null = it was, or nothing was trained."""
    prompt_messages: list[Any]
    rendered_prompt: str
    """Text of the segments before the first sampled one, in the first branch."""
    references: list[Any]
    response: str
    """Text of every sampled segment."""
    answer: str | None
    correctness: float | None
    reward: float | None
    """null = could not be scored, which is never the same as 0."""
    reward_terms: dict[str, Any]
    reward_dimensions: dict[str, Any]
    reward_branches: list[Any]
    """What each branch got for its own tokens; [] = all of them got `reward`."""
    advantage: float | list[Any] | None
    """With credit by turn, branch or position a list, one for each sampled message."""
    prompt_len: int
    """Tokens before the first sampled one, in the first branch."""
    response_len: int
    """Sampled tokens of all branches."""
    agent: dict[str, Any]
    """{"name","exit","tool_turns","messages","tools"}."""
    memory: list[Any]
    """What a memory agent wrote, an object for each branch: see Episode.memory. [] of other agents."""
    metrics: dict[str, Any]
    citations: list[Any]
    retrieved_ids: list[Any]
    costs: dict[str, Any]
    """What the reward charged, by its terms called *_cost; positive = charged."""
    policy_version: int | None
    """The oldest weights that sampled a token of it."""
    seed: int
    """The run seed; split, step, task and sample_index say the rest."""
    branches: tuple[Branch, ...]
    """The segments, bit for bit; () where tokens were not recorded."""
