"""Any agent behind an endpoint: the user's program decides what the policy is asked and what the attempt is worth.

program --chat completions--> endpoint --> session: the policy's conversations --> branches of the episode
reward = what the program returns or prints + what it posts
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentgrpo.core.errors import BadValue, ConfigError, DataError, EnvironmentFailure, boundary
from agentgrpo.core.numbers import named, number, refuse_taken
from agentgrpo.core.types import Episode, Exit, Piece, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.base import Observation, Scores
from agentgrpo.environments.conversation import Conversation
from agentgrpo.environments.factory import Attempt, EnvironmentDefaults, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.program.program import (
    API_KEY,
    Call,
    CommandProgram,
    FunctionProgram,
    Program,
    ProgramFailed,
)
from agentgrpo.environments.program.sandbox import CommandSandbox, limits_of_command
from agentgrpo.environments.program.session import Session, SessionLimits
from agentgrpo.environments.program.trained import TrainedBranches, Which
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.retrieval.lazy import extra_missing
from agentgrpo.tasks.columns import columns_of
from agentgrpo.tools.hidden_tests.sandboxed import TESTS, TESTS_FAILED, TESTS_PASSED, HiddenTests
from agentgrpo.tools.workspace import EpisodeWorkspace, Workspaces

if TYPE_CHECKING:
    from agentgrpo.environments.program.endpoint import ProgramEndpoint

REQUESTS = "requests"
_LOG = logging.getLogger(__name__)
_MEASURED = (
    *(REQUESTS, "refused_requests", "branches", "trained_branches", "continued_share"),
    *("unattributed_tokens", "failed_programs", "refused_rewards"),
)
_MOST_NAMES = 100
"""Most names that a program may report."""
_SLACK = 1e-9
"""Tolerance for a sum that rounding has put out of range."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EndpointEnvironments(EnvironmentDefaults, ABC):
    """Implements environments.factory.EnvironmentFactory except `name` and `program`. Raises ConfigError for values out
    of range.

    A program that fails or takes too long is an infrastructure failure of that attempt. A program that fails after the
    policy has hit a limit of the episode is not: the attempt ends, and is worth the rewards reported so far.
    """

    name: ClassVar[str]
    speaks_of_tools = True
    """Its conversations may offer any tools."""
    is_driven = True
    pays_itself = True
    """Its tasks need no reference answers."""
    takes_posts: ClassVar[bool] = True
    """Its program may post rewards by HTTP."""
    renderer: ToolRenderer

    timeout_s: float = 600.0
    """Seconds for one attempt; after that the program is ended, with every process it has started."""
    max_requests: int | None = 100
    """Requests of one attempt; further ones are refused. null = any number."""
    max_tokens: int | None = None
    """Sampled tokens of one attempt, over all its requests. null = any number."""
    max_context: int | None = 4096
    """Tokens of a conversation; null = as many as the engine holds."""
    min_context_left: int = 1
    """A request is refused if fewer tokens are left for the answer."""
    failure_reward: float | None = None
    """Reward of an attempt whose program fails after the policy has answered, added to the rewards already reported:
    for agents that crash when the policy calls an unknown tool. null = an infrastructure failure."""
    reward_range: tuple[float, float] | None = (-1.0, 1.0)
    """Allowed range of the sum of the rewards that a program reports. A post that would leave the range is refused; an
    attempt whose final report leaves it has failed. failure_reward and the share of hidden tests are not subject to it.
    null = any number."""
    tests: HiddenTests | None = None
    """Runs each task's hidden tests on the attempt's directory and adds the share that passes to the reward; null = no
    tests."""
    ignore: tuple[str, ...] | Literal["common"] = ()
    """Request parameters that are ignored instead of refused, such as temperature or tool_choice; common = all that
    frameworks set by themselves (exchange.COMMON), also as one entry of a list."""
    train: Which = "all"
    """Branches that are trained: all, the one answered last, or the ones that match train_system and train_model. Other
    branches are recorded and have no gradient."""
    train_system: str | None = None
    """With train=matching: a regular expression that the system prompt must contain."""
    train_model: str | None = None
    """With train=matching: a regular expression that the model name in the request must contain."""

    workspaces: Workspaces = field(default_factory=Workspaces, init=False)

    def __post_init__(self) -> None:
        least = {"max_requests": 1, "max_tokens": 1, "max_context": 2, "min_context_left": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"environment.{name} {value}: {bound} or more is allowed; raise it")
        if not self.timeout_s > 0:
            raise ConfigError(f"environment.timeout_s {self.timeout_s}: more than 0 is allowed; raise it")
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            raise ConfigError(
                f"environment.reward_range={_shown_range(self.reward_range)}: two numbers are allowed, the smaller one "
                "first"
            )
        _ = self.program, self.endpoint, self.trained
        if self.tests is not None:
            _ = self.tests.sandbox  # raises ConfigError if the sandbox does not hold here

    @cached_property
    def trained(self) -> TrainedBranches:
        return TrainedBranches(which=self.train, system=self.train_system, model=self.train_model)

    @property
    def told(self) -> frozenset[str]:
        """Grading columns that the program is given nevertheless."""
        return frozenset()

    @property
    @abstractmethod
    def program(self) -> Program:
        """The program that runs for each attempt. Raises ConfigError if no program is configured."""

    @cached_property
    def endpoint(self) -> ProgramEndpoint:
        """The HTTP server for all programs. Raises ConfigError if the packages of the extra `serve` are missing."""
        try:
            from agentgrpo.environments.program.endpoint import ProgramEndpoint
        except ImportError as e:
            raise extra_missing(e, what=f"environment={self.name}", extra="serve") from e
        return ProgramEndpoint()

    @property
    def figures(self) -> Figures:
        return Figures(
            columns=_MEASURED,
            headline=("reward", REQUESTS, "cost"),
            by_kind=("reward", REQUESTS),
            quality="reward",
            is_graded=False,
            spending=REQUESTS,
        )

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names of metrics measured around the program, which it may not report itself."""
        tested = () if self.tests is None else (TESTS_PASSED, TESTS_FAILED)
        return frozenset({*_MEASURED, *tested, *(f"exit_{e.value}" for e in Exit)})

    @property
    def limits(self) -> TurnLimits:
        return TurnLimits(max_context=self.max_context, min_context_left=self.min_context_left)

    def make(self, attempt: Attempt) -> ProgramEnvironment:
        return ProgramEnvironment(self, attempt)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory. Raises DataError if the task lacks a column of `tell`, or hidden
        tests that are to be run."""
        if missing := sorted(self.told - _columns(task).keys()):
            raise DataError(
                f"environment.tell={','.join(missing)}: task {task.id} has no such column; it has "
                f"{', '.join(_columns(task))}"
            )
        if self.tests is not None:
            self.tests.refuse_task(task)

    async def close(self) -> None:
        await self.workspaces.close()
        if self.tests is not None:
            await self.tests.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramEnvironments(EndpointEnvironments):
    """Environments of a command or a function. Raises ConfigError unless exactly one of them is given."""

    name: ClassVar[str] = "program"

    command: str | None = None
    """Command started for each attempt, in a new directory; null = function is called."""
    function: Callable[..., Any] | None = None
    """package.module:function, async, called for each attempt; null = command is started."""
    tell: tuple[str, ...] = ()
    """Grading columns of a task that the program is given nevertheless, such as references, answer or tests. If the
    program shows them to the policy, or leaves them where the policy's commands can read them, the policy learns to
    copy."""
    env: tuple[str, ...] = ()
    """Environment variables that the command gets besides the usual ones, such as the key of a service."""
    sandbox: bool = False
    """The command can write only in its workspace, sees only system files, code, the paths in `show` and its own
    processes, and reaches no server but the endpoint. Needs bubblewrap."""
    show: tuple[str, ...] = ()
    """Files and folders of this machine that the command may read in the sandbox, besides code and system files."""
    memory_mb: int = 4096
    """Memory of each process in the sandbox. On a machine with control groups: memory of all of them together,
    including files kept in memory."""
    processes: int = 256
    """Most processes and threads in the sandbox."""
    run_files: tuple[str, ...] = ()
    """Paths named elsewhere in the configuration (questions, models, runs), which the sandbox hides."""

    @property
    def told(self) -> frozenset[str]:
        return frozenset(self.tell)

    @cached_property
    def program(self) -> Program:
        if (self.command is None) == (self.function is None):
            raise ConfigError(
                "environment=program runs one program: environment.command='python my_agent.py', or "
                f"environment.function=my_agent:run; {'both' if self.command else 'neither'} is given"
            )
        if self.command is not None:
            program = CommandProgram(self.command, env=self.env)
            if self.sandbox:
                program.sandbox = CommandSandbox(
                    self.endpoint.serve,
                    program.argv,
                    self.workspaces.new_directory(),
                    limits_of_command(self.timeout_s, self.memory_mb, self.processes),
                    show=self.show,
                    run_files=self.run_files,
                )
            elif self.show:
                raise ConfigError("environment.show is for the sandbox; set environment.sandbox=true, or leave it out")
            else:
                _LOG.warning(
                    "environment.sandbox=false: whatever the command starts runs as user %d, with its files, its "
                    "network and its processes; a policy that writes commands may read the questions with their "
                    "answers, and write what the command reports. environment.sandbox=true keeps it from both",
                    os.geteuid(),
                )
            return program
        if self.sandbox or self.show or self.env:
            raise ConfigError(
                "environment.sandbox, show and env are for environment.command; a function runs in this process"
            )
        assert self.function is not None
        return FunctionProgram(self.function)

    async def close(self) -> None:
        program = self.program
        if isinstance(program, CommandProgram) and program.sandbox is not None:
            program.sandbox.close()
        await super().close()


