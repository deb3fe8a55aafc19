"""Planted faults, each found by the check that is there for it."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.probe import ProbeReport
from agentgrpo.preflight.doctor import examination, numbers, schedule
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.masks import training_samples
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.run import build
from agentgrpo.services.cassette import Cassette
from agentgrpo.tools.sandbox import isolation
from agentgrpo.tools.sandbox.cgroup import Groups, NoGroups
from tests.preflight.doctor import planted
from tests.preflight.doctor.conftest import Diagnose, Toy, closed_port, write_rows
from tests.tools.bubblewrap import needs_bubblewrap

TOOL_AGENT = (
    "environment=tools",
    "environment.max_context=null",
    "environment.min_context_left=8",
    "environment.max_turns=2",
)
TOOL_AGENT += ("model.describe_tools=false",)
REWRITING = """{% for m in messages %}{% set c = m.content or '' %}\
{{ m.role }}: {{ c.split('</think>')[-1] if '</think>' in c and not loop.last else c }}\n{% endfor %}"""


def copied(toy: Toy, folder: Path, **changes: dict[str, Any]) -> str:
    """The toy's model with other values in some of its JSON files; the override that chooses it."""
    folder.mkdir()
    for file in toy.model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name, values in changes.items():
        path = folder / f"{name}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | values))
    return f"model.path='{folder}'"


# --- tokens


