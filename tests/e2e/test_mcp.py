"""A training run whose tools come from two real MCP servers: one made with the SDK, and one that is published."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from agentgrpo.cli.main import main
from agentgrpo.core.types import Branch, Episode, Message, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.renderers.react import STOP, ReactRenderer
from agentgrpo.run.equipment import by_name
from agentgrpo.tools.mcp.toolset import Mcp
from agentgrpo.tools.workspace import Workspaces
from tests.e2e.conftest import rows
from tests.engines.tiny import encode, model, tokenizer
from tests.runners import tool_runner

SMALL = [sys.executable, str(Path(__file__).parents[1] / "tools" / "mcp_server.py")]
TIME = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "UTC"]
TURNS = {
    "How much is 19 and 23?": ("add", {"a": 19, "b": 23}, "42"),
    "It is 12:00 in UTC. How late is it in Tokyo?": (
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        "21:00",
    ),
}
"""Question -> the tool that answers it, its arguments, and the answer."""
LIMITS = {"max_context": 512, "min_context_left": 8, "max_tool_output_tokens": 60}

pytestmark = pytest.mark.skipif(
    not Path(TIME[0]).exists(), reason="the published server is not installed: pip install mcp-server-time"
)


def script(key: SeedKey, context: str) -> str:
    name, arguments, answer = next(turns for question, turns in TURNS.items() if question in context)
    if "Observation:" in context:
        return f"Final Answer: {answer}<|eos|>"
    return f"Action: {name}\nAction Input: {json.dumps(arguments)}{STOP}"


def demonstrations() -> list[Episode]:
    """An episode for each question, with the servers' own answers in it."""
    servers = {"small": Mcp(command=tuple(SMALL)), "time": Mcp(command=tuple(TIME))}
    renderer = ReactRenderer(tokenizer=tokenizer())
    engine = ScriptedEngine(encode=encode, decode=renderer.decode, script=script, max_context=512)
    runner = tool_runner(engine=engine, renderer=renderer, tools=by_name(servers), workspaces=Workspaces(), **LIMITS)

    async def act() -> list[Episode]:
        tasks = [
            Task(id=f"t{i}", messages=(Message(role="user", content=question),), references=(answer,))
            for i, (question, (*_, answer)) in enumerate(TURNS.items())
        ]
        sampling = SamplingParams(max_tokens=150, stop=renderer.stop_strings, stop_token_ids=renderer.stop_token_ids)
        episodes = [await runner.run(task, sample_index=0, stream="demo", sampling=sampling) for task in tasks]
        for server in servers.values():
            await server.close()
        return episodes

    return asyncio.run(act())


def taught(branches: Sequence[Branch]) -> PreTrainedModel:
    """A tiny model that knows these few turns by heart."""
    policy = model("qwen3")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(90):
        optimizer.zero_grad()
        for branch in branches:
            ids, mask = torch.tensor([branch.token_ids]), torch.tensor(branch.loss_mask[1:], dtype=torch.bool)
            logits = policy(input_ids=ids).logits[0, :-1][mask]
            torch.nn.functional.cross_entropy(logits, ids[0, 1:][mask]).backward()
        optimizer.step()
    return policy


@pytest.mark.slow
def test_a_run_trains_on_what_the_servers_answer(tmp_path: Path) -> None:
    episodes = demonstrations()
    assert [(e.answer, e.exit, [r.outcome for r in e.tool_records]) for e in episodes] == [
        ("42", "answered", ["success"]),
        ("21:00", "answered", ["success"]),
    ]
    start = tmp_path / "start"
    taught([branch for episode in episodes for branch in episode.branches]).save_pretrained(start)
    tokenizer().save_pretrained(start)
    questions = [
        {"id": f"{split}-{i}-{n}", "question": opening + question, "answers": [answer], "split": split}
        for split, opening in (("train", ""), ("dev", "Dev: "), ("test", "Test: "))
        for n in range(4)
        for i, (question, (*_, answer)) in enumerate(TURNS.items())
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    run_dir = tmp_path / "run"
    command = ["train", "experiment=none", "task=jsonl", f"task.questions='{tmp_path / 'questions.jsonl'}'"]
    command += ["model=path", f"model.path='{start}'", "model.describe_tools=false", "model.renderer=react"]
    command += [
        "environment=tools",
        *(f"environment.{key}={value}" for key, value in LIMITS.items()),
        "rollout.max_tokens=150",
    ]
    for name, program in (("small", SMALL), ("time", TIME)):
        command += [f"+tools.{name}.name=mcp", f"+tools.{name}.command={json.dumps(program)}"]
    command += ["reward=correctness", "rollout.tasks_per_step=4", "rollout.group_size=4", "optimizer.lr=1e-3"]
    command += ["run.max_steps=2", "run.eval_every=0", "run.final_eval=false", "hardware.threads=1", "run.screen=quiet"]
    assert main([*command, "run.log_with=[]", f"run.dir='{run_dir}'"]) == 0

    records = [r for n in (0, 1) for r in read_trajectories(run_dir / "trajectories" / f"train-{n:06d}.jsonl")]
    calls = {(call["name"], call["outcome"]) for record in records for call in record.agent["tools"]}
    assert {("add", "success"), ("convert_time", "success")} <= calls
    assert len(records) == 2 * 4 * 4
    metrics = rows(run_dir / "metrics.jsonl")
    assert [(row["step"], row["policy/logprob_gap_max"] <= 1e-4) for row in metrics] == [(0, True), (1, True)]
    before, after = (load_file(folder / "model.safetensors") for folder in (start, run_dir / "checkpoints/step-000002"))
    assert [name for name in before if not torch.equal(before[name], after[name])]
