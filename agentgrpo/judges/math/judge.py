"""The judge of mathematical answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Task
from agentgrpo.judges.answers import refuse_unanswered
from agentgrpo.judges.base import Grade
from agentgrpo.services.workers import WorkerCrashed, Workers

_COMPARE = "agentgrpo.judges.math.compare:compare"
_RECYCLE_AFTER = 1000
LATE = "it takes too long to compute"


class MathJudge:
    """Grade 1 if the answer equals a reference as mathematics, else 0. The library math-verify compares numbers,
    expressions, equations, sets, intervals and matrices, in LaTeX or plain, in \\boxed{} or not. An answer that takes
    too much time or memory to compute is wrong. Each comparison runs in a worker process, which can be ended alone.
    """

    refuse_task = staticmethod(refuse_unanswered)

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 1024, processes: int = 2) -> None:
        """timeout_s: CPU time of one comparison. processes: how many answers are compared at the same time."""
        if find_spec("math_verify") is None:
            raise ConfigError(
                "judge=math needs the package math-verify; install it: pip install 'agentgrpo[math]', or choose "
                "judge=numeric"
            )
        if not timeout_s > 0:
            raise ConfigError(f"judge.timeout_s={timeout_s}; more than 0 seconds are allowed")
        self._timeout_s = timeout_s
        self._workers = Workers(
            _COMPARE, processes=processes, recycle_after=_RECYCLE_AFTER, max_chars=100, memory_mb=memory_mb
        )
        self._late = 0

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        """Raises JudgeError if no reference can be read."""
        distinct = list(dict.fromkeys(answers))
        found = await asyncio.gather(*(self._grade(task, answer) for answer in distinct), return_exceptions=True)
        for grade in found:
            if isinstance(grade, BaseException):
                raise grade
        grades = dict(zip(distinct, found, strict=True))
        return [grade for answer in answers if isinstance(grade := grades[answer], Grade)]

    def counts(self) -> Mapping[str, float]:
        """late: the number of answers that took too much time or memory."""
        return {"late": self._late}

    async def close(self) -> None:
        await self._workers.close()

    async def _grade(self, task: Task, answer: str) -> Grade:
        if not answer.strip():
            return Grade(score=0.0, reason="blank")
        arguments = {"references": list(task.references), "answer": answer, "timeout_s": self._timeout_s}
        try:
            reply = await self._workers.call({"seed": task.id, "arguments": arguments, "workspace": None})
        except WorkerCrashed:  # ended by the CPU-time clock or the memory limit
            reply = {"text": "late"}
        said = "late" if "memory" in reply else reply.get("text")
        if said == "no_gold":
            raise JudgeError(
                f"task {task.id}: references {list(task.references)} cannot be read as mathematics; give LaTeX or a "
                "plain expression, or choose another judge for its data source: judge=route",
                kind="no_reference",
            )
        if said == "late":
            self._late += 1
            return Grade(score=0.0, reason=LATE)
        if said is None:
            raise JudgeError(f"judge=math: the comparison failed: {reply['error']}", kind="bad_verdict")
        return Grade(score=float(said == "right"))
