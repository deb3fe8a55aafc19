"""What the checks are made of."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import FinishReason
from agentgrpo.engines.base import Completion, Engine, SamplingParams, SeedKey
from agentgrpo.grpo.packing import pack
from agentgrpo.preflight.doctor import masks
from agentgrpo.preflight.doctor.case import Case, key_in, told
from agentgrpo.preflight.doctor.examination import UNASKED, Check, _made
from agentgrpo.preflight.doctor.examples import TEXTS, arguments_of
from agentgrpo.preflight.doctor.finding import CheckNotes, Result, status_of
from agentgrpo.preflight.doctor.recording import RecordingEngine
from agentgrpo.preflight.doctor.services import probe
from agentgrpo.services.budget import Budget
from agentgrpo.services.cassette import Cassette, CassetteMiss, CassetteSettings, ServiceRequest
from agentgrpo.services.meter import Meter
from agentgrpo.services.service import Form, Request
from tests import builders
from tests.preflight.doctor.conftest import Diagnose

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "how": {"enum": ["a", "b"]},
        "count": {"type": "integer", "minimum": 3},
        "share": {"type": "number"},
        "is_so": {"type": "boolean"},
        "many": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "required": ["x"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["text", "inner"],
}


def test_invented_arguments_fit_the_schema_and_differ() -> None:
    made = [arguments_of(SCHEMA, variant) for variant in range(len(TEXTS))]
    for arguments in made:
        Draft202012Validator(SCHEMA).validate(arguments)
        assert arguments.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    assert [arguments["text"] for arguments in made] == list(TEXTS)
    assert made[0] == {
        "text": "1",
        "how": "a",
        "count": 3,
        "share": 1.0,
        "is_so": True,
        "many": ["1"],
        "inner": {"x": 1},
        "either": "1",
    }


class Counted:
    """Says 1, 2, 3, ..."""

    trainable, max_context = True, 99

    def __init__(self) -> None:
        self.said = 0
        self.released: list[SeedKey] = []

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        self.said += 1
        return Completion(token_ids=(self.said,), logprobs=(0.0,), finish_reason=FinishReason.STOP, policy_version=0)

    def release(self, key: SeedKey) -> None:
        self.released.append(key)


async def test_the_recording_engine_remembers_the_last_attempt_at_an_episode() -> None:
    engine = Counted()
    recording = RecordingEngine(cast(Engine, engine))
    key = SeedKey("train/0", "t0", 0, 0)
    for turn in range(2):
        await recording.generate([5, turn], SamplingParams(), key._replace(turn=turn))
    await recording.generate([7], SamplingParams(), key._replace(sample_index=1))
    recording.release(key)
    assert recording.trainable is True
    assert engine.released == [key]
    episode = builders.episode()
    assert [(s.context, s.completion.token_ids) for s in recording.said_in(episode, "train/0")] == [
        ((5, 0), (1,)),
        ((5, 1), (2,)),
    ]
    await recording.generate([9], SamplingParams(), key)  # the attempt before it has failed
    assert [s.context for s in recording.said_in(episode, "train/0")] == [(9,)]
    assert recording.said_in(episode, "eval") == []


async def test_what_never_answers_is_given_up_and_what_sometimes_fails_is_not() -> None:
    asked: list[int] = []

    def request(i: int, fails: bool) -> Any:
        async def ask() -> int:
            asked.append(i)
            if fails:
                raise RetrieverError(f"no {i}", kind="timeout")
            return i

        return ask

    dead = await probe([request(i, True) for i in range(8)])
    assert (asked, dead.errors, dead.facts()["error rate"]) == ([0, 1], ["no 0", "no 1"], 1.0)
    asked.clear()
    weak = await probe([request(i, i % 2 == 0) for i in range(4)])
    assert (asked, weak.answers, weak.errors) == ([0, 1, 2, 3], [1, 3], ["no 0", "no 2"])
    assert (weak.facts()["probes"], weak.facts()["error rate"]) == (4, 0.5)


def test_errors_are_told_in_one_line_with_the_setting_that_they_name() -> None:
    assert told(ConfigError("environment.max_turns 0:\n 1 or more")) == "environment.max_turns 0: 1 or more"
    assert key_in("see run.eval.prices.web=0.1 or environment.top_k") == "run.eval.prices.web"
    assert key_in("truncate.it") == ""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert told(caught.value).startswith("JSONDecodeError: Expecting property name")
    assert "decoder.py:" in told(caught.value)


def test_the_worst_finding_is_the_status() -> None:
    found = CheckNotes()
    assert status_of(found.findings) == "ok"
    found.note("a", why="b", key="c")
    assert status_of(found.findings) == "note"
    found.problem("a", why="b", key="c")
    assert status_of(found.findings) == "problem"


def test_targets_that_are_packed_wrongly(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(*args: Any, **options: Any) -> Any:
        for batch in pack(*args, **options):
            batch.targets.copy_(batch.targets.roll(1))
            yield batch

    monkeypatch.setattr(masks, "pack", shifted)
    found = diagnose(only=("episodes", "masks"))
    assert found.problems == {"masks": ["9 of 9 samples are packed with other targets than their masks say"]}


def test_a_price_that_only_the_reward_knows_is_noted(diagnose: Diagnose) -> None:
    cost = "+reward.terms.tool_cost={prices: {probe: -0.1}, other: 0}"
    found = diagnose("+run.eval.prices.probe=0", cost, only=("prices",))
    [finding] = found.check("prices")["findings"]
    assert finding["level"] == "note"
    assert finding["what"] == "a call of probe costs nothing in the figures, though the reward charges 0.1"


def test_a_budget_that_the_run_would_spend(diagnose: Diagnose) -> None:
    given = ("environment=search", "retriever=http", "budget.prices.vdb=1", "budget.per_run.money=5")
    [what] = diagnose(*given, "environment.reranker=none", only=("prices",)).problems["prices"]
    assert what == "the run may take 1800 of money, and budget.per_run.money allows 5"


async def test_nothing_is_recorded_on_the_cassette_of_the_run(tmp_path: Path) -> None:
    tape, folder = tmp_path / "tape", tmp_path / "folder"
    folder.mkdir()
    asked = [ServiceRequest.of("web", {"query": query}) for query in ("the run's", "the doctor's")]

    async def ask(path: Path, request: ServiceRequest, answer: str) -> str:
        meter = Meter(cassette=CassetteSettings(mode="fill", path=path), budget=Budget(), run_dir=folder)

        async def live() -> str:
            return answer

        try:
            form = Form(read=str, write=str, error=RetrieverError)
            whole = Request(kind="web", body=json.loads(request.text), live=live, form=form)
            return (await meter.ask(whole)).value
        finally:
            await meter.close()

    await ask(tape, asked[0], "kept")
    config = {"run": {"dir": "runs/x"}, "cassette": {"mode": "fill", "path": str(tape)}}
    tried = Case(config=config, snapshot="", folder=folder).tried
    own = Path(tried["cassette"]["path"])
    assert await ask(own, asked[0], "asked again") == "kept"
    await ask(own, asked[1], "made up")
    found = [Cassette(path, read_only=True).find_each([request.key for request in asked]) for path in (own, tape)]
    assert [[answer is not None for answer in answers] for answers in found] == [[True, True], [True, False]]


def test_only_what_a_run_asks_is_missed_on_a_cassette(tmp_path: Path) -> None:
    def asks(case: Case, found: CheckNotes) -> None:
        raise CassetteMiss("nothing there")

    case = Case(config={}, snapshot="", folder=tmp_path)
    with asyncio.Runner() as runner:
        made, invented = (_made(Check("c", asks, invents=invents), case, runner) for invents in (False, True))
    assert [f.what for f in made.findings] == ["nothing there"]
    assert (made.status, invented.status, invented.reason) == ("problem", "skipped", UNASKED)


def test_figures_that_json_does_not_have_are_texts() -> None:
    facts = {"gap": math.nan, "of": [math.inf, 1.5, {"n": 2}]}
    shown = Result(name="c", status="ok", seconds=0.1, facts=facts).to_json()["facts"]
    assert shown == {"gap": "nan", "of": ["inf", 1.5, {"n": 2}]}
