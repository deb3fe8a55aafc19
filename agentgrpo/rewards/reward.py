"""One reward per episode: a judge's grade and named, weighted terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from agentgrpo.core.errors import (
    BadValue,
    ConfigError,
    EpisodeError,
    JudgeError,
    RewardError,
    boundary,
    did_you_mean,
    text_of,
)
from agentgrpo.core.numbers import LARGEST, is_number, number
from agentgrpo.core.outside import call_once, called, holding
from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Failure, RewardResult, ScoredGroup, Task
from agentgrpo.judges.base import AnswerJudge, Grade, counts_of, grade_episodes
from agentgrpo.rewards.base import BranchTerm, GroupTerm, RewardTerm, TermScore, TurnTerm
from agentgrpo.rewards.feedback import TERM, Feedback
from agentgrpo.rewards.own import EnvironmentTerm, FunctionTerm
from agentgrpo.rewards.terms import CORRECTNESS, DIMENSIONS, has_answer

T = TypeVar("T")
_NO_ANSWER = Grade(score=0.0)
MODES = ("shaped", "sparse_final_only")


class Reward:
    """The weighted sum of named terms:

        shaped              total = reward_scale · (terminal + shaping)
        sparse_final_only   total = reward_scale · terminal

    terminal is the sum of the terms of dimension `correctness`, shaping the sum of all others. Weights are not
    normalised: adding a term changes no other. Terms with `is_cost` are multiplied by `cost_when_wrong` (1 = in full,
    0 = not at all) in an episode without an answer, or with one that the judge grades below `correct_threshold`.
    A turn is credited at once with the part of a term that later turns cannot change (base.TurnTerm). This part of a
    cost is the price that a wrong answer pays. The last turn is credited with the rest.
    With a term per branch (base.BranchTerm) each branch has a reward, in which all other terms count in full, and the
    total is the mean of the branches.
    Human feedback on an episode is added to the total, whatever scale and mode are.
    """

    def __init__(
        self,
        *,
        judge: AnswerJudge,
        terms: Mapping[str, RewardTerm | GroupTerm],
        mode: str = "shaped",
        reward_scale: float = 1.0,
        cost_when_wrong: float = 1.0,
        correct_threshold: float = 1.0,
        feedback: Feedback | None = None,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"reward mode '{mode}'; allowed: {', '.join(MODES)}.{did_you_mean(mode, MODES)}")
        counted = [n for n, t in terms.items() if mode == "shaped" or t.dimension == CORRECTNESS]
        if not counted:
            raise ConfigError(
                f"reward mode '{mode}' with terms {sorted(terms)} is always 0; add the term 'correctness'"
            )
        if not (math.isfinite(reward_scale) and reward_scale > 0):
            raise ConfigError(f"reward_scale {reward_scale}: a finite number > 0 is allowed; correct it")
        if not 0 <= cost_when_wrong <= 1:
            raise ConfigError(f"cost_when_wrong {cost_when_wrong}: a share between 0 and 1 is allowed; correct it")
        if not 0 < correct_threshold <= 1:
            raise ConfigError(
                f"correct_threshold {correct_threshold}: a grade above 0 and up to 1 is allowed; correct it"
            )
        if feedback is not None and TERM in terms:
            raise ConfigError(f"reward.terms.{TERM}: reward.feedback has this name; rename the term")
        self._judge = judge
        self._feedback = feedback
        self._terms = dict(terms)
        self._mode = mode
        self._scale = reward_scale
        self._cost_when_wrong = cost_when_wrong
        self._threshold = correct_threshold
        self._dimensions = tuple(dict.fromkeys((*DIMENSIONS, *(term.dimension for term in terms.values()))))
        self._group_terms = {n: t for n, t in terms.items() if self._counts(t) and isinstance(t, GroupTerm)}
        self._branch_terms = {n: t for n, t in terms.items() if self._counts(t) and isinstance(t, BranchTerm)}
        self._turn_terms = {n: t for n, t in terms.items() if self._counts(t) and isinstance(t, TurnTerm)}

    async def score(self, group: EpisodeGroup) -> ScoredGroup:
        """Every episode's reward; the judge is asked once, about all answers of the group.

        The reward is None if the infrastructure failed: the episode itself; the judge (then for every episode with an
        answer); a term that raises an error or returns no number; or a total that is not finite, or whose square is
        not. `failures` gives the reasons, except for failed episodes. A judge without a reference to compare with has
        failed only if its grade is needed.
        """
        judged = [i for i, e in enumerate(group.episodes) if e.failure is None and has_answer(e)]
        grades: dict[int, Grade] = {}
        failure: Failure | None = None
        try:
            if judged:
                grades = dict(zip(judged, await self._grade(group, judged), strict=True))
        except EpisodeError as e:
            if e.kind != "no_reference" or self.needs_grades:
                failure = Failure(kind=e.kind, stage="judge", message=text_of(e))
        scored = [i for i, e in enumerate(group.episodes) if e.failure is None and not (failure and i in judged)]
        opinions = await self._opinions(group, scored)
        rewards: list[RewardResult | None] = []
        failures: list[Failure | None] = []
        for i, episode in enumerate(group.episodes):
            reason = failure if i in judged else None
            result: RewardResult | None = None
            where = f"task {group.task.id}, sample {episode.sample_index}"
            try:
                if i in scored:
                    result = self._result(episode, grades.get(i, _NO_ANSWER), opinions[i])
            except (BadValue, RewardError) as e:
                reason = Failure(kind=e.kind, stage="reward", message=f"{where}: {e}")
            if result is not None and not all(map(is_number, (result.total, *result.turns))):
                message = f"{where}: the terms {dict(result.terms)} have no finite sum up to {LARGEST:g}"
                result, reason = None, Failure(kind="non_finite_reward", stage="reward", message=message)
            rewards.append(result)
            failures.append(reason)
        return ScoredGroup(group=group, rewards=tuple(rewards), failures=tuple(failures))

    def refuse_uncounted(self, metrics: Collection[str]) -> None:
        """Raise ConfigError for a term that reads other metrics than these, which the agent counts. The check uses two
        invented episodes, with counts of 0 and of 1."""
        task = Task(id="invented", messages=(), references=())
        for term in self._terms.values():
            if isinstance(term, GroupTerm):
                continue
            for count in (0.0, 1.0) if self._counts(term) else ():
                invented = Episode(
                    task=task,
                    sample_index=0,
                    branches=(),
                    answer="invented",
                    exit=Exit.ANSWERED,
                    metrics=dict.fromkeys(metrics, count),
                    retrieved_ids=("invented",),
                )
                try:
                    term(invented, 1.0)
                except ConfigError:
                    raise
                except BadValue as e:
                    if isinstance(term, EnvironmentTerm):
                        raise ConfigError(str(e)) from e
                    break
                except Exception:  # it needs more than an invented episode; a real one will show
                    break

    def refuse_task(self, task: Task) -> None:
        """Raise ConfigError if the task lacks a column that a user's function needs."""
        for term in self._group_terms.values():
            if isinstance(term, FunctionTerm):
                term.refuse_task(task)

    @property
    def needs_grades(self) -> bool:
        """Whether the reward depends on the judge's grade; the environment's and the user's terms do not read it."""
        counted = self._counted()
        own = [term for term in counted if isinstance(term, EnvironmentTerm | FunctionTerm)]
        return len(own) < len(counted) or (self._cost_when_wrong < 1 and any(term.is_cost for term in own))

    @property
    def is_graded(self) -> bool:
        """Whether the reward depends on the judge's grade, and not on the environment's rewards."""
        return self.needs_grades and not self.reads_payment

    @property
    def reads_payment(self) -> bool:
        """Whether the reward depends on the environment's rewards."""
        return any(isinstance(term, EnvironmentTerm) and term.metric == "reward" for term in self._counted())

    def judge_counts(self) -> Mapping[str, float]:
        """The judge's counts so far (judges.base.CountingJudge); empty if the judge counts nothing."""
        return counts_of([self._judge])

    async def _grade(self, group: EpisodeGroup, judged: Sequence[int]) -> list[Grade]:
        episodes = [group.episodes[i] for i in judged]
        name = f"task {group.task.id}"
        verdicts = await call_once(JudgeError, "judge", name, grade_episodes, self._judge, group.task, episodes)
        scores = [v.score if isinstance(v, Grade) else math.nan for v in verdicts]
        if len(scores) != len(judged) or not all(0 <= s <= 1 for s in scores):
            raise JudgeError(
                f"task {group.task.id}: the judge gave {scores} for {len(judged)} answers; one grade in [0, 1] per "
                "answer is allowed; repair the judge",
                kind="bad_verdict",
            )
        return verdicts

    async def _opinions(
        self, group: EpisodeGroup, scored: Sequence[int]
    ) -> dict[int, dict[str, TermScore | EpisodeError]]:
        """For each scored episode, the scores of the group terms by name."""
        found: dict[int, dict[str, TermScore | EpisodeError]] = {i: {} for i in scored}
        for name, term in self._group_terms.items() if scored else ():
            for i, opinion in zip(scored, await term.of_group([group.episodes[i] for i in scored]), strict=True):
                found[i][name] = opinion
        return found

    def _result(self, episode: Episode, grade: Grade, opinions: Mapping[str, TermScore | EpisodeError]) -> RewardResult:
        correctness = grade.score
        own = self._by_branch(episode, correctness)
        values: dict[str, float] = {}
        parts, reasons = dict(grade.parts), [grade.reason]
        for name, term in self._terms.items():
            opinion = opinions.get(name)
            if isinstance(opinion, EpisodeError):
                raise opinion
            if opinion is not None:
                parts |= {f"{name}/{part}": value for part, value in opinion.parts.items()}
                reasons += [f"{name}: {opinion.reason}"] if opinion.reason else []
                if opinion.value is not None:
                    values[name] = self._scale * self._share(term, correctness) * opinion.value + 0.0
            else:
                values[name] = _mean(own[name]) if name in own else self._value(name, term, episode, correctness)
        if opinions and not any(self._counts(self._terms[name]) for name in values):
            raise RewardError(f"no term applies to the episode: {', '.join(opinions)} returned None")
        dimensions = {
            d: _sum([values[name] for name, term in self._terms.items() if name in values and term.dimension == d])
            for d in self._dimensions
        }
        if self._feedback is not None:
            values[TERM] = dimensions[TERM] = self._feedback.of(episode)
        shared = [value for name, value in values.items() if name not in own]
        branches = tuple(_sum([*shared, *column]) for column in zip(*own.values(), strict=True))
        total = _mean(branches) if branches else _sum(shared)
        return RewardResult(
            total=total,
            terms=values,
            dimensions=dimensions,
            correctness=correctness,
            parts=parts,
            reason="; ".join(filter(None, reasons)),
            turns=self._turns(episode, total),
            branches=branches,
        )

    def _by_branch(self, episode: Episode, correctness: float) -> dict[str, list[float]]:
        """For each branch term, the value that it adds to each branch's reward; empty without branches."""
        found = {}
        for name, term in self._branch_terms.items() if episode.branches else ():
            if (said := _said(name, episode, term.per_branch)) is None:
                continue
            row = _row(name, said, len(episode.branches), "branches")
            weight = self._scale * self._share(term, correctness)
            found[name] = [weight * value + 0.0 for value in row]
        return found

    def _value(self, name: str, term: RewardTerm | GroupTerm, episode: Episode, correctness: float) -> float:
        """The value that the term adds to the total."""
        if isinstance(term, GroupTerm) or not self._counts(term):
            return 0.0
        said = _number(name, _said(name, episode, term, correctness))
        # + 0.0 turns the -0.0 of a cost that was not incurred into 0.0
        return self._scale * self._share(term, correctness) * said + 0.0

    def _share(self, term: RewardTerm | GroupTerm, correctness: float) -> float:
        return self._cost_when_wrong if term.is_cost and correctness < self._threshold else 1.0

    def _counted(self) -> list[RewardTerm | GroupTerm]:
        return [term for term in self._terms.values() if self._counts(term)]

    def _counts(self, term: RewardTerm | GroupTerm) -> bool:
        return self._mode == "shaped" or term.dimension == CORRECTNESS

    def _turns(self, episode: Episode, total: float) -> tuple[float, ...]:
        """RewardResult.turns: the sum of the turn terms for each turn; the last turn gets the rest of the total too."""
        num_turns = len(episode.turns)
        if not num_turns or not math.isfinite(total):
            return ()
        rows = []
        for name, term in self._turn_terms.items():
            row = _row(name, _said(name, episode, term.per_turn), num_turns, "turns")
            settled = self._scale * (self._cost_when_wrong if term.is_cost else 1.0)
            rows.append([settled * value for value in row])
        turns = [_sum(column) + 0.0 for column in zip(*rows, strict=True)] if rows else [0.0] * num_turns
        turns[-1] = _sum([total, *(-t for t in turns[:-1])]) + 0.0
        # The rounding error goes to the smallest turn, where it is rounded least, so that the turns sum to the total.
        finest = min(range(num_turns), key=lambda i: abs(turns[i]) or math.inf)
        turns[finest] += _sum([total, *(-t for t in turns)])
        return tuple(turns)


def _said(name: str, episode: Episode, term: Callable[..., T], *more: float) -> T:
    """The result of the term. Raises RewardError for any exception of the term."""
    stage = f"reward term '{name}'"
    with boundary(RewardError, stage), holding(f"{stage} (task {episode.task.id}, sample {episode.sample_index})"):
        return called(term, episode, *more).result()


def _row(name: str, said: object, count: int, what: str) -> list[float]:
    """Check and convert `said`. Raises BadValue unless it is a sequence of `count` numbers."""
    if not isinstance(said, Sequence) or len(said) != count:
        many = f"{len(said)} values" if isinstance(said, Sequence) else f"a {type(said).__name__}"
        raise BadValue(f"reward term '{name}' gave {many} for {count} {what}; a number for each is needed")
    return [_number(name, value) for value in said]


def _number(name: str, value: object) -> float:
    """Convert `value`, which need not be finite, because the total is checked. Raises BadValue."""
    return value if isinstance(value, float) else number(value, f"reward term '{name}'")


def _sum(values: Sequence[float]) -> float:
    """The sum, exactly rounded and so independent of the order; nan if a value is not finite."""
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


def _mean(values: Sequence[float]) -> float:
    return _sum(values) / len(values)
