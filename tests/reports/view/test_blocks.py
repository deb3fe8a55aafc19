"""What a run comes to in the page: every block, value by value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.records.run_dir import RunDir
from agentgrpo.reports.view.facts import names_of
from tests import builders
from tests.reports.view import made

CALLED = {
    "turn": 0,
    "name": "search",
    "arguments": {"query": "Velmor"},
    "outcome": "success",
    "detail": "",
    "num_results": 1,
    "result_ids": ["p1"],
    "cached": False,
    "cost": 0.25,
    "seconds": 0.5,
    "was_cut": False,
}


def message(text: str, role: str = "user", **other: Any) -> dict[str, Any]:
    plain = {
        "branch": 0,
        "role": role,
        "sampled": role == "assistant",
        "version": 3 if role == "assistant" else None,
        "text": text,
        "advantage": None,
        "pieces": None,
        "logprobs": None,
        "ratios": None,
        "cut_short": False,
    }
    return plain | other


ANSWERED = {
    "id": "t/0",
    "task": "t",
    "group": "t",
    "metadata": {"kind": "founder", "supporting": ["p1"]},
    "references": ["Castin"],
    "question": "Who founded Velmor?",
    "messages": [
        message("Q:", pieces=[1, 1]),
        message("ab</search>", "assistant", pieces=[1, 1, 9], logprobs=[-0.1235, 0, -2.0], advantage=0.5),
        message("\u00e9\U0001f642", "tool", pieces=[0, 1, 0, 0, 0, 2]),
        message("c", "assistant", pieces=[1], logprobs=[-1.0], advantage=-1.0, cut_short=True),
    ],
    "tools": [CALLED],
    "answer": "Castin",
    "reward": 0.9,
    "branch_rewards": [],
    "terms": {"correctness": 1.0, "retriever_cost": -0.1},
    "dimensions": {"correctness": 1.0},
    "correctness": 1.0,
    "reason": "",
    "metrics": {"search_rounds": 1.0},
    "costs": {"retriever_cost": 0.1},
    "citations": [{"doc_id": "p1", "marker": "[R1Q1D1]", "text": "Castin founded Velmor."}],
    "retrieved_ids": ["p1"],
    "memory": [],
    "error": None,
    "dropped": None,
    "status": "completed",
    "exit": "answered",
    "policy_version": 3,
    "timings": {"time_generate": 1.5, "time_tools": 0.5, "time_queue": 0.25},
}
FAILED = ANSWERED | {
    "id": "t/1",
    "messages": [],
    "tools": [],
    "answer": None,
    "reward": None,
    "terms": {},
    "dimensions": {},
    "correctness": None,
    "metrics": {},
    "costs": {},
    "citations": [],
    "retrieved_ids": [],
    "error": {"kind": "http_500", "stage": "RetrieverError", "message": "no way"},
    "status": "failed",
    "exit": "error",
    "policy_version": None,
    "timings": {},
}
UNTOLD = ANSWERED | {
    "messages": [
        message("Q:"),
        message("ab</search>", "assistant"),
        message("\u00e9\U0001f642", "tool"),
        message("c", "assistant", cut_short=True),
    ],
    "tools": [],
    "timings": {},
}


def test_every_block_of_a_run(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    blocks, damage = made.written(tmp_path, run)
    assert damage == ()
    assert [*blocks] == ["chunk-0", "overview", "index"]
    assert blocks["chunk-0"] == [ANSWERED, FAILED, UNTOLD]
    assert json.dumps(blocks["chunk-0"][0]["messages"][1]["logprobs"]) == "[-0.1235, 0, -2.0]"  # no -0.0
    assert blocks["index"] == {
        "file": [0, 0, 1],
        "step": [2, 2, 4],
        "task": {"values": ["t"], "codes": [0, 0, 0]},
        "sample": [0, 1, 0],
        "kind": {"values": ["founder"], "codes": [0, 0, 0]},
        "exit": {"values": ["answered", "error"], "codes": [0, 1, 0]},
        "status": {"values": ["completed", "failed"], "codes": [0, 1, 0]},
        "error": {"values": [None, "http_500/RetrieverError"], "codes": [0, 1, 0]},
        "dropped": {"values": [None], "codes": [0, 0, 0]},
        "reward": [0.9, None, 0.9],
        "correctness": [1.0, None, 1.0],
        "advantage": [-0.25, None, None],
        "turns": [2, 0, 2],
        "tokens": [4, 0, 4],
        "calls": [1, 0, 0],
        "cost": [0.1, 0.0, 0.1],
        "seconds": [2.25, None, None],
    }
    assert blocks["overview"] == {
        "version": 1,
        "chunk": 64,
        "num_episodes": 3,
        "runs": [
            {
                "name": "x",
                "path": str(run),
                "task": "almanac",
                "model": "some/model",
                "reward": "retriever_aware",
                "agent": "search",
                "algorithm": "grpo",
                "max_steps": 4,
                "steps_done": 2,
                "finished": False,
                "stopped": None,
                "verdict": None,
                "config": made.CONFIG,
                "environment": made.ENVIRONMENT,
                "metrics": {
                    "step": [0, 1],
                    "tags": {"agent/search_rounds": [2.0, 1.5], "correctness": [0.5, 1.0], "loss": [None, None]},
                },
                "timings": {"step": [0], "tags": {"time/checkpoint": [0.5], "time/train": [2.0]}},
                "profile": {"step": [], "tags": {}},
                "evaluation": None,
                "labels": {"agent/search_rounds": "rounds", "correctness": "correctness"},
                "has_tokens": True,
                "has_ratio": False,
                "ratio_of": None,
                "damage": [],
            }
        ],
        "files": [
            {
                "run": 0,
                "name": "train-000002",
                "policy": "train",
                "step": 2,
                "mode": "sampled",
                "first": 0,
                "count": 2,
                "damaged": None,
            },
            {
                "run": 0,
                "name": "eval-end-greedy",
                "policy": "end",
                "step": None,
                "mode": "greedy",
                "first": 2,
                "count": 1,
                "damaged": None,
            },
        ],
    }


def test_the_last_checkpoint_is_of_the_last_step_and_a_stop_is_said(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    (run / "metrics.jsonl").write_text('{"step":0}\n{"step":1}\n')
    rows = [{"step": 0, "time/train": 2.0}, {"step": 1, "time/checkpoint": 0.5}, {"step": 1, "time/train": 3.0}]
    rows.append({"step": 2, "time/checkpoint": 0.25})
    (run / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "stopped.json").write_text(json.dumps({"step": 2, "max_steps": 4, "reason": "SIGTERM", "raised": ""}))
    [facts] = made.written(tmp_path, run)[0]["overview"]["runs"]
    assert facts["timings"] == {"step": [0, 1], "tags": {"time/checkpoint": [None, 0.75], "time/train": [2.0, 3.0]}}
    assert (facts["stopped"], facts["damage"]) == ("stopped after step 2 of 4: SIGTERM", [])


def test_an_evaluation_alone(tmp_path: Path) -> None:
    run = tmp_path / "e"
    made.record(run, made.ANSWERED, name="eval-end-sampled", tokens=False)
    figures = {"headline": ["success", "tool_calls"], "by_kind": {"tool_calls": "calls"}, "quality": "success"}
    evaluation = {"verdict": "PASS", "figures": figures}
    (run / "eval.json").write_text(json.dumps(evaluation))
    blocks, damage = made.written(tmp_path, run)
    [facts] = blocks["overview"]["runs"]
    assert damage == ()
    expected = {"config": "", "task": None, "max_steps": None, "steps_done": 0, "finished": True, "verdict": "PASS"}
    expected |= {"evaluation": evaluation, "has_tokens": False, "labels": {}}
    assert {key: facts[key] for key in expected} == expected


def test_labels_come_from_the_evaluation(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    figures = {
        "headline": ["success", "tool_calls", "cost"],
        "by_kind": {"success": "success", "tool_calls": "calls"},
        "quality": "success",
    }
    (run / "metrics.jsonl").write_text('{"step":3,"agent/tool_calls":2.0,"correctness":0.5,"cost/episode":0.1}\n')
    (run / "eval.json").write_text(json.dumps({"verdict": "FAIL", "figures": figures}))
    [facts] = made.written(tmp_path, run)[0]["overview"]["runs"]
    assert facts["labels"] == {"correctness": "success", "agent/tool_calls": "calls", "cost/episode": "cost"}
    assert (facts["finished"], facts["steps_done"], facts["max_steps"]) == (True, 4, 4)


def test_a_memory_run_keeps_what_was_written_and_what_each_chunk_got(tmp_path: Path) -> None:
    change = {"op": "insert", "before": None, "after": {"id": "a", "kind": "fact", "text": "b", "chunk": 0}}
    memory = [{"chunk": 0, "changes": [change], "failed": [], "tokens": 3, "entries": 1}]
    episode = replace(
        made.ANSWERED,
        branches=(made.ANSWERED.branches[0], builders.episode().branches[0]),
        memory=(memory[0],),
        tool_records=(),
    )
    reward = replace(made.REWARD, branches=(0.25, 0.75))
    made.record(tmp_path / "m", episode, rewards=[reward], advantages=[[1.0, 2.0, 4.0]], dropped="stale")
    blocks, _ = made.written(tmp_path, tmp_path / "m")
    [shown] = blocks["chunk-0"]
    assert (shown["memory"], shown["branch_rewards"]) == (memory, [0.25, 0.75])
    assert [(m["branch"], m["sampled"], m["advantage"]) for m in shown["messages"]] == [
        (0, False, None),
        (0, True, 1.0),
        (0, False, None),
        (0, True, 2.0),
        (1, False, None),
        (1, True, 4.0),
    ]
    assert (blocks["index"]["advantage"], blocks["index"]["dropped"]["values"]) == ([pytest.approx(7 / 3)], ["stale"])


def test_chunks_go_on_over_files_and_runs(tmp_path: Path) -> None:
    for run, steps in (("a", 3), ("b", 1)):
        for step in range(steps):
            episodes = [replace(made.ANSWERED, sample_index=i) for i in range(40)]
            made.record(tmp_path / run, *episodes, name=f"train-{step:06d}", tokens=False)
    blocks, _ = made.written(tmp_path, tmp_path / "a", tmp_path / "b")
    assert [(name, len(block)) for name, block in blocks.items() if name.startswith("chunk")] == [
        ("chunk-0", 64),
        ("chunk-1", 64),
        ("chunk-2", 32),
    ]
    files = blocks["overview"]["files"]
    assert [(f["run"], f["name"], f["first"], f["count"]) for f in files] == [
        (0, "train-000000", 0, 40),
        (0, "train-000001", 40, 40),
        (0, "train-000002", 80, 40),
        (1, "train-000000", 120, 40),
    ]
    assert [e["id"] for e in blocks["chunk-1"]] == [f"t/{i % 40}" for i in range(64, 128)]


def test_a_damaged_file_is_said_and_what_comes_before_it_shown(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    torn, whole = made.record(run, made.ANSWERED, made.FAILED, rewards=(made.REWARD, None), name="train-000000"), run
    torn.write_bytes(torn.read_bytes()[:-200] + b"\n")
    inner = made.record(run, made.ANSWERED, name="train-000001")
    inner.write_text(inner.read_text().replace('"role":"user","sampled"', '"rule":"user","sampled"'))
    (run / "trajectories" / "train-000003.timings.jsonl").write_text("{")
    made.record(run, made.ANSWERED, name="train-000003").with_suffix(".timings.jsonl").write_text("{")
    (run / "eval.json").write_text("[]")
    blocks, damage = made.written(tmp_path, whole)
    files = blocks["overview"]["files"]
    assert [(f["name"], f["count"], f["damaged"] is None) for f in files] == [
        ("train-000000", 1, False),
        ("train-000001", 0, False),
        ("train-000002", 2, True),
        ("train-000003", 0, False),
        ("eval-end-greedy", 1, True),
    ]
    assert blocks["overview"]["runs"][0]["damage"] == [f"{run}/eval.json: a list instead of an object"]
    starts = [
        f"{torn}:3: ",
        f"{inner}:2: KeyError: 'role'",
        f"{run}/trajectories/train-000003.timings.jsonl is damaged: ",
    ]
    starts.append(f"{run}/eval.json: ")
    assert [line.startswith(start) for line, start in zip(damage, starts, strict=True)] == [True] * 4


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    path = run / "trajectories" / "train-000002.jsonl"
    path.write_text(path.read_text().replace('"search_rounds":1.0', '"search_rounds":NaN'))
    segment = made.said("ab", sampled=True, logprobs=(float("-inf"), -1.0))
    episode = replace(made.ANSWERED, branches=(replace(made.ANSWERED.branches[0], segments=(segment,)),))
    made.record(run, episode, name="train-000003")
    blocks, _ = made.written(tmp_path, run)
    assert blocks["chunk-0"][0]["metrics"] == {"search_rounds": None}
    assert blocks["chunk-0"][2]["messages"][0]["logprobs"] == [None, -1.0]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a/run", "b/run", "b/other")]
    for run in runs:
        (run / "trajectories").mkdir(parents=True)
    assert names_of([RunDir(run) for run in runs]) == ["a/run", "b/run", "b/other"]
    assert names_of([RunDir(run) for run in runs[1:]]) == ["run", "other"]
    with pytest.raises(ConfigError, match="is given twice; give each run once"):
        names_of([RunDir(runs[0]), RunDir(tmp_path / "b" / ".." / "a" / "run")])
