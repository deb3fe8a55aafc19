"""Unmodified agents, written with published packages, trained for three steps on a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentgrpo.cli.main import main
from agentgrpo.records.trajectories import read_trajectories
from tests.environments.program.played import ADDS, SpellingEngine, play
from tests.renderers import families

HERE = Path(__file__).parent


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the agents, questions and a tiny random chat model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    tokenizer = families.tokenizer("chatml")
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.15,
    )
    Qwen2ForCausalLM(shape).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"id": f"q{i}", "prompt": f"What is {i}+1?", "split": "train"} for i in range(4)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path
    for name in ("sdk_agent",):
        sys.modules.pop(name, None)


def trained(*settings: str, run: str) -> Path:
    """A run of three steps."""
    given = ["experiment=none", "task.questions=q.jsonl", "model.path=model", "environment=program"]
    given += ["reward=environment", "algorithm.advantage=none", "rollout.max_tokens=24", "rollout.tasks_per_step=2"]
    given += ["rollout.group_size=2", "hardware.threads=1", "run.max_steps=3", "run.eval_every=0"]
    given += ["run.final_eval=false", "run.screen=quiet", "run.log_with=[]", f"run.dir={run}"]
    assert main(["train", *given, *settings]) == 0
    return Path(run)


def check(run: Path, *, turns: int) -> None:
    """Exact log-probs, one branch each, and what is recorded as sampled."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3
    for step in steps:
        assert (step["program/branches"], step["program/continued_share"]) == (1.0, 1.0)
        assert step["agent/unattributed_tokens"] == 0.0
        assert step["policy/logprob_gap_max"] <= 1e-4
    for i in range(3):
        for record in read_trajectories(run / "trajectories" / f"train-{i:06d}.jsonl"):
            [branch] = record.branches
            assert sum(segment.sampled for segment in branch.segments) == turns
            assert record.error is None


@pytest.mark.slow
def test_an_agent_with_openais_sdk_is_trained_streamed_or_not(desk: Path) -> None:
    pytest.importorskip("openai")
    whole = trained("environment.function=sdk_agent:run", run="whole")
    check(whole, turns=3)
    pieces = trained("environment.function=sdk_agent:stream", run="pieces")
    for i in range(3):
        name = f"trajectories/train-{i:06d}.jsonl"
        assert (whole / name).read_bytes() == (pieces / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("ask", ["run", "stream"])
async def test_calls_reach_the_sdk_and_come_back(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    from tests.environments.program import sdk_agent

    engine = SpellingEngine([f"I add.{ADDS}", "<tool_call>" + ADDS, ADDS])
    episode = await play(getattr(sdk_agent, ask), engine)
    assert [s.token_ids for s in episode.turns] == engine.answered
    assert len(episode.branches) == 1
    assert (episode.metrics["continued_share"], episode.metrics["unattributed_tokens"]) == (1.0, 0.0)
    assert "<tool_response>\n3\n</tool_response>" in "".join(s.text for s in episode.branches[0].segments)
