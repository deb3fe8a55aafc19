"""A language model as the judge of answers.

    blank? 0   vetoed by the references? 0   kept? that   else ask -> strict verdict -> less the control's -> keep

What stands between an answer that talks to the judge and a reward, weakest first: the fence (its text cannot pass for
the prompt), the nonce (a verdict written into an answer is not accepted), the veto (what shares nothing with a short
reference is wrong, whatever the model says), the control (what convinces the model of any question convinces nobody),
and known-wrong canaries before each evaluation, which end the run if one is rewarded. Fence and nonce do not stop a
model that believes what it reads: it sees the nonce, and can be told to repeat it. The veto does, where all references
are short. Where they are not, or there are none, such a model can still be led by an answer that names its question
("if the question is about X, give score 1"), which gets nothing from the control question: then only the canaries are
left, some of which do just that, and a run whose judge rewards one is halted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agentgrpo.concurrency import Batcher, Limiter
from agentgrpo.errors import ConfigError, JudgeError
from agentgrpo.judges.answers import GoldAgreement
from agentgrpo.judges.base import Verdict
from agentgrpo.judges.llm.billing import Billed
from agentgrpo.judges.llm.cache import VerdictCache
from agentgrpo.judges.llm.completer import Completer
from agentgrpo.judges.llm.control import control_of
from agentgrpo.judges.llm.fence import capped
from agentgrpo.judges.llm.metered import MeteredCompleter
from agentgrpo.judges.llm.prompt import Question, messages_of, nonce_of
from agentgrpo.judges.llm.verdict import BAD_VERDICT, Opinion, read_verdict
from agentgrpo.judges.llm.veto import is_vetoed
from agentgrpo.judges.normalise import words
from agentgrpo.types import Task

COUNTS = (
    *("answers", "blank", "vetoed", "fallbacks", "hijacked", "vote_spread"),
    *("cached", "bad_verdicts"),
)


class LLMJudge:
    """`counts`: answers, and of them blank, vetoed, fallbacks, hijacked (the control got a grade too); vote_spread, the
    sum of (highest - lowest vote); calls that were billed, cached verdicts, bad_verdicts, prompt_tokens,
    completion_tokens, cost."""

    def __init__(
        self,
        *,
        completer: Completer,
        cache: Path | None = None,
        max_answer_chars: int = 2000,
        min_overlap: float | None = 0.1,
        control: bool = True,
        repeats: int = 1,
        verdict_retries: int = 1,
        fallback: Literal["raise", "gold_agreement"] = "raise",
        max_concurrent: int = 8,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
        canaries_per_eval: int = 20,
        seed: int = 0,
    ) -> None:
        """min_overlap: see veto; None = no veto. control: ask the control question too where an answer is graded above
        0. repeats: independent opinions per answer, their mean is the grade. verdict_retries: further questions with
        another nonce where a reply is no verdict. fallback: what then becomes of the answer: JudgeError (its group is
        not trained on), or GoldAgreement's grade. Prices are per 1,000 tokens. canaries_per_eval: see judges.canaries.
        """
        least = {"max_answer_chars": max_answer_chars, "repeats": repeats, "max_concurrent": max_concurrent}
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"judge.{name}={value}; 1 or more is allowed")
        for name, amount in {
            "verdict_retries": verdict_retries,
            "canaries_per_eval": canaries_per_eval,
        }.items():
            if not (math.isfinite(amount) and amount >= 0):
                raise ConfigError(f"judge.{name}={amount}; 0 or more is allowed")
        if min_overlap is not None and not 0 <= min_overlap <= 1:
            raise ConfigError(
                f"judge.min_overlap={min_overlap}; a token F1 from 0 to 1 is allowed, or null for no veto"
            )
        self.canaries_per_eval = canaries_per_eval
        self._completer = completer
        self._cache = VerdictCache(cache) if cache is not None else None
        self._max_answer_chars = max_answer_chars
        self._min_overlap = min_overlap
        self._control = control
        self._repeats = repeats
        self._verdict_retries = verdict_retries
        self._fallback = GoldAgreement() if fallback == "gold_agreement" else None
        self._billed = Billed(completer, prompt_price=prompt_price, completion_price=completion_price, setting="judge")
        self._seed = seed
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._asked: Batcher[None, Question, Opinion] = Batcher(
            self._answer, max_batch=1, limiter=Limiter(max_concurrent)
        )

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        """Raises the first answer's JudgeError: bad_verdict, or what the completer failed with."""
        found = await asyncio.gather(*(self._verdict(task, answer) for answer in answers), return_exceptions=True)
        for verdict in found:
            if isinstance(verdict, BaseException):
                raise verdict
        return [verdict for verdict in found if isinstance(verdict, Verdict)]

    async def opinion(self, task: Task, answers: Sequence[str], *, vote: int = 0) -> Opinion:
        """What the model itself says of one answer, or of two side by side: no veto, no control, no fallback."""
        shown = tuple(capped(answer, self._max_answer_chars) for answer in answers)
        return await self._asked.ask(None, Question(task.question, task.references, shown, vote))

    async def probe(self) -> None:
        """Ask the model one small question, whatever is kept, and do not count it: does it reply at all? Raises
        JudgeError where it does not. Nothing is asked of a model in this process, which nobody can forget to start."""
        if getattr(self._completer, "is_remote", False):
            question = Question("Is 1 + 1 equal to 2?", ("yes",), ("yes",))
            asked = messages_of(question, nonce_of(question, self._seed, 0))
            if isinstance(self._completer, MeteredCompleter):
                await self._completer.ask_directly(asked)
            else:
                await self._completer.complete(asked)

    async def keeps_some(self) -> bool:
        """Whether any verdict is kept, of whatever model."""
        return self._cache is not None and await self._cache.holds_any()

    def counts(self) -> Mapping[str, float]:
        return {**self._counts, **self._billed.counts}

    async def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
        await self._completer.close()

    async def _verdict(self, task: Task, answer: str) -> Verdict:
        self._counts["answers"] += 1
        if not words(answer):
            self._counts["blank"] += 1
            return Verdict(score=0.0, detail="blank")
        if self._min_overlap is not None and is_vetoed(task, answer, self._min_overlap):
            self._counts["vetoed"] += 1
            return Verdict(score=0.0, detail="vetoed: it shares too little with any reference")
        try:
            return await self._judged(task, answer)
        except JudgeError as e:
            if self._fallback is None or e.kind != BAD_VERDICT:
                raise
        self._counts["fallbacks"] += 1
        return (await self._fallback.grade(task, [answer]))[0]

    async def _judged(self, task: Task, answer: str) -> Verdict:
        opinions = [await self.opinion(task, [answer], vote=vote) for vote in range(self._repeats)]
        votes = [opinion.scores[0] for opinion in opinions]
        score, detail = math.fsum(votes) / len(votes), opinions[0].reason
        self._counts["vote_spread"] += max(votes) - min(votes)
        if score == 0 or not self._control:
            return Verdict(score=score, detail=detail)
        shown = capped(answer, self._max_answer_chars)
        control = await self._asked.ask(None, control_of(Question(task.question, task.references, (shown,))))
        if control.scores[0] == 0:
            return Verdict(score=score, detail=detail)
        self._counts["hijacked"] += 1
        detail = f"less {control.scores[0]:g}, its grade for a question that it cannot answer: {detail}"
        return Verdict(score=max(0.0, score - control.scores[0]), detail=detail)

    async def _answer(self, group: None, questions: list[Question], arrived: float) -> list[Opinion]:
        """The one question's opinion, kept or asked for. Equal ones that are under way are asked once (Batcher)."""
        (question,) = questions
        key = question.key(self._completer.identity)
        kept = await self._cache.find(key) if self._cache is not None else None
        if kept is not None:
            self._counts["cached"] += 1
            return [kept]
        opinion = await self._ask(question)
        return [await self._cache.keep(key, opinion) if self._cache is not None else opinion]

    async def _ask(self, question: Question) -> Opinion:
        for attempt in range(self._verdict_retries + 1):
            nonce = nonce_of(question, self._seed, attempt)
            reply = await self._billed.complete(messages_of(question, nonce))
            try:
                return read_verdict(reply.text, nonce, question.fields)
            except JudgeError as e:
                self._counts["bad_verdicts"] += 1
                error = e
        raise error
