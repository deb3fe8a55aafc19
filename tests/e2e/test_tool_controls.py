"""Does a PASS with tools mean anything? A short run that learns gets one; with one part broken, it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.tools.state import tool_figures
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.rewards.registry import TERMS
from agentgrpo.rewards.reward import Reward
from agentgrpo.run.evaluate import Evaluation, Scorecard, evaluate
from agentgrpo.run.warm_start import scripted
from agentgrpo.tasks.base import ToolDemonstrator
from agentgrpo.tasks.scripts import Script, answer, call, turn_after
from agentgrpo.tools.base import Tool
from agentgrpo.tools.calculator import Calculator
from agentgrpo.tools.files import Files
from agentgrpo.tools.python import PythonTool
from agentgrpo.tools.workspace import Workspaces
from agentgrpo.worlds.workshop.dataset import Workshop
from agentgrpo.worlds.workshop.demonstrator import compute, lookup
from agentgrpo.worlds.workshop.world import NOTE, Problem, draw_problem, kinds
from tests.renderers.families import renderer
from tests.runners import tool_runner

SHORT = [
    "experiment=tools",
    "task.test_tasks=240",
    "rollout=workshop_tiny",
    "optimizer=tiny",
    "hardware.threads=1",
    "run.screen=quiet",
    "run.log_with=[]",
    "run.max_steps=24",
    "run.checkpoint_every=24",
    "run.eval_every=0",
    "run.eval.tasks=240",
    "run.record_tokens=false",
    "guards=none",  # a guard would end some of the broken runs early
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default start weights: two CPU-minutes the first time, then they are cached."""
    run_dir = tmp_path_factory.mktemp("warm start")
    assert main(["train", *SHORT, f"run.dir='{run_dir}'", "run.max_steps=1", "run.final_eval=false"]) == 0
    state = json.loads((run_dir / "checkpoints" / "step-000001" / "trainer" / "state.json").read_text())
    return Path(state["state"]["start"]["folder"])


Train = Callable[..., dict[str, Any]]


@pytest.fixture
def verdict(start: Path, tmp_path: Path) -> Train:
    """verdict(*overrides) -> eval.json of a short run from the start weights."""

    def train(*overrides: str) -> dict[str, Any]:
        model = ["model=path", f"model.path='{start}'", "model.describe_tools=false"]
        assert main(["train", *SHORT, *model, f"run.dir='{tmp_path}'", *overrides]) == 0
        result: dict[str, Any] = json.loads((tmp_path / "eval.json").read_text())
        return result

    return train


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_positive_control_a_short_run_passes(verdict: Train) -> None:
    result = verdict()
    assert result["verdict"] == "PASS", result["reason"]
    assert result["sampled"]["difference"]["success"][1] > 0.2
    assert result["sampled"]["difference"]["invalid_calls"][2] < 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_negative_control_shuffled_rewards(verdict: Train) -> None:
    result = verdict("reward.name=tests.e2e.controls:ShuffledReward")
    assert result["verdict"] != "PASS", result


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_negative_control_tools_that_answer_with_other_numbers(verdict: Train) -> None:
    lies = ["~tools.calculator", "~tools.python", "~tools.files", "+tools.lies.name=tests.e2e.controls:RandomTools"]
    result = verdict(*lies)
    assert result["verdict"] != "PASS", result
    assert result["sampled"]["trained"]["success"] < 0.15


# --- scripted policies


class Scripted:
    """A demonstrator that goes through a script of its own."""

    def __init__(self, problem: Problem, script: Callable[[Problem], Script]) -> None:
        self._problem, self._script = problem, script

    def next_turn(self, answered: Sequence[str]) -> ParsedTurn:
        return turn_after(answered, self._script(self._problem))


def never_calls(problem: Problem) -> Script:
    """Answers with the first number of the question."""
    yield from ()
    return answer(next(iter(re.findall(r"\d+", problem.question)), "0"))


def always_calls(problem: Problem) -> Script:
    """Reads every table before it looks up, and computes whatever it answers in python."""
    if problem.kind.note:
        yield call("read_file", path=NOTE)
    values = []
    for item in problem.items:
        observed = yield call("read_file", path=f"{problem.kind.table}.txt")
        if found := re.search(rf"^{item} (\d+)$", observed, re.MULTILINE):
            values.append(found[1])
            continue
        observed = yield lookup(problem.kind.table, item)
        if observed.startswith("error"):
            observed = yield lookup("imports", item)
        values.append(observed)
    return answer((yield compute(problem.expression.format(*values), python=True)))


