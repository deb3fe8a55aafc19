"""Runs made by hand for the page, and the page read back."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agentgrpo.core.types import (
    Branch,
    Citation,
    Episode,
    Exit,
    Failure,
    Outcome,
    RewardResult,
    ScoredGroup,
    Segment,
    ToolRecord,
)
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.reports.view.embedding import write_page
from agentgrpo.reports.view.page import HtmlPage, page_of
from agentgrpo.reports.view.source import RunSource
from tests import builders
from tests.engines import tiny

MARKUP = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{csp}}">
<meta name="agentgrpo-source" content="{{source}}">
<style>{{style}}</style>
{{blocks}}
<script>{{script}}</script>
"""
CONFIG = """# agentgrpo resume 'runs/x'
# composed from task=almanac model=path environment=search reward=retriever_aware algorithm=grpo
task: {name: almanac}
model: {name: path, path: some/model}
environment: {name: search}
reward: {name: weighted}
algorithm: {name: grpo}
rollout: {temperature: 0.5}
run:
  max_steps: 4
  final_eval: true
  eval: {temperature: 2.0}
"""
ENVIRONMENT = {"environment": "search", "figures": SEARCH_FIGURES.to_json()}
TASK = builders.task("Who founded Velmor?", "Castin", id="t", kind="founder", supporting=["p1"])
CALL = ToolRecord(
    name="search",
    arguments={"query": "Velmor"},
    outcome=Outcome.SUCCESS,
    turn=0,
    num_results=1,
    result_ids=("p1",),
    cost=0.25,
    seconds=0.5,
)


def said(text: str, *, sampled: bool = False, role: str = "user", logprobs: Sequence[float] = ()) -> Segment:
    """A segment that spells `text`."""
    ids = tuple(tiny.encode(text))
    if not sampled:
        return replace(builders.given(*ids, role=role), text=text)
    return replace(builders.sampled(*ids, logprobs=logprobs or None, version=3), text=text)


ANSWERED = Episode(
    task=TASK,
    sample_index=0,
    branches=(
        Branch(
            segments=(
                said("Q:"),
                said("ab</search>", sampled=True, logprobs=(-0.123456, -0.00001, -2.0)),
                said("\u00e9\U0001f642", role="tool"),
                replace(said("c", sampled=True, logprobs=(-1.0,)), cut_short=True),
            )
        ),
    ),
    answer="Castin",
    exit=Exit.ANSWERED,
    metrics={"search_rounds": 1.0},
    citations=(Citation(doc_id="p1", marker="[R1Q1D1]", text="Castin founded Velmor."),),
    retrieved_ids=("p1",),
    tool_records=(CALL,),
    timings={"time_generate": 1.5, "time_tools": 0.5, "time_queue": 0.25},
)
REWARD = RewardResult(
    total=0.9,
    terms={"correctness": 1.0, "retriever_cost": -0.1},
    dimensions={"correctness": 1.0},
    correctness=1.0,
)
FAILED = Episode(
    task=TASK,
    sample_index=1,
    branches=(),
    answer=None,
    exit=Exit.ERROR,
    metrics={},
    failure=Failure(kind="http_500", stage="RetrieverError", message="no way"),
)


def record(
    run: Path,
    *episodes: Episode,
    rewards: Sequence[RewardResult | None] = (),
    advantages: Sequence[Any] = (),
    name: str = "train-000002",
    dropped: str | None = None,
    tokens: bool = True,
) -> Path:
    """One group."""
    path = run / "trajectories" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = tuple(rewards or [REWARD] * len(episodes))
    write_trajectories(
        path,
        scored=[ScoredGroup(group=builders.group(*episodes), rewards=found)],
        advantages=[list(advantages or [None] * len(episodes))],
        dropped=[dropped],
        step=int(name.removeprefix("train-")) if name.startswith("train-") else 4,
        seed=0,
        split="train" if name.startswith("train-") else "test",
        environment="search",
        record_tokens=tokens,
    )
    return path


def make_run(run: Path) -> Path:
    """A run under way after two steps, with a tokenizer in its checkpoint."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(CONFIG)
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run / "metrics.jsonl").write_text(
        '{"step":0,"agent/search_rounds":2.0,"correctness":0.5,"loss":null}\n'
        '{"step":1,"agent/search_rounds":1.5,"correctness":1.0}\n'
        '{"step":2,"agent/sea'
    )
    (run / "timings.jsonl").write_text('{"step":0,"time/checkpoint":0.5}\n{"step":0,"time/train":2.0}\n')
    tiny.tokenizer().save_pretrained(run / "checkpoints" / "step-000002")
    record(run, ANSWERED, FAILED, rewards=(REWARD, None), advantages=([0.5, -1.0], None))
    record(run, replace(ANSWERED, tool_records=(), timings={}), name="eval-end-greedy", tokens=False)
    return run


def assets(folder: Path, *, script: str = "let a = 1;\r\nlet \u00e9 = '<b>';") -> partial[HtmlPage]:
    """page_of with a page, a style and two scripts of a few words."""
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(MARKUP)
    (folder / "style.css").write_text("body { margin: 0 }\n")
    (folder / "first.js").write_bytes(script.encode())
    (folder / "second.js").write_text("a + 1;\n")
    return partial(page_of, assets=folder, scripts=("first", "second"))


def opened(*runs: Path) -> list[RunSource]:
    sources = [RunSource(RunDir(run), run.name) for run in runs]
    for source in sources:
        assert source.find_tokenizer() is None
    return sources


def blocks_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/octet-stream" id="b-(.*?)" data-bytes="(\d+)">(.*?)</script>', page)
    blocks = {name: zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS) for name, _, text in found}
    assert [len(block) for block in blocks.values()] == [int(size) for _, size, _ in found]
    return {name: json.loads(block) for name, block in blocks.items()}


def written(folder: Path, *runs: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The blocks of a page of these runs, and what could not be read."""
    out = folder / "page.html"
    done = write_page(out, opened(*runs), assets(folder / "assets")("embedded"))
    blocks = blocks_of(out.read_text())
    assert (done.num_episodes, done.num_bytes) == (blocks["overview"]["num_episodes"], out.stat().st_size)
    return blocks, done.damage
