"""Does a PASS mean anything? A short run that learns gets one; the same run with one part broken does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run

LEARNING = [
    "run.max_steps=14",
    "run.checkpoint_every=14",
    "run.eval_every=0",
    "run.eval.tasks=120",
    "run.max_error_fraction=1.0",
]


def verdict(run_dir: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run_dir / "eval.json").read_text())
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_positive_control_a_short_run_passes(train_well: Run) -> None:
    result = verdict(train_well(*LEARNING))
    assert result["verdict"] == "PASS", result["reason"]
    assert result["sampled"]["difference"]["web_searches"][2] < 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "broken",
    [
        "reward.name=tests.e2e.controls:ShuffledReward",
        "counterfactual=shuffled",
        "counterfactual=blank",
        "counterfactual=swapped",
        "judge.name=tests.e2e.controls:ConstantJudge",
    ],
)
def test_negative_controls_do_not_pass(train_well: Run, broken: str) -> None:
    result = verdict(train_well(*LEARNING, broken, "guards=none"))  # a guard would end some of them early
    assert result["verdict"] != "PASS", result


async def test_a_policy_that_never_searches_fails(tmp_path: Path) -> None:
    from agentgrpo.config.settings import RolloutSettings
    from agentgrpo.engines.base import SamplingParams
    from agentgrpo.engines.scripted import ScriptedEngine
    from agentgrpo.environments.search.metrics import SEARCH_FIGURES
    from agentgrpo.judges.answers import ExactMatch
    from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
    from agentgrpo.renderers.plain import PlainRenderer
    from agentgrpo.renderers.train_tokenizer import train_tokenizer
    from agentgrpo.retrieval.embedded import embedded
    from agentgrpo.rewards.reward import Reward
    from agentgrpo.rewards.terms import Correctness
    from agentgrpo.run.evaluate import Evaluation, Scorecard, evaluate
    from agentgrpo.worlds.almanac.dataset import Almanac
    from tests.runners import search_runner

    dataset = Almanac(num_companies=12, dev_companies=4, test_companies=12)
    tasks = {task.id: task for task in dataset.split("test")}
    renderer = PlainRenderer(tokenizer=train_tokenizer([t.question for t in tasks.values()], vocab_size=640))
    retrievers = embedded(corpora=dataset.corpora())

    async def card(searches: bool) -> Scorecard:
        engine = ScriptedEngine(
            encode=renderer.encode_action,
            decode=renderer.decode,
            script=lambda key, context: (
                dataset.oracle(tasks[key.task_id]).act(context) if searches else "<answer> Castin</answer>"
            ),
        )
        runner = search_runner(
            engine=engine,
            renderer=renderer,
            retrievers=retrievers,
            evidence=HeuristicEvidence(),
            describe_tools=False,
            evidence_plateau_min_gain=None,
            require_sufficient_evidence_before_answer=False,
        )
        judge = ExactMatch()
        made, _ = await evaluate(
            runner=runner,
            judge=judge,
            reward=Reward(judge=judge, terms={"correctness": Correctness(weight=1.0)}),
            tasks=list(tasks.values())[:60],
            sampling=SamplingParams(),
            stream="eval",
            samples_per_task=1,
            prices={"web": 0.05, "vdb": 0.01, "rerank": 0.02},
            rollout=RolloutSettings(),
            max_error_fraction=0.0,
        )
        return made

    searching, silent = await card(True), await card(False)
    assert searching.means()["correctness"] > 0.7
    assert silent.means()["search_rounds"] == 0
    result = Evaluation(
        figures=SEARCH_FIGURES,
        baseline={"greedy": searching, "sampled": searching},
        trained={"greedy": silent, "sampled": silent},
        oracle=None,
        margin=0.02,
        criterion="thrift",
        min_discrimination=0.05,
    ).to_json()
    assert (result["verdict"], result["reason"]) == ("FAIL", "correctness fell")
