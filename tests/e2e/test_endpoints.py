"""Whole runs on engines elsewhere, over loopback stand-ins, with a tiny model of random weights."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgrpo.cli.main import main
from agentgrpo.core.commands import shell_line
from agentgrpo.training.policy import load_policy
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import rows
from tests.engines import tiny
from tests.engines.remote.openai_stand_in import OpenAIStandIn
from tests.engines.remote.sglang_stand_in import SGLangStandIn

WORLD = {"num_companies": 20, "dev_companies": 4, "test_companies": 4}
ROOM = 6144


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the bytes, with room for whole episodes."""
    folder = tmp_path_factory.mktemp("model")
    config: Any = {**tiny.model().config.to_dict(), "max_position_embeddings": ROOM, "initializer_range": 0.05}
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def settings(model: Path, run_dir: Path) -> list[str]:
    return [
        "experiment=none",
        "task=almanac",
        *(f"task.{key}={value}" for key, value in WORLD.items()),
        "model=path",
        f"model.path='{model}'",
        "environment.top_k=1",
        "environment.max_turns=2",
        "environment.require_sufficient_evidence_before_answer=false",
        "+reward.terms.overlong={weight: -1.0, max_tokens: 128, buffer_tokens: 128}",  # what random weights differ in
        "rollout.max_tokens=32",
        "optimizer=tiny",
        "rollout.tasks_per_step=2",
        "rollout.group_size=8",
        "run.max_steps=3",
        "run.checkpoint_every=0",
        "run.eval_every=0",
        "run.final_eval=false",
        "run.eval.tasks=3",
        "hardware.threads=1",
        "run.screen=quiet",
        "run.log_with=[]",
        f"run.dir='{run_dir}'",
    ]


@contextmanager
def served(
    model: Path, ready: Callable[[SGLangStandIn], None] = lambda server: None, kind: type[SGLangStandIn] = SGLangStandIn
) -> Iterator[SGLangStandIn]:
    """In a thread with an event loop of its own."""
    policy = load_policy(model, dtype="float32", device="cpu")
    server = kind(policy.model, policy.tokenizer, max_model_len=ROOM)
    ready(server)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.slow
def test_steps_are_trained_on_what_a_server_samples(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    with served(model) as server:
        url = f"engine.urls=['{server.url}']"
        shown = "run.screen=plain"
        assert main(["train", *settings(model, run_dir), "engine=sglang", url, "optimizer.lr=0.01", shown]) == 0
    environment = json.loads((run_dir / "environment.json").read_text())
    assert (environment["determinism"], environment["probed"]) == ("not promised", "exact")
    said = "determinism: not promised, servers sample (as probed: exact)"
    assert said in "".join(capsys.readouterr())
    found = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in found] == [0, 1, 2]
    gaps = [row[tag] for row in found for tag in ("policy/canary_gap", "policy/logprob_gap_max") if tag in row]
    assert len(gaps) >= 3
    assert max(gaps) <= 1e-4
    versions = [body["weight_version"] for path, body in server.orders if path == "/update_weights_from_disk"]
    assert [version.split("-")[1] for version in versions] == ["v0", "v1", "v2", "v3"]
    assert len({version.split("-")[2] for version in versions}) == 4  # each of other weights