async def card_of(
    make: Callable[[Task], ToolDemonstrator], tasks: list[Task], renderer: ToolRenderer | None = None
) -> Scorecard:
    tokenizer = train_tokenizer((), vocab_size=400, control_strings=Workshop.language.control_strings or (), words=())
    renderer = renderer or ReactRenderer(tokenizer=tokenizer)
    demonstrators = {task.id: make(task) for task in tasks}
    tools: dict[str, Tool] = {"calculator": Calculator(), "python": PythonTool()}
    tools |= {tool.spec.name: tool for tool in Files(offered=("lookup", "read_file"), max_lines=3).tools}
    workspaces = Workspaces()
    judge = ExactMatch()
    prices = {"calculator": -0.1, "lookup": -0.1, "read_file": -0.2, "python": -0.3}
    terms = {"correctness": TERMS["correctness"](weight=1.0), "cost": TERMS["tool_cost"](prices=prices, other=-0.1)}
    try:
        made, _ = await evaluate(
            runner=tool_runner(
                engine=scripted(renderer, demonstrators.__getitem__),
                renderer=renderer,
                tools=tools,
                workspaces=workspaces,
            ),
            judge=judge,
            reward=Reward(judge=judge, terms=terms, cost_when_wrong=0.0),
            tasks=tasks,
            sampling=SamplingParams(max_tokens=256),
            stream="eval",
            samples_per_task=1,
            prices={},
            rollout=RolloutSettings(),
            max_error_fraction=0.0,
        )
    finally:
        await workspaces.close()
        for tool in tools.values():
            await tool.close()
    return made


def compared(before: Scorecard, after: Scorecard) -> str:
    evaluation = Evaluation(
        figures=tool_figures(("calculator", "python", "lookup", "read_file")),
        baseline={"greedy": before, "sampled": before},
        trained={"greedy": after, "sampled": after},
        oracle=None,
        margin=0.02,
        criterion="thrift",
        min_discrimination=0.15,
    )
    result = evaluation.to_json()
    return f"{result['verdict']}: {result['reason']}"


@pytest.mark.parametrize("name", ["qwen3", "mistral", "tags in chat"])
async def test_the_oracle_is_right_in_a_models_own_format(name: str) -> None:
    dataset = Workshop(train_tasks=1, dev_tasks=1, test_tasks=12)
    card = await card_of(dataset.oracle, list(dataset.split("test")), renderer(name))
    assert card.means()["success"] == 1.0


@pytest.mark.slow
async def test_scripted_policies() -> None:
    """The oracle solves everything with the fewest calls; who always calls pays more for the same and does not pass;
    who never calls is right where no tool is needed, and fails."""
    dataset = Workshop(train_tasks=1, dev_tasks=1, test_tasks=120)
    tasks = list(dataset.split("test"))

    def problem(task: Task) -> Problem:
        return draw_problem(kinds()[task.metadata["kind"]], "test", 0, "test", tasks.index(task))

    ideal = await card_of(dataset.oracle, tasks)
    always = await card_of(lambda task: Scripted(problem(task), always_calls), tasks)
    never = await card_of(lambda task: Scripted(problem(task), never_calls), tasks)
    figures = ideal.means()
    assert (figures["success"], figures["tool_calls"], figures["failed_calls"]) == (1.0, 19 / 12, 1 / 12)
    assert (figures["invalid_calls"], figures["calls/python"], figures["calls/lookup"]) == (0.0, 1 / 12, 8 / 12)
    assert always.means()["success"] == 1.0
    assert always.means()["calls/python"] == 1.0
    assert (never.means()["success"], never.means()["tool_calls"]) == (1 / 12, 0.0)
    assert ideal.means()["reward"] > always.means()["reward"] + 0.2 > never.means()["reward"] + 0.4
    assert compared(ideal, always) == "INCONCLUSIVE: failed calls are not lower beyond the interval's noise"
    assert compared(ideal, never) == "FAIL: success fell"
