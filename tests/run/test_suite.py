"""A suite through the command line: two environments, a policy of random weights, rewards by its tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch

from agentgrpo.cli.main import main
from agentgrpo.core.types import Episode
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.training.policy import Policy
from tests.engines import tiny
from tests.run.tiny_run import recorded, rows

SPLITS = (("train", 6), ("dev", 2), ("test", 2))
CODE = "tests.run.test_suite:even"
PRESETS = {
    "facts": f"""
defaults:
  - /task@facts.task: jsonl
  - _self_
facts:
  weight: 2
  group_size: 4
  reward_scale: 0.5
  prices: {{web: 7.0}}
  task: {{questions: facts.jsonl, corpus: corpus.jsonl}}
  reward: {{name: weighted, terms: {{even: {{name: "{CODE}", weight: 1.0}}}}}}
""",
    "sums": """
defaults:
  - /task@sums.task: jsonl
  - /environment@sums.environment: tools
  - /tools@sums.tools: calculator
  - _self_
sums:
  task: {questions: sums.jsonl}
  environment: {max_turns: 2, min_context_left: 8, max_context: 300}
""",
}
RUN = [
    "suite=[facts,sums]",
    "model.path=model",
    "model.describe_tools=false",
    "environment.max_turns=2",
    "environment.max_search_limit=1",
    "reward=correctness",
    f"+reward.terms.even={{name: '{CODE}', weight: 1.0}}",
    "rollout.max_tokens=8",
    "rollout.tasks_per_step=3",
    "rollout.group_size=2",
    "optimizer=tiny",
    "optimizer.warmup_steps=0",
    "run.max_steps=2",
    "run.checkpoint_every=1",
    "run.screen=quiet",
    "run.log_with=[]",
    "hardware.threads=1",
    "guards=none",
]


def even(episode: Episode) -> float:
    tokens = [t for turn in episode.turns for t in turn.token_ids]
    return sum(t % 2 == 0 for t in tokens) / len(tokens)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Policy(model=tiny.model("qwen2"), tokenizer=tiny.tokenizer()).save(Path("model"))
    for member in ("facts", "sums"):
        asked = [
            {"id": f"{split}{i}", "question": f"{member} {split} {i}?", "answers": str(i), "split": split}
            for split, count in SPLITS
            for i in range(count)
        ]
        Path(f"{member}.jsonl").write_text("\n".join(map(json.dumps, asked)))
    Path("corpus.jsonl").write_text(json.dumps({"id": "d", "text": "facts train 1"}))
    Path("presets", "suite").mkdir(parents=True)
    for name, text in PRESETS.items():
        Path("presets", "suite", f"{name}.yaml").write_text(text)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train(run_dir: str, *overrides: str) -> Path:
    assert main(["train", "--config-dir", "presets", *RUN, f"run.dir={run_dir}", *overrides]) == 0
    return Path(run_dir)


def records(run_dir: Path, step: int) -> dict[str, list[TrajectoryRecord]]:
    """By member."""
    found: dict[str, list[TrajectoryRecord]] = {}
    for record in read_trajectories(run_dir / "trajectories" / f"train-{step:06d}.jsonl"):
        found.setdefault(record.task.partition(":")[0], []).append(record)
    return found


def of_tokens(record: TrajectoryRecord) -> float:
    tokens = [t for b in record.branches for s in b.segments if s.sampled for t in s.token_ids]
    return sum(t % 2 == 0 for t in tokens) / len(tokens)


def test_each_member_has_its_own_share_groups_scale_environment_and_tags() -> None:
    run_dir = train("r", "run.final_eval=false", "run.eval_every=0", "run.max_steps=1", "run.checkpoint_every=0")
    for step, tags in enumerate(rows(run_dir)):
        found = records(run_dir, step)
        assert {member: len(own) for member, own in found.items()} == {"facts": 2 * 4, "sums": 1 * 2}
        for member, scale in (("facts", 0.5), ("sums", 1.0)):
            own = found[member]
            assert {r.environment["name"] for r in own} == {{"facts": "search", "sums": "tools"}[member]}
            assert [r.reward for r in own] == pytest.approx([scale * of_tokens(r) for r in own])
            assert tags[f"suite/{member}/reward/mean"] == pytest.approx(fmean(r.reward or 0.0 for r in own))
        assert "suite/facts/agent/search_rounds" in tags
        assert "suite/sums/agent/tool_calls" in tags
        assert not {"agent/search_rounds", "agent/tool_calls", "reward/term/correctness"} & tags.keys()
        assert tags["gradients/norm"] > 0


@pytest.mark.slow
def test_a_suite_that_is_killed_ends_as_if_it_had_not_been() -> None:
    whole = train("whole", "run.eval_every=1", "run.eval_tasks=4", "run.eval.tasks=4")
    shutil.copytree(whole, "killed")
    killed = Path("killed")
    shutil.rmtree(killed / "checkpoints" / "step-000002")
    (killed / "eval.json").unlink()
    code = [f"suite.facts.reward.terms.even.name={CODE}", f"reward.terms.even.name={CODE}"]
    assert main(["resume", "killed", *code]) == 0
    assert recorded(killed) == recorded(whole)
    assert (killed / "eval.json").read_bytes() == (whole / "eval.json").read_bytes()


@pytest.mark.slow
def test_the_evaluation_has_a_block_for_each_member_and_their_mean() -> None:
    run_dir = train("r", "run.eval_every=1", "run.eval_tasks=4", "run.eval.tasks=4", "run.max_steps=2")
    result = json.loads((run_dir / "eval.json").read_text())
    facts, sums = result["suite"]["facts"], result["suite"]["sums"]
    assert (result["n"], facts["n"], sums["n"]) == (4, 2, 2)
    assert facts["figures"]["headline"][:2] == ["correctness", "search_rounds"]
    assert facts["figures"]["prices"] == {"web": 0.05, "vdb": 0.01, "rerank": 0.02}
    assert result["figures"]["members"]["facts"]["prices"] == {"web": 7.0, "vdb": 0.01, "rerank": 0.02}
    assert sums["figures"]["quality"] == "success"
    assert sorted(result["greedy"]["kinds"]) == ["facts", "sums"]
    for mode in ("greedy", "sampled"):
        means = [block[mode]["trained"]["reward"] for block in (facts, sums)]
        assert result[mode]["trained"]["reward"] == pytest.approx(fmean(means))
    dev = rows(run_dir)[1]
    assert dev["dev/reward"] == pytest.approx(fmean(dev[f"suite/{m}/dev/reward"] for m in ("facts", "sums")))
    for verb in ("show", "view"):
        assert main([verb, "r"]) == 0
    code = [f"suite.facts.reward.terms.even.name={CODE}", f"reward.terms.even.name={CODE}"]
    assert main(["replay", "r", "--step", "1", "--all", *code]) == 0