@pytest.mark.slow
def test_a_server_that_keeps_its_weights_is_caught(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_stale(server: SGLangStandIn) -> None:
        server.is_stale = True

    with served(model, is_stale) as server:
        url = f"engine.urls=['{server.url}']"
        arguments = [*settings(model, tmp_path / "run"), "engine=sglang", url, "optimizer.lr=0.01", "engine.wait_s=5"]
        assert main(["train", *arguments]) != 0
    assert "stale or damaged weights" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # the first step that it would have spoilt


class Mortal(SGLangStandIn):
    """Dies when it has sampled five turns from the weights after the first step."""

    def refuse_if_down(self) -> None:
        if self.weights.startswith("agentgrpo-v1-") and not self.has_died:
            self.has_died, self.lasts = True, len(self.requests) + 5
        super().refuse_if_down()

    has_died = False


@pytest.mark.slow
def test_a_server_that_is_lost_for_good_ends_the_run_resumable(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    with served(model, kind=Mortal) as server:
        chosen = ["engine=sglang", f"engine.urls=['{server.url}']", "engine.wait_s=0.5", "run.checkpoint_every=3"]
        assert main(["train", *settings(model, run_dir), *chosen]) == 8
        said = capsys.readouterr().err
        assert "no server for 0.5 s (engine.wait_s)" in said
        assert f"go on with: {shell_line('resume', str(run_dir))}" in said
        assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == [0]
        server.lasts = 10**9
        assert main(["resume", str(run_dir), chosen[1]]) == 0
    found = rows(run_dir / "metrics.jsonl")
    assert ([row["step"] for row in found], max(row.get("groups/infrastructure", 0) for row in found)) == ([0, 1, 2], 0)


def say(path: str, body: dict[str, Any]) -> str:
    """A model that never searches."""
    return "<answer>Castin</answer>"


@pytest.mark.parametrize("mode", ["chat", pytest.param("completions", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_an_endpoint_is_held_against_the_start_model(model: Path, tmp_path: Path, mode: str) -> None:
    run_dir = tmp_path / "run"
    with OpenAIStandIn(say) as server:
        chosen = ["engine=openai", f"engine.base_url='{server.url}'", "engine.model=gpt-x", f"engine.mode={mode}"]
        prices = ["engine.prompt_price=1.0", "engine.completion_price=2.0", "engine.api_key_env=null"]
        assert main(["eval", *settings(model, run_dir), *chosen, *prices]) == 0
    result = json.loads((run_dir / "eval.json").read_text())
    calls = len(server.requests)
    assert calls == 6  # three tasks, greedy and sampled
    assert result["engine"] == {
        "calls": calls,
        "prompt_tokens": 100 * calls,
        "completion_tokens": 20 * calls,
        "cost": pytest.approx(calls * 0.14),
        "uncounted": 0,
    }
    assert (result["greedy"]["trained"]["search_rounds"], result["n"]) == (0.0, 3)
    asked = server.requests[0][2]
    assert ("messages" in asked, asked["model"]) == (mode == "chat", "gpt-x")
    told = [row for row in rows(run_dir / "trajectories" / "eval-end-greedy.jsonl") if "Castin" in json.dumps(row)]
    assert len(told) == 3


@pytest.mark.slow
def test_an_evaluation_is_under_the_budget_and_on_the_cassette(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, url: str, *more: str) -> int:
        chosen = ["engine=openai", f"engine.base_url='{url}'", "engine.model=gpt-x", "engine.api_key_env=KEY_OF_IT"]
        chosen += ["budget.prices.policy=0.5", f"cassette.path='{tmp_path / 'tape'}'"]
        return main(["eval", *settings(model, tmp_path / name), *chosen, *more])

    with OpenAIStandIn(say) as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("KEY_OF_IT", "k")
        assert run("stopped", server.url, "cassette.mode=fill", "budget.per_run.calls.policy=4") == 11
        assert len(server.requests) == 4
        said = capsys.readouterr().err
        assert "the evaluation ends without a verdict; evaluate again with budget.per_run.calls.policy=8" in said
        assert run("whole", server.url, "cassette.mode=fill") == 0
        assert len(server.requests) == 6  # four were recorded
    result = json.loads((tmp_path / "whole" / "eval.json").read_text())
    assert (result["spend"]["calls"], result["spend"]["money"], result["spend"]["replayed"]) == ({"policy": 2}, 1.0, 4)
    assert run("again", "http://127.0.0.1:9/v1", "cassette.mode=strict") == 0
    again = json.loads((tmp_path / "again" / "eval.json").read_text())
    assert (again["greedy"], again["sampled"]) == (result["greedy"], result["sampled"])
    assert (again["spend"]["calls"], again["spend"]["replayed"]) == ({}, 6)


@pytest.mark.slow
def test_the_oracle_by_configuration_is_the_oracle(model: Path, tmp_path: Path) -> None:
    assert main(["eval", *settings(model, tmp_path / "run"), "engine=scripted", "environment.max_turns=6"]) == 0
    result = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert result["greedy"]["trained"] == result["oracle"]


@pytest.mark.slow
def test_a_script_is_tried_without_a_model_and_a_task_that_it_lacks_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = Almanac(**WORLD).split("test")[:3]
    script = tmp_path / "turns.jsonl"
    lines = [json.dumps({"task": t.id, "turns": [f"<answer>{t.references[0]}</answer>"]}) for t in tasks]
    chosen = ["engine=scripted", f"engine.script='{script}'"]
    script.write_text("\n".join(lines))
    assert main(["eval", *settings(model, tmp_path / "run"), *chosen]) == 0
    result = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert result["greedy"]["trained"]["correctness"] == 1.0
    script.write_text("\n".join(lines[:2]))
    assert main(["eval", *settings(model, tmp_path / "again"), *chosen]) == 2
    assert f"has no line for the task {tasks[2].id}" in capsys.readouterr().err


def test_what_cannot_be_is_refused_in_a_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, chosen, says in (
        (["train"], ["engine=scripted"], "engine=scripted gives no exact log-probs: evaluate with it, agentgrpo eval"),
        (["eval"], ["engine=hf"], "eval needs a checkpoint"),
        (["eval", "--ckpt", str(model)], ["engine=scripted"], "engine=scripted, which samples from no checkpoint"),
    ):
        assert main([*verb, *settings(model, tmp_path / "run"), *chosen]) == 2
        message = capsys.readouterr().err
        assert (says in message, message.count("\n")) == (True, 1)


@pytest.mark.parametrize(
    "engine", ["sglang", *(pytest.param(e, marks=pytest.mark.slow) for e in ("hf", "vllm", "openai", "scripted"))]
)
def test_a_plan_is_made_with_every_engine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    chosen = [s for s in settings(model, tmp_path / "run") if not s.startswith("run.dir")]
    assert main(["plan", *chosen, f"engine={engine}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
