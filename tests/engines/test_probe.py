from __future__ import annotations

import dataclasses

from agentgrpo.engines import packing
from agentgrpo.engines.probe import ProbeReport, determinism_probe
from agentgrpo.engines.scripted import ScriptedEngine
from tests.engines.tiny import engine, prompt

PROMPTS = [prompt(i) for i in range(3)]


async def test_the_engine_is_exact_and_left_empty():
    backend = engine()
    assert await determinism_probe(backend, PROMPTS) == ProbeReport(same_tokens=True, max_logprob_difference=0.0)
    assert backend._schedule.num_contexts == 0
    assert (await determinism_probe(backend, PROMPTS[:1])).level == "exact"


async def test_an_engine_whose_bits_depend_on_company_is_found_out(monkeypatch):
    """Without padding, a packed row of one token runs through another kernel than one of seventeen."""
    monkeypatch.setattr(packing, "ROW_MULTIPLE", 1)
    report = await determinism_probe(engine(), PROMPTS)
    assert report.level == "tokens-only"
    assert 0 < report.max_logprob_difference < 1e-4


async def test_an_engine_that_samples_something_else_is_found_out():
    calls: list[int] = []

    def script(key, text):
        calls.append(key.turn)
        return "ab" if len(calls) < 9 else "ac"

    backend = ScriptedEngine(
        encode=lambda t: [ord(c) for c in t], decode=lambda ids: "".join(map(chr, ids)), script=script
    )
    report = await determinism_probe(backend, PROMPTS)
    assert (report.level, report.same_tokens) == ("none", False)


def test_levels():
    report = ProbeReport(same_tokens=True, max_logprob_difference=1e-9)
    assert report.level == "tokens-only"
    assert dataclasses.replace(report, max_logprob_difference=0.0).level == "exact"
