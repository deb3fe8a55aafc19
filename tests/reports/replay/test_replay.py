"""`agentgrpo replay` on whole runs: what repeats itself, and what was changed, found where it was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from agentgrpo.cli.main import main
from agentgrpo.config.build import build_node
from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Branch
from agentgrpo.judges.composed import refuse_unjudged
from agentgrpo.records.trajectories import pack
from agentgrpo.reports.replay.parts import _UNUSED
from agentgrpo.tools.base import ToolResult, Workspace
from tests.builders import task
from tests.e2e.doubler import Doubler
from tests.reports.replay import runs
from tests.reports.replay.runs import TOOL, edit, next_logprob, other_token, records, replay, sampled, with_turns
from tests.thorough import siblings


def state_of(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("tools", siblings(["record", "live"], quick=1))
@pytest.mark.parametrize(
    ("file", "count", "weights"),
    [
        ("train-000001", 24, "checkpoints/step-000001"),
        ("train-000000", 24, "checkpoints/step-000000"),
        ("eval-start-sampled", 4, "checkpoints/step-000000"),
        ("eval-end-greedy", 4, "checkpoints/step-000002"),
    ],
)
def test_what_was_recorded_repeats_itself(
    finished: Path, capsys: pytest.CaptureFixture[str], tools: str, file: str, count: int, weights: str
) -> None:
    before = state_of(finished)
    given = [] if file == "train-000001" else ["--file", file]  # the newest step whose weights are kept
    result = replay(finished, capsys, "--tools", tools, *given)
    ids = [record.id for record in records(finished, file)]
    judged = [] if tools == "record" else ["the reward was computed anew, with the judge asked again"]
    assert result == {
        "file": file,
        "tools": tools,
        "weights": weights,
        "notes": judged,
        "episodes": [{"id": id, "diverged": None} for id in ids],
        "skipped": [],
        "diverged": None,
    }
    assert len(ids) == count
    assert state_of(finished) == before, "the run is only read"


def test_tasks_that_the_environment_grades_need_no_answers_to_be_replayed() -> None:
    unanswered = [replace(task(), references=())]
    refuse_unjudged(build_node("judge", _UNUSED["judge"]), unanswered)
    with pytest.raises(DataError):
        refuse_unjudged(build_node("judge", {"name": "choice"}), unanswered)


def test_a_token_that_was_edited_is_found(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = with_turns(run_dir, "train-000001", 2)
    said = sampled(record)[1]
    other = (said.token_ids[1] + 1) % 200
    edit(run_dir, "train-000001", record.id, other_token(1, 1, other))
    result = replay(run_dir, capsys, code=1)
    assert [row["id"] for row in result["episodes"] if row["diverged"]] == [record.id]
    found = result["diverged"]
    names = ("episode", "kind", "branch", "turn", "token", "expected", "found")
    assert [found[name] for name in names] == [record.id, "token", 0, 1, 1, other, said.token_ids[1]]
    assert said.logprobs is not None
    assert (found["expected_logprob"], found["found_logprob"]) == (said.logprobs[1], said.logprobs[1])
    assert found["found_text"] == said.text
    alone = replay(run_dir, capsys, "--episode", record.id, "--step", "1", code=1)
    assert alone["episodes"] == [{"id": record.id, "diverged": found}]


@pytest.mark.parametrize("tools", ["record", "live"])
def test_one_bit_of_a_logprob_is_found(run_dir: Path, capsys: pytest.CaptureFixture[str], tools: str) -> None:
    record = with_turns(run_dir, "train-000001", 2)
    logprobs = sampled(record)[1].logprobs
    assert logprobs is not None
    edit(run_dir, "train-000001", record.id, next_logprob(1, 2))
    found = replay(run_dir, capsys, "--episode", record.id, "--tools", tools, code=1)["diverged"]
    edited = sampled(next(r for r in records(run_dir, "train-000001") if r.id == record.id))[1].logprobs
    assert edited is not None
    assert [found[name] for name in ("kind", "turn", "token", "expected", "found")] == [
        "logprob",
        1,
        2,
        edited[2],
        logprobs[2],
    ]


def test_an_engine_that_promises_no_bits_is_held_to_the_tolerance(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = with_turns(run_dir, "train-000001", 2)
    edit(run_dir, "train-000001", record.id, next_logprob(1, 2))
    result = replay(run_dir, capsys, "engine.deterministic=false")
    assert result["diverged"] is None
    assert result["notes"] == ["the engine promises no bits of log-probs here: they may be 0.01 nats off"]


def test_another_weight_is_found(run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One element of one matrix."""
    other = shutil.copytree(run_dir / "checkpoints" / "step-000001", tmp_path / "other")
    (other / "manifest.json").unlink()
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] += 1e-3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    result = replay(run_dir, capsys, "--ckpt", str(other), "--step", "1", code=1)
    places = {(d["kind"], d["turn"], d["token"]) for row in result["episodes"] if (d := row["diverged"])}
    assert places == {("logprob", 0, 0)}
    assert sum(row["diverged"] is not None for row in result["episodes"]) == 24
    assert 0 < abs(result["diverged"]["expected"] - result["diverged"]["found"]) < 1e-3
    same = shutil.copytree(run_dir / "checkpoints" / "step-000001", tmp_path / "same")
    assert replay(run_dir, capsys, "--ckpt", str(same), "--step", "1")["weights"] == str(same)


