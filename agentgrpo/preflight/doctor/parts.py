"""Builds the parts of the run as the run does and, if that fails, finds the part at fault.

A tool that cannot be built is left out, and a judge is replaced by a stand-in, so that the remaining checks go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentgrpo.config.build import build_node, takes
from agentgrpo.core.errors import AgentGrpoError
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.preflight.doctor.case import Case, key_in, told
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.preflight.plan.parts import device_memory
from agentgrpo.run.assembly import refuse_few, refuse_untrainable
from agentgrpo.tasks.base import SPLITS, TaskDataset

WHY = "the run would end here, before its first step"
_STAND_IN = {"name": "exact_match"}


def look_at_parts(case: Case, found: CheckNotes) -> None:
    """Build everything that a run builds before its first step. This may make the start weights, which the run then
    finds."""
    _refuse_without_memory(case)
    config = case.tried
    try:
        case.build(config)
    except Exception as error:
        broken = list(_broken(config))
        for part in broken:
            case.broken[part.key] = part.why
            found.problem(f"{part.key} cannot be built: {part.why}", why=WHY, key=key_in(part.why) or part.key)
        if not broken:
            found.problem(told(error), why=WHY, key=key_in(told(error)))
        elif broken[-1].without:
            _again(case, broken[-1].without, found)
    if case.heard:
        found.facts["noted"] = case.heard
    if case.is_built:
        _facts(case, found)


def _again(case: Case, config: Mapping[str, Any], found: CheckNotes) -> None:
    try:
        case.build(config)
    except Exception as error:
        found.problem(told(error), why=WHY, key=key_in(told(error)))


def _refuse_without_memory(case: Case) -> None:
    """Raises Skipped if this machine cannot hold the weights: loading them would exhaust its memory."""
    try:
        plan = case.plan
    except AgentGrpoError:
        return  # the memory check reports this error
    memory_bytes, whose = device_memory(plan.hardware)
    if memory_bytes is not None and plan.hardware.memory_gib is None and plan.memory.weight_bytes > memory_bytes:
        raise Skipped(f"needs: memory, but the weights alone exceed the memory of {whose}")


class Broken(NamedTuple):
    """A part that cannot be built by itself."""

    key: str
    why: str
    without: Mapping[str, Any]
    """The configuration without any part found broken so far; empty if no run can do without the part."""


def _broken(config: Mapping[str, Any]) -> Iterator[Broken]:
    without = dict(config)
    for name, node in config["tools"].items():
        if takes("tool", node, "retrievers", name=name):
            continue  # needs other parts
        if why := _failure("tool", {"name": name, **node}):
            without = {**without, "tools": {k: v for k, v in without["tools"].items() if k != name}}
            yield Broken(f"tools.{name}", why, without)
    if why := _failure("judge", config["judge"]):
        without = {**without, "judge": _STAND_IN}
        yield Broken("judge", why, without)
    if why := _failure("task", config["task"]):
        yield Broken("task", why, {})
        return
    judge: AnswerJudge = build_node("judge", _STAND_IN)
    if why := _failure("reward", config["reward"], judge=judge):
        yield Broken("reward", why, {})
    searches = takes("environment", config["environment"], "retrievers")
    if searches and (why := _failure("retriever", config["retriever"], corpora=_corpora(config))):
        yield Broken("retriever", why, {})


def _corpora(config: Mapping[str, Any]) -> Mapping[str, Any]:
    dataset: TaskDataset = build_node("task", config["task"])
    return dataset.corpora()


def _failure(kind: str, node: Mapping[str, Any], **injected: Any) -> str:
    try:
        build_node(kind, node, **injected)
    except Exception as error:
        return told(error)
    return ""


def _facts(case: Case, found: CheckNotes) -> None:
    built = case.built
    for refuse in (refuse_untrainable, refuse_few):
        try:
            refuse(built)
        except AgentGrpoError as error:
            found.problem(told(error), why=WHY, key=key_in(told(error)))
    for note in built.left_out if built.source is None else ():
        found.note(note, why="an attempt at such a task ends before its first turn", key=key_in(note))
    for note in built.equipment.notes:
        found.note(note, why="it may not be what you mean", key=key_in(note))
    found.facts |= {
        "model": str(built.start.folder),
        "start weights made now": case.made_start,
        "parameters": sum(p.numel() for p in built.policy.model.parameters()),
        "trained": sum(p.numel() for p in built.policy.model.parameters() if p.requires_grad),
        "renderer": type(built.renderer).__name__,
        "tasks": {name: len(built.dataset.split(name)) for name in SPLITS},
    }