def test_tool_text_that_is_trained_on(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PolicyRunner", planted.TrainsOnTools)
    found = diagnose(only=("episodes", "history", "masks"))
    assert found.code == 1
    [what] = found.problems["masks"]
    tokens = found.check("masks")["facts"]["tokens"]
    assert what == f"{9 * 13} of {tokens} tokens are trained on that the policy did not sample"
    assert found.check("masks")["findings"][0]["key"] == "environment.name"
    assert "history" not in found.problems


@pytest.mark.slow
def test_a_stop_token_without_gradient(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PolicyRunner", planted.LosesStops)
    found = diagnose(only=("episodes", "masks"))
    [what] = [w for w in found.problems["masks"] if "ended a turn" in w]
    stops = found.check("masks")["facts"]["stop tokens"]
    assert stops > 9
    assert what.endswith(f" of {stops} tokens that ended a turn have no gradient")


@pytest.mark.slow
def test_a_conversation_that_is_rewritten(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PolicyRunner", planted.Rewrites)
    found = diagnose(only=("episodes", "history"))
    [what] = found.problems["history"]
    assert what.startswith("in 9 of 9 episodes the engine was shown, or said, other tokens than the record has")
    assert found.check("history")["findings"][0]["key"] == "model.renderer"


@pytest.mark.slow
def test_a_template_that_rewrites_history(diagnose: Diagnose, toy: Toy, tmp_path: Path) -> None:
    path = copied(toy, tmp_path / "model", tokenizer_config={"chat_template": REWRITING})
    found = diagnose(path, only=("template",))
    [finding] = found.check("template")["findings"]
    assert (finding["level"], finding["key"]) == ("note", "model.renderer")
    assert finding["what"].startswith("the model's chat template rewrites history: with message 3 it changes")


def test_a_model_that_ends_its_turns_with_another_token(diagnose: Diagnose, toy: Toy, tmp_path: Path) -> None:
    path = copied(toy, tmp_path / "model", generation_config={"eos_token_id": 5})
    found = diagnose(path, only=("stop tokens",))
    assert found.problems == {
        "stop tokens": ["generation_config.json ends turns with '&' (5), and the renderer with [257]"]
    }
    assert found.check("stop tokens")["facts"]["embeddings without a token"] == 320 - 260  # Qwen2 adds <|endoftext|>


def test_an_end_that_a_run_takes_over_is_no_problem(diagnose: Diagnose, toy: Toy, tmp_path: Path) -> None:
    path = copied(toy, tmp_path / "model", generation_config={"eos_token_id": [257, 258]})
    found = diagnose(path, only=("stop tokens",))
    assert found.check("stop tokens")["findings"] == []
    assert found.check("stop tokens")["facts"]["stop tokens"] == {"<|eos|>": 257, "</search>": 258}
    told = "generation_config.json ends turns with '</search>' (258) too, and so does this run"
    assert told in found.check("parts")["facts"]["noted"]


@pytest.mark.slow
def test_an_engine_that_swallows_what_ends_a_turn(diagnose: Diagnose) -> None:
    found = diagnose("engine=swallows", only=("episodes", "ends of turns"))
    [what] = found.problems["ends of turns"]
    assert what.endswith("turns that stopped do not hold the token they stopped with")


@pytest.mark.slow
def test_a_parser_that_loses_arguments(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(ReactRenderer):
        def parse(self, token_ids: Any) -> ParsedTurn:
            turn = super().parse(token_ids)
            calls = tuple(type(c)(name=c.name, arguments={}) for c in turn.calls)  # type: ignore[call-arg]
            return ParsedTurn(calls=calls, answer=turn.answer)

    monkeypatch.setattr(build, "choose_for_tools", lambda name, *, tokenizer, **_: Lossy(tokenizer=tokenizer))
    found = diagnose(*TOOL_AGENT, "tools=calculator", only=("parser",))
    assert found.problems == {
        "parser": [
            (
                "3 of 3 calls are not read as they were written; the first: calculator(expression='1') comes back as "
                "calculator()"
            )
        ]
    }


# --- engine and trainer


def test_stale_engine_weights(diagnose: Diagnose) -> None:
    found = diagnose("engine=stale", only=("episodes", "log-probs", "engine weights"))
    [stale] = found.problems["engine weights"]
    assert "the engine's log-probs differ from the trainer's by" in stale
    [gap] = found.problems["log-probs"]
    assert "differ by more than 0.01 nats between engine and trainer" in gap


def test_a_log_prob_that_is_no_number(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one, by which a largest would be nan."""

    def samples(case: Case) -> list[TrainingSample]:
        found = training_samples(case)
        last = (*found[-1].rollout_logprobs[:-1], math.nan)
        return [*found[:-1], replace(found[-1], rollout_logprobs=last)]

    monkeypatch.setattr(numbers, "training_samples", samples)
    found = diagnose(only=("episodes", "log-probs"))
    [what] = found.problems["log-probs"]
    assert re.match(
        r"1 of \d+ sampled tokens have log-probs that differ by more than 0\.01 nats .*, by nan at most", what
    )
    assert found.check("log-probs")["facts"]["largest gap"] == "nan"


@pytest.mark.slow
def test_what_bfloat16_rounds_is_judged_with_the_correction(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan` proposes it."""

    def off_by(nats: float) -> None:
        def samples(case: Case) -> list[TrainingSample]:
            found = training_samples(case)
            return [replace(s, rollout_logprobs=tuple(p - nats for p in s.rollout_logprobs)) for s in found]

        monkeypatch.setattr(numbers, "training_samples", samples)

    half, only = "hardware.dtype=bfloat16", ("episodes", "log-probs")
    off_by(0.02)
    found = diagnose(half, only=only)
    assert (found.problems, found.check("log-probs")["status"]) == ({}, "note")
    [finding] = found.check("log-probs")["findings"]
    assert "bfloat16 rounds, and algorithm.correction=sequence_mask weighs it, cutting 0% of" in finding["what"]
    assert "log-probs" in diagnose(only=only).problems  # float32 does not round so
    assert "log-probs" in diagnose(half, "algorithm.correction=none", only=only).problems
    off_by(2.0)
    assert "log-probs" in diagnose(half, only=only).problems  # nobody rounds so


def test_a_rate_that_moves_nothing(diagnose: Diagnose) -> None:
    given = ("optimizer.lr=1e-9", "run.max_steps=150")
    found = {f["key"]: f["what"] for f in diagnose(*given, only=("schedule",)).check("schedule")["findings"]}
    assert found["optimizer.lr=null"].startswith("optimizer.lr=1e-09 moves a weight by at most ")


def test_a_nondeterministic_engine(diagnose: Diagnose) -> None:
    found = diagnose("engine=moody", only=("determinism",))
    assert found.problems == {
        "determinism": [
            "what an episode samples depends on what else is sampled beside it, with engine.deterministic=true"
        ]
    }


@pytest.mark.slow
def test_half_precision_is_no_promise_of_bits(diagnose: Diagnose) -> None:
    finding = diagnose("engine=moody", "hardware.dtype=bfloat16", only=("determinism",)).check("determinism")
    assert (finding["status"], finding["findings"][0]["key"]) == ("note", "hardware.dtype=float32")


@pytest.mark.slow
def test_an_engine_that_promises_nothing_is_only_noted(diagnose: Diagnose) -> None:
    found = diagnose("engine=moody", "+engine.deterministic=false", only=("determinism",))
    assert (found.code, found.check("determinism")["status"]) == (0, "note")


@pytest.mark.slow
def test_an_engine_whose_last_bits_vary(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    async def probed(*_: object) -> ProbeReport:
        return ProbeReport(same_tokens=True, max_logprob_difference=1e-7)

    monkeypatch.setattr("agentgrpo.preflight.doctor.numbers.determinism_probe", probed)
    [finding] = diagnose(only=("determinism",)).check("determinism")["findings"]
    assert finding["what"] == "log-probs depend by 1e-07 nats on what is sampled beside an episode"


# --- services


def test_a_dead_retriever(diagnose: Diagnose) -> None:
    url = f"retriever.url=http://127.0.0.1:{closed_port()}/retrieve"
    found = diagnose(
        *("environment=search", "retriever=http", url, "retriever.retries=0"),
        only=("retrievers", "reranker and pages", "determinism"),
    )
    [what] = found.problems["retrievers"]
    assert what.startswith("vdb failed 2 of 2 requests; the first: ")
    assert found.check("retrievers")["facts"]["vdb"]["error rate"] == 1.0
    assert found.check("reranker and pages")["reason"] == "needs: retrievers, which do not answer"
    assert found.check("determinism")["status"] == "ok"


@pytest.mark.slow
def test_a_dead_judge(diagnose: Diagnose) -> None:
    found = diagnose("judge=dead", only=("judge", "episodes", "signal", "context"))
    assert found.problems["judge"] == ["the judge failed 2 of 2 requests; the first: nobody is there"]
    assert found.problems["episodes"][0].startswith("9 of 9 episodes failed for infrastructure reasons (transport: 9)")
    assert found.check("signal")["reason"] == "needs: episodes, and no group was scored whole"


@pytest.mark.slow
def test_a_slow_judge(diagnose: Diagnose) -> None:
    found = diagnose("judge=slow", only=("episodes", "time of judging"))
    [what] = found.problems["time of judging"]
    assert what.startswith("judging takes about 4")


def test_a_judge_that_can_be_fooled(diagnose: Diagnose) -> None:
    found = diagnose("judge=gullible", only=("judge can be fooled",))
    [what] = found.problems["judge can be fooled"]
    assert re.match(r"it rewards \d+ known-wrong answers; the first one, of style ", what)


def test_a_failing_tool(diagnose: Diagnose) -> None:
    found = diagnose(*TOOL_AGENT, "tools=unplugged", "environment.tool_retries=0", only=("tools",))
    assert found.problems == {
        "tools": [
            (
                "unplugged failed 3 of 3 calls, and not by the policy's fault: tool unplugged: ConnectionError: "
                "connection refused (planted.py:171 in call)"
            )
        ]
    }


@pytest.mark.slow
def test_a_missing_sandbox_stops_no_other_check(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = diagnose(*TOOL_AGENT, "tools=[python,calculator]", only=("sandbox", "parser", "engine weights"))
    [what] = found.problems["sandbox"]
    assert what.startswith("the python tool runs programs in bubblewrap, and there is no bwrap here")
    assert found.check("sandbox")["findings"][0]["key"] == "tools.python.sandbox"
    [built] = found.problems["parts"]
    assert built.startswith("tools.python cannot be built: ")
    assert found.check("parser")["facts"] == {"calls": 3, "lost": 0}  # of the calculator
    assert found.check("engine weights")["status"] == "ok"


@pytest.mark.slow
def test_a_sandbox_that_is_none_is_noted(diagnose: Diagnose) -> None:
    found = diagnose(*TOOL_AGENT, "tools=python", "tools.python.sandbox=unsafe_subprocess", only=("sandbox",))
    [finding] = found.check("sandbox")["findings"]
    assert (found.code, finding["level"]) == (0, "note")
    assert found.check("sandbox")["facts"]["python"]["bounds"] == []


@needs_bubblewrap
@pytest.mark.slow
def test_what_bounds_programs_is_said_and_what_does_not(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(settings: object) -> Groups:
        raise NoGroups("there is no cgroup v2 at /here")

    monkeypatch.setattr(isolation, "Groups", none)
    found = diagnose(*TOOL_AGENT, "tools=python", "tools.python.processes=4", only=("sandbox",))
    finding = found.check("sandbox")["findings"][0]
    assert re.fullmatch(
        r"nothing bounds the memory in all of tools\.python: 1\d\d\d MiB a program: 4 processes of 256 and \d+ in "
        r"sockets, files of 16; 8 programs at a time; no control group does, as there is no cgroup v2 at /here",
        finding["what"],
    )
    assert (found.code, finding["level"], finding["key"]) == (0, "note", "tools.python.processes")
    bounds = found.check("sandbox")["facts"]["python"]["bounds"]
    assert bounds[0] == "memory of a process: 256 MiB of addresses, by rlimit"
    assert "shared memory and queues: none, by seccomp" in bounds


# --- rewards, prices, data


def test_groups_without_variance(diagnose: Diagnose) -> None:
    found = diagnose("reward=correctness", only=("episodes", "signal"))
    assert found.problems == {"signal": ["in 3 of 3 groups of 3 all episodes have the same credit: mean reward 0"]}


@pytest.mark.slow
def test_groups_that_differ_with_nothing_right_in_any_are_noted(diagnose: Diagnose) -> None:
    found = diagnose(only=("episodes", "signal"))
    [finding] = found.check("signal")["findings"]
    assert (finding["level"], finding["what"]) == ("note", "none of 9 episodes is right at all")
    right = diagnose("judge.name=tests.e2e.controls:ConstantJudge", only=("episodes", "signal"))
    assert "none of" not in str(right.check("signal")["findings"])


@pytest.mark.slow
def test_a_guard_that_would_end_the_run_at_once(diagnose: Diagnose) -> None:
    guard = "+guards.odd={metric: correctness, when: below, limit: 0.5, action: halt, hint: give it easier tasks}"
    found = diagnose(guard, only=("episodes", "guards"))
    assert found.problems == {"guards": ["guards.odd would ring: correctness is 0, below 0.5, which ends in halt"]}


@pytest.mark.slow
def test_an_unset_price(diagnose: Diagnose) -> None:
    found = diagnose("+run.eval.prices.probe=0", only=("prices",))
    assert found.problems == {
        "prices": ["a call of probe costs nothing: neither in the figures nor in the budget nor in the reward"]
    }
    assert found.check("prices")["findings"][0]["key"] == "run.eval.prices.probe"


@pytest.mark.slow
def test_a_limit_of_money_that_nothing_counts_towards(diagnose: Diagnose) -> None:
    url = f"retriever.url=http://127.0.0.1:{closed_port()}/retrieve"
    found = diagnose("environment=search", "retriever=http", url, "budget.per_run.money=5", only=("prices",))
    assert found.problems == {"prices": ["budget.per_run.money is set, and no call has a price: vdb"]}


def searching(toy: Toy, tmp_path: Path) -> tuple[str, ...]:
    """Overrides for a policy that searches a corpus in this process."""
    passages = write_rows(tmp_path / "corpus.jsonl", [{"id": "p", "contents": "What is 1 and 1? It is Velmor1."}])
    return ("environment=search", f"task.questions='{toy.questions}'", f"task.corpus='{passages}'")


@pytest.mark.slow
def test_no_budget_counts_what_is_searched_in_this_process(diagnose: Diagnose, toy: Toy, tmp_path: Path) -> None:
    limits = ("budget.per_run.money=5", "budget.per_run.calls.vdb=3", "budget.prices.vdb=1")
    for given in (limits[:1], limits):
        assert diagnose(*searching(toy, tmp_path), *given, only=("prices",)).problems == {}


@pytest.mark.slow
def test_a_kind_without_a_price_of_the_budget_keeps_the_environments_own(
    diagnose: Diagnose, toy: Toy, tmp_path: Path
) -> None:
    given = (*searching(toy, tmp_path), "budget.prices.web=0.5")
    facts = diagnose(*given, only=("prices",)).check("prices")["facts"]
    assert facts["of a call, in the figures"] == {"web": 0.5, "vdb": 0.01, "rerank": 0.02}
    facts = diagnose(*given, "+run.eval.prices.vdb=0", only=("prices",)).check("prices")["facts"]
    assert facts["of a call, in the figures"] == {"web": 0.5, "vdb": 0.0, "rerank": 0.02}


@pytest.mark.slow
def test_what_is_made_up_is_on_no_cassette(diagnose: Diagnose, toy: Toy, tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape").transaction():
        pass
    given = (*searching(toy, tmp_path), "retriever=http", "judge=llm", "judge.control=false", "cassette=strict")
    names = ("retrievers", "reranker and pages", "judge", "judge can be fooled")
    found = diagnose(*given, f"cassette.path='{tmp_path / 'tape'}'", only=(*names, "prices"))
    assert (found.code, found.problems) == (0, {})
    assert {name: found.check(name)["reason"] for name in names} == dict.fromkeys(names, examination.UNASKED)


@pytest.mark.slow
def test_leaked_questions(diagnose: Diagnose) -> None:
    found = diagnose("task=leaky", "rollout.tasks_per_step=2", only=("data",))
    assert found.problems == {"data": ["1 questions of test are in train too: 'who is it'"]}
    notes = [f["what"] for f in found.check("data")["findings"] if f["level"] == "note"]
    assert notes == ["2 of 3 questions of train hold their own answer"]


# --- room and settings


@pytest.mark.slow
def test_a_full_disk(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["agentgrpo.preflight.plan.estimate"], "free_disk", lambda _: 10_000)
    found = diagnose(only=("disk",))
    [what] = found.problems["disk"]
    assert what.endswith(" and 0.00 GiB are free")
    assert found.check("disk")["findings"][0]["key"] == "run.keep_last"


def test_a_run_directory_that_cannot_be_made(diagnose: Diagnose, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = diagnose(f"run.dir={tmp_path}/file/run", only=("disk",))
    assert found.problems["disk"] == [f"run.dir={tmp_path}/file/run: nothing can be written in {tmp_path}/file"]


@pytest.mark.slow
def test_too_little_memory(diagnose: Diagnose) -> None:
    found = diagnose("hardware.memory_gib=0.001", only=("memory",))
    [what] = found.problems["memory"]
    assert re.fullmatch(r"a device needs 0\.\d\d GiB, and 0\.00 GiB are 90% of hardware\.memory_gib", what)


def test_a_context_that_is_too_small(diagnose: Diagnose) -> None:
    found = diagnose("engine.max_context=40", only=("episodes", "context"))
    [what] = found.problems["context"]
    assert what.startswith("a prompt of 20 tokens and a turn of 32 take 52, and the engine holds 40")
    assert found.check("context")["findings"][0]["key"] == "engine.max_context"


@pytest.mark.slow
def test_a_warm_up_that_never_ends(diagnose: Diagnose) -> None:
    found = diagnose("optimizer.warmup_steps=20", only=("schedule",))
    assert found.problems == {"schedule": ["optimizer.warmup_steps=20 of run.max_steps=20"]}


@pytest.mark.slow
def test_a_package_that_is_missing(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "find_spec", lambda name: None if name == "peft" else object())
    found = diagnose("model.lora.rank=4", only=("packages",))
    [what] = found.problems["packages"]
    assert what == "model.lora needs the package peft, which is not installed: pip install 'agentgrpo[lora]'"


# --- what breaks


def test_a_bug_of_the_users_is_named_and_the_others_go_on(diagnose: Diagnose) -> None:
    found = diagnose("environment=crashes", only=("episodes", "masks", "determinism"))
    [what] = found.problems["episodes"]
    assert what.startswith("KeyError: 'no such thing', planted.py:")
    assert found.check("masks")["reason"] == "needs: episodes, which could not be sampled"
    assert found.check("determinism")["status"] == "ok"


def test_a_model_that_is_not_there_leaves_the_other_checks(diagnose: Diagnose, tmp_path: Path) -> None:
    found = diagnose(f"model.path='{tmp_path}/none'", only=("schedule", "masks"))
    [what] = found.problems["parts"]
    assert "none" in what
    assert found.check("masks")["reason"] == "needs: parts, which could not be built"