class ProgramEnvironment:
    """Implements environments.conversation.Driven."""

    def __init__(self, options: EndpointEnvironments, attempt: Attempt) -> None:
        self._options, self._attempt = options, attempt
        self._workspace: EpisodeWorkspace = options.workspaces.open(
            attempt.task, seed=attempt.seed, attempt=attempt.number
        )
        self._scores: dict[str, float] = {}
        self._refused, self._refusal = 0, ""
        """Number of refused rewards, and the reason of the last refusal."""

    async def drive(self, task: Task, new: Callable[[str], Conversation], *, sampling: SamplingParams) -> Observation:
        """See environments.conversation.Driven. Raises EnvironmentFailure, or the engine's own error."""
        options = self._options
        session = Session(
            new,
            stream=self._attempt.stream,
            limits=SessionLimits(max_requests=options.max_requests, max_tokens=options.max_tokens),
            plain_without_tools=not options.renderer.in_turns,
            count_tokens=lambda text: len(options.renderer.observe([Piece(text, trusted=False)])),
            trained=options.trained,
        )
        try:
            said = await self._said_by_program(task, session, sampling)
        except EnvironmentFailure as e:
            worth = 0.0 if session.limit is not None else options.failure_reward
            is_after_answer = e.kind == "program" and session.metrics[REQUESTS] > 0
            if worth is None or not is_after_answer:
                raise self._failed(e, is_after_answer=is_after_answer) from e
            if isinstance(e, ProgramFailed):
                self._note(e.reported)
            self._add(worth)
            metrics = self._measured(session, failed=True)
            return Observation(done=session.limit or Exit.FORMAT_ERROR_LIMIT, metrics=metrics)
        if not session.metrics[REQUESTS]:
            raise EnvironmentFailure(
                "the program has ended without a request to the policy: it must send its requests to OPENAI_BASE_URL, "
                "or to the base_url that its function is given",
                kind="program",
            )
        with boundary(EnvironmentFailure, "what the program said last"):
            answer = self._note(said)
        return Observation(
            done=Exit.ANSWERED,
            answer=session.last if answer is None else answer,
            metrics=self._measured(session, failed=False),
        )

    async def score(self, episode: Episode) -> Scores:
        if self._options.tests is None:
            return self._scores
        found = await self._options.tests.score(self._attempt.task, self._workspace.path, episode.answer)
        self._add(found.share)
        return self._scores | found.metrics

    async def close(self) -> None:
        """Remove the workspace."""
        await self._workspace.__aexit__()

    async def _said_by_program(self, task: Task, session: Session, sampling: SamplingParams) -> object:
        """Run the program and return its result. Raises EnvironmentFailure, or the engine's own error."""
        options = self._options
        ignored = (options.ignore,) if isinstance(options.ignore, str) else options.ignore
        door = options.endpoint.open(session, sampling=sampling, ignored=ignored, on_reward=self._post)
        columns = _columns(task)
        grading = _grading(task, columns)
        withheld = grading - options.told
        async with door as urls:
            call = Call(
                task={key: value for key, value in columns.items() if key not in withheld},
                base_url=urls.base,
                api_key=API_KEY,
                workspace=self._workspace.path,
                reward_url=urls.reward,
                withheld=tuple(sorted(withheld)),
                secret=frozenset(grading),
            )
            running = asyncio.get_running_loop().create_task(options.program.run(call))
            session.on_failure = running.cancel
            try:
                await asyncio.wait((running,), timeout=options.timeout_s)
                is_late = not running.done()
            finally:
                running.cancel()
                await asyncio.wait((running,), timeout=_PATIENCE_S)
        if is_late:
            raise EnvironmentFailure(
                f"the program was not done after {options.timeout_s:g} s and was ended; raise environment.timeout_s, "
                "or lower environment.max_requests",
                kind="timeout",
            )
        if session.failure is not None:
            raise session.failure
        if running.cancelled():
            raise EnvironmentFailure("the program has cancelled itself", kind="program")
        return running.result()

    def _failed(self, error: EnvironmentFailure, *, is_after_answer: bool) -> EnvironmentFailure:
        """Return the program's failure, classified by whether the policy may have caused it."""
        what = f"{error} (a reward was refused before: {self._refusal})" if self._refusal else str(error)
        if not is_after_answer:
            return EnvironmentFailure(what, kind=error.kind)
        advice = "if what it answered may be the cause, environment.failure_reward=0.0 trains on such attempts"
        return EnvironmentFailure(f"{what}; the policy had answered before: {advice}", kind=AFTER_ANSWER)

    def _post(self, posted: object) -> None:
        """Count a reward posted by HTTP, by the program or any other holder of the URL. Raises BadValue."""
        try:
            if not self._options.takes_posts:
                raise BadValue(f"environment={self._options.name} takes no posts: its own process reports rewards")
            self._report(posted, "what was posted")
        except BadValue as e:
            self._refused, self._refusal = self._refused + 1, str(e)
            raise

    def _note(self, said: object) -> str | None:
        """Count the reward in the program's result; return its answer, if it gives one. Raises BadValue."""
        if said is None:
            return None
        if isinstance(said, str):
            return said
        answer = said.get("answer") if isinstance(said, Mapping) else None
        numbers = {k: v for k, v in said.items() if k != "answer"} if isinstance(said, Mapping) else said
        self._report(numbers, "what the program said last")
        return None if answer is None else str(answer)

    def _report(self, said: object, what: str) -> None:
        """Record reported numbers: rewards add up, other numbers replace earlier ones. Raises BadValue, recording
        nothing."""
        numbers = said if isinstance(said, Mapping) else {"reward": said}
        scores = named(numbers, what, number, known=self._scores, most=_MOST_NAMES)
        refuse_taken(scores, self._options.taken, what)
        if "reward" in scores:
            scores["reward"] += self._scores.get("reward", 0.0)
            self._refuse_out_of_range(scores["reward"], what)
        self._scores |= scores

    def _refuse_out_of_range(self, reward: float, what: str) -> None:
        allowed = self._options.reward_range
        if allowed is None or allowed[0] - _SLACK <= reward <= allowed[1] + _SLACK:
            return
        wide = math.ceil(abs(reward))
        wider = _shown_range((min(allowed[0], -wide), max(allowed[1], wide)))
        raise BadValue(
            f"{what} makes the reward {reward:g}, and environment.reward_range={_shown_range(allowed)}; scale the "
            f"reward, or set environment.reward_range={wider}"
        )

    def _add(self, reward: float) -> None:
        """Add to the rewards that the program has reported."""
        self._scores["reward"] = self._scores.get("reward", 0.0) + reward

    def _measured(self, session: Session, *, failed: bool) -> Scores:
        refused = float(self._refused)
        return {**session.metrics, "failed_programs": float(failed), "refused_rewards": refused}