def test_another_seed_is_found(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it draws another token first: log-probs before that are the same."""
    result = replay(finished, capsys, "run.seed=1", code=1)
    found = [d for row in result["episodes"] if (d := row["diverged"])]
    assert {d["kind"] for d in found} == {"token"}
    recorded = {record.id: sampled(record) for record in records(finished, "train-000001")}
    for d in found:
        said = recorded[d["episode"]][d["turn"]]
        assert said.logprobs is not None
        assert (d["expected"], d["expected_logprob"]) == (said.token_ids[d["token"]], said.logprobs[d["token"]])
        assert d["found"] != d["expected"]


@pytest.mark.slow
def test_another_reply_of_a_tool_is_found(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = [
        (r, call)
        for r in records(finished, "train-000001")
        for call in r.agent["tools"]
        if (call["name"], call["outcome"]) == ("double", "success")
    ]
    record, call = answered[0]
    number = call["arguments"]["number"]
    right = Doubler.call

    async def wrong(self: Doubler, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        found = await right(self, arguments, workspace)
        return ToolResult.ok(f"{found.text}0") if arguments["number"] == number else found

    monkeypatch.setattr(Doubler, "call", wrong)
    assert replay(finished, capsys)["diverged"] is None, "what was recorded is put before the engine"
    result = replay(finished, capsys, "--tools", "live", code=1)
    changed = {r.id for r, c in answered if c["arguments"]["number"] == number}
    assert {row["id"] for row in result["episodes"] if row["diverged"]} == changed
    found = next(row["diverged"] for row in result["episodes"] if row["id"] == record.id)
    asked = {"name": "double", "arguments": {"number": number}}
    assert (found["kind"], found["turn"], found["call"], found["calls"]) == ("tool", call["turn"], asked, [asked])
    reply = [s.text for s in record.branches[0].segments if not s.sampled][call["turn"] + 1]
    end = reply.index(str(2 * number)) + len(str(2 * number))
    assert found["character"] == end
    assert found["expected_text"] == reply
    assert found["found_text"] == f"{reply[:end]}0{reply[end:]}"


@pytest.mark.slow
def test_another_question_and_another_reference_are_found(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir.parent / "q.jsonl"
    runs.write_questions(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    tasks = [record.task for record in records(run_dir, "train-000001")]
    first, last = tasks[0], tasks[-1]
    for row in rows:
        if row["id"] == first:
            row["question"] = row["question"].replace("Twice", "Thrice")
        if row["id"] == last:
            row["answers"] = "none of these"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--tools", "live", f"task.questions='{path}'"]
    result = replay(run_dir, capsys, *settings, code=1)
    assert "the data changed since the run" in result["notes"]
    found = {row["id"]: row["diverged"] for row in result["episodes"] if row["diverged"]}
    asked = found.pop(f"{first}/0")
    assert (asked["kind"], asked["turn"], asked["expected_text"][asked["character"] :][:5]) == ("prompt", 0, "wice ")
    judged = {id: d for id, d in found.items() if not id.startswith(f"{first}/")}
    right = {r.id for r in records(run_dir, "train-000001") if r.task == last and r.correctness == 1.0}
    assert {id for id, d in judged.items() if d["kind"] == "reward"} == judged.keys()
    assert judged.keys() == right
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["id"] != first))
    gone = replay(run_dir, capsys, "--episode", f"{first}/0", *settings, code=1)["diverged"]
    assert (gone["kind"], gone["found"]) == ("prompt", f"the data has no task {first} any more")


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        (
            ["algorithm.max_staleness=1", "run.max_steps=3", "run.checkpoint_every=2", "run.keep_last=2"],
            {2: "checkpoints/step-000002 (the sampler's, one step behind)"},
        ),
        pytest.param(
            ["model.lora.rank=2", "run.keep_last=2"],
            {1: "checkpoints/step-000001", 0: "{start} (start weights)"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ahead", "adapter"],
)
@pytest.mark.slow
def test_weights_of_every_kind(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], weights: dict[int, str]
) -> None:
    more = ["run.final_eval=false", "run.keep_best=false", "optimizer.lr=0.01"]
    run_dir = runs.train(start, tmp_path, *more, *settings)
    for step, name in weights.items():
        result = replay(run_dir, capsys, "--step", str(step))
        assert (result["diverged"], len(result["episodes"])) == (None, 24)
        assert result["weights"] == name.format(start=start)


def test_it_is_said_in_lines(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run_dir), "--all", TOOL]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train-000001: 24 episodes replayed, tools=record, weights checkpoints/step-000001",
        "no divergence",
    ]
    record = with_turns(run_dir, "train-000001", 2)
    said = sampled(record)[1]
    assert said.logprobs is not None
    other = (said.token_ids[1] + 1) % 200
    edit(run_dir, "train-000001", record.id, other_token(1, 1, other))
    assert main(["replay", str(run_dir), "--episode", record.id, TOOL]) == 1
    head, empty, where, recorded, found, end, total = capsys.readouterr().out.splitlines()
    assert head == "train-000001: 1 episode replayed, tools=record, weights checkpoints/step-000001"
    assert (empty, end) == ("", "")
    assert where == f"{record.id}: another token was sampled: turn 1, token 1"
    assert recorded.startswith(f"  recorded  {other}, log-prob {said.logprobs[1]!r}, ")
    assert found.startswith(f"  found     {said.token_ids[1]}, log-prob {said.logprobs[1]!r}, ")
    assert " >> " in found
    assert total == "1 of 1 episode diverged (token: 1)"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "replay needs one of --episode ID and --all"),
        (["--all", "--episode", "x"], "replay needs one of --episode ID and --all"),
        (["--all", "--tools", "recorded"], "--tools recorded; record and live are allowed. Did you mean 'record'?"),
        (["--episode", "train0/9"], "--episode train0/9: train-000001.jsonl has no such episode; the nearest are "),
        (["--all", "--step", "7"], "--step 7: "),
        (["--all", "--ckpt", "nowhere"], "--ckpt nowhere holds no model; give a checkpoint"),
    ],
)
def test_what_is_refused(finished: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str) -> None:
    assert main(["replay", str(finished), *arguments, TOOL]) == 2
    said = capsys.readouterr()
    assert (said.out, error in said.err, said.err.count("\n")) == ("", True, 1), said.err


def test_code_of_the_users_is_named_again(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgrpo.config.build._admitted", set())  # as in a process of its own
    assert main(["replay", str(finished), "--all"]) == 2
    assert "is code from outside; to run it, name it on this command line" in capsys.readouterr().err


def test_weights_that_are_gone_are_named_with_what_can_be_replayed(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_dir / "checkpoints" / "step-000001")
    assert main(["replay", str(run_dir), "--all", "--step", "1", TOOL]) == 2
    assert capsys.readouterr().err == (
        "agentgrpo: train-000001 was sampled from the weights after 1 steps, which the run has not kept. It kept "
        "those after 0, 2, which can replay: train-000000, eval-end-greedy, eval-end-sampled, "
        "eval-start-greedy, eval-start-sampled. Give weights with --ckpt; run.keep_last=N and run.checkpoint_every=N "
        "keep more\n"
    )
    assert replay(run_dir, capsys)["file"] == "train-000000", "the newest step whose weights are kept"


def test_damaged_weights_are_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "checkpoints" / "step-000001" / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["replay", str(run_dir), "--all", TOOL]) == 4
    assert "model.safetensors" in capsys.readouterr().err


def test_without_tokens_texts_are_compared(finished: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "trajectories" / "eval-end-greedy.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    plain = [rows[0], *({**row, "tokens": None} for row in rows[1:])]
    path.write_text("".join(json.dumps(row) + "\n" for row in plain))
    assert main(["replay", str(run_dir), "--all", "--file", "eval-end-greedy", TOOL]) == 2
    assert "eval-end-greedy holds no tokens that were sampled" in capsys.readouterr().err
    live = ["--file", "eval-end-greedy", "--tools", "live"]
    assert replay(run_dir, capsys, *live)["diverged"] is None
    messages = plain[1]["agent"]["messages"]
    turn = next(m for m in messages if m["sampled"])
    turn["content"] = f"{turn['content'][:3]}?{turn['content'][3:]}"
    path.write_text("".join(json.dumps(row) + "\n" for row in plain))
    found = replay(run_dir, capsys, *live, code=1)["diverged"]
    assert (found["episode"], found["kind"], found["turn"], found["token"], found["character"]) == (
        plain[1]["id"],
        "token",
        0,
        None,
        3,
    )


def test_an_episode_that_failed_is_left_out(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "trajectories" / "train-000001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1] |= {"error": {"kind": "timeout", "stage": "episode", "message": "not done"}, "status": "failed"}
    rows[1]["agent"] = {**rows[1]["agent"], "messages": [], "tools": []}
    rows[1] |= {"tokens": None, "policy_version": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = replay(run_dir, capsys)
    assert (result["skipped"], len(result["episodes"])) == ([rows[1]["id"]], 23)
    assert main(["replay", str(run_dir), "--step", "1", "--episode", rows[1]["id"], TOOL]) == 2
    assert "nothing was recorded to replay (timeout: not done)" in capsys.readouterr().err


def test_an_episode_of_which_nothing_sampled_was_recorded_is_not_called_the_same(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir / "trajectories" / "train-000001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["tokens"] = None
    for message in rows[2]["agent"]["messages"]:
        message |= {"sampled": False, "policy_version": None}
    [branch] = records(run_dir, "train-000001")[1].branches
    told = {"sampled": False, "logprobs": None, "policy_version": None}
    rows[2]["tokens"] = pack([Branch(segments=tuple(replace(s, **told) for s in branch.segments))])  # type: ignore[arg-type]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = replay(run_dir, capsys)
    assert (result["skipped"], len(result["episodes"])) == ([rows[1]["id"], rows[2]["id"]], 22)
