from __future__ import annotations

import dataclasses

from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.probe import ProbeReport, determinism_probe
from agentgrpo.engines.scripted import ScriptedEngine
from tests.engines.tiny import engine, model, prompt, tokenizer

PROMPTS = [prompt(i) for i in range(3)]


async def test_the_engine_is_exact_and_left_empty():
    backend = engine()
    assert await determinism_probe(backend, PROMPTS) == ProbeReport(same_tokens=True, max_logprob_difference=0.0)
    assert backend._schedule.num_contexts == 0
    assert (await determinism_probe(backend, PROMPTS[:1])).level == "exact"


class Crowded(HFEngine):
    """As where a kernel is chosen by how many rows there are: the last bits differ."""

    def _draw(self, logits, turns):
        return super()._draw(logits * (1 + 1e-6 * len(turns)), turns)


async def test_an_engine_whose_bits_depend_on_company_is_found_out():
    report = await determinism_probe(Crowded(model=model(), tokenizer=tokenizer(), run_seed=7), PROMPTS)
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
