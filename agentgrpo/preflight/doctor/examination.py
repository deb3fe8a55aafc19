"""The list of checks, in the order in which they build on each other. If a check breaks, its error becomes its finding,
and the other checks go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeAlias

from agentgrpo.preflight.doctor.capacity import look_at_context, look_at_disk, look_at_memory
from agentgrpo.preflight.doctor.case import Case, key_in, told
from agentgrpo.preflight.doctor.episodes import look_at_episodes
from agentgrpo.preflight.doctor.evidence import look_at_evidence
from agentgrpo.preflight.doctor.finding import CheckNotes, Result, Skipped, status_of
from agentgrpo.preflight.doctor.leaks import look_at_data
from agentgrpo.preflight.doctor.masks import look_at_history, look_at_masks
from agentgrpo.preflight.doctor.numbers import look_at_determinism, look_at_logprobs, look_at_weights
from agentgrpo.preflight.doctor.parts import look_at_parts
from agentgrpo.preflight.doctor.prices import look_at_prices
from agentgrpo.preflight.doctor.sandbox import look_at_sandbox
from agentgrpo.preflight.doctor.schedule import look_at_extras, look_at_schedule
from agentgrpo.preflight.doctor.services import look_at_judge, look_at_rerankers, look_at_retrievers, look_at_tools
from agentgrpo.preflight.doctor.signal import look_at_guards, look_at_judge_trust, look_at_judging_time, look_at_signal
from agentgrpo.preflight.doctor.turns import look_at_ends, look_at_stops
from agentgrpo.preflight.doctor.writing import look_at_parser, look_at_template
from agentgrpo.services.cassette import CassetteMiss

UNASKED = "cassette.mode=strict asks nobody, and what would be asked here is made up"
Look: TypeAlias = Callable[[Case, CheckNotes], Coroutine[Any, Any, None] | None]


class Check(NamedTuple):
    name: str
    look: Look
    """Raises Skipped if there is nothing to check; any other exception becomes a finding."""
    invents: bool = False
    """The check sends requests that no run sends and no cassette holds."""


CHECKS: tuple[Check, ...] = (
    Check("schedule", look_at_schedule),
    Check("packages", look_at_extras),
    Check("memory", look_at_memory),
    Check("sandbox", look_at_sandbox),
    Check("parts", look_at_parts),
    Check("data", look_at_data),
    Check("template", look_at_template),
    Check("stop tokens", look_at_stops),
    Check("parser", look_at_parser),
    Check("retrievers", look_at_retrievers, invents=True),
    Check("reranker and pages", look_at_rerankers, invents=True),
    Check("judge", look_at_judge, invents=True),
    Check("judge can be fooled", look_at_judge_trust, invents=True),
    Check("episodes", look_at_episodes),
    Check("history", look_at_history),
    Check("ends of turns", look_at_ends),
    Check("masks", look_at_masks),
    Check("log-probs", look_at_logprobs),
    Check("engine weights", look_at_weights),
    Check("determinism", look_at_determinism),
    Check("context", look_at_context),
    Check("tools", look_at_tools),
    Check("signal", look_at_signal),
    Check("evidence", look_at_evidence),
    Check("guards", look_at_guards),
    Check("time of judging", look_at_judging_time),
    Check("prices", look_at_prices),
    Check("disk", look_at_disk),
)


def examine(case: Case) -> Generator[Result, None, None]:
    """Yield each check's result as soon as the check ends. The parts that were built are closed at the end."""
    with asyncio.Runner() as runner:  # one loop for all checks: a part is bound to the loop that first used it
        try:
            for check in CHECKS:
                yield _made(check, case, runner)
        finally:
            runner.run(case.close())


def _made(check: Check, case: Case, runner: asyncio.Runner) -> Result:
    found, began, reason = CheckNotes(), time.perf_counter(), ""
    try:
        looking = check.look(case, found)
        if looking is not None:
            runner.run(looking)
    except Skipped as skipped:
        reason = str(skipped)
    except Exception as error:
        text = told(error)
        if check.invents and isinstance(error, CassetteMiss):
            return Result(name=check.name, status="skipped", seconds=time.perf_counter() - began, reason=UNASKED)
        found.problem(text, why="the run would meet the same", key=key_in(text))
    seconds = time.perf_counter() - began
    status = "skipped" if reason and not found.findings else status_of(found.findings)
    return Result(
        name=check.name,
        status=status,
        seconds=seconds,
        findings=found.findings,
        facts=found.facts,
        picture=found.picture,
        reason=reason,
    )