def _columns(task: Task) -> dict[str, Any]:
    return {**columns_of(task), **task.metadata}


def _grading(task: Task, columns: Mapping[str, Any]) -> set[str]:
    """Return the columns that grade an attempt: the references, columns that contain one or are named as other trainers
    name them, and the hidden tests."""
    holds = {key for key, value in columns.items() if key not in _ASKED and _holds(value, task.references)}
    return {"references", "answers", "answer", *holds, *({TESTS, *_TRUTHS} & columns.keys())}


_ASKED = ("id", "data_source", "prompt", "question")
_TRUTHS = ("reward_model", "reward_spec", "golden_answers", "ground_truth", "solution", "label", "output")


def _holds(value: Any, references: Sequence[str]) -> bool:
    """Return whether `value` contains a reference, or a key named like one."""
    if isinstance(value, Mapping):
        return any(key in ("answer", "answers", *_TRUTHS) or _holds(one, references) for key, one in value.items())
    if isinstance(value, list | tuple):
        return any(_holds(one, references) for one in value)
    return isinstance(value, str) and value in references


def _shown_range(bounds: tuple[float, float]) -> str:
    """Return the range as written on a command line."""
    return f"[{bounds[0]:g},{bounds[1]:g}]"


AFTER_ANSWER = "after_answer"
"""`kind` of a program's failure after the policy has answered."""
_PATIENCE_S = 10.0
"""Seconds until a function that ignores its cancellation is abandoned."""
