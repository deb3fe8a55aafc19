"""Turns that are held to a form: valid whatever the weights, under log-probs that the trainer takes too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgrpo.core.errors import EngineError, TrainingError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import FinishReason, ToolCall, TrainingSample
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.grammar import Matcher, Support, problem_of
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.vocabulary import NEVER
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.renderers.form import TurnForm, grammar_of
from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy
from agentgrpo.training.trainer import Trainer
from tests.renderers import families

FAMILIES = ("chatml", "qwen3, opened", "llama3", "mistral, pieces", "gemma")
PLACE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "floors": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["tower", '\u00fcber "b"', "mill"]},
        "inner": {"$ref": "#/$defs/point"},
    },
    "required": ["title", "floors", "kind", "inner"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}},
}
CHOICE = {"enum": ["yes", "no", None, 3]}
LOOK = ToolSpec(
    name="look_up",
    description="Looks it up.",
    parameters={
        "type": "object",
        "properties": {"key": {"type": "string", "maxLength": 6}, "deep": {"type": "boolean"}},
        "required": ["key", "deep"],
        "additionalProperties": False,
    },
)
STOP = ToolSpec(name="stop", description="Stops.", parameters={"type": "object", "additionalProperties": False})
FORMS = (
    TurnForm(schema=PLACE),
    TurnForm(schema=CHOICE),
    TurnForm(schema=None, tools=(LOOK, STOP)),
    TurnForm(schema=PLACE, tools=(LOOK,)),
)


@cache
def policy_of(family: str) -> Policy:
    """Random weights, spread wide; more rows than the tokenizer has ids."""
    torch.manual_seed(1)
    tokenizer = families.tokenizer(family)
    config = Qwen3Config(
        vocab_size=len(tokenizer) + 13,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.15,
        attn_implementation="sdpa",
    )
    return Policy(model=Qwen3ForCausalLM(config).eval(), tokenizer=tokenizer)


def engine_of(family: str) -> HFEngine:
    policy = policy_of(family)
    return HFEngine(model=policy.model, tokenizer=policy.tokenizer, run_seed=3)


async def turn_of(
    engine: HFEngine, family: str, number: int, form: TurnForm | None, **options: Any
) -> tuple[tuple[int, ...], str, Completion]:
    renderer = families.renderer(family)
    context = renderer.encode_action(f"Question {number}, please.\n")
    grammar = "" if form is None else grammar_of(form, renderer, has_tools=True)
    sampling = SamplingParams(max_tokens=600, stop_token_ids=renderer.stop_token_ids, stop=renderer.stop_strings)
    sampling = replace(sampling, grammar=grammar, **options)
    return context, grammar, await engine.generate(context, sampling, SeedKey("s", str(number), 0, 0))


def sample_of(number: int, context: tuple[int, ...], grammar: str, done: Completion) -> TrainingSample:
    before = len(context)
    return TrainingSample(
        group_id="g",
        sample_index=number,
        token_ids=(*context, *done.token_ids),
        loss_mask=(0,) * before + (1,) * len(done.token_ids),
        rollout_logprobs=(0.0,) * before + done.logprobs,
        advantage=1.0 if number % 2 else -1.0,
        num_prompt_tokens=before,
        policy_version=0,
        grammars=((before, len(done.token_ids), grammar),) if grammar else (),
    )


def check_valid(family: str, form: TurnForm, done: Completion) -> None:
    assert done.finish_reason is FinishReason.STOP
    turn = families.renderer(family).parse(done.token_ids)
    if turn.answer is not None:
        assert form.schema is not None
        jsonschema.validate(json.loads(turn.answer), form.schema)
        return
    [call] = turn.calls
    assert isinstance(call, ToolCall)
    schemas: Mapping[str, Mapping[str, Any]] = {tool.name: tool.parameters for tool in form.tools}
    jsonschema.validate(dict(call.arguments), dict(schemas[call.name]))


@pytest.mark.parametrize("number", [8, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
async def test_turns_are_valid_and_the_trainer_has_the_samplers_logprobs(family: str, number: int) -> None:
    engine = engine_of(family)
    forms = [FORMS[i % len(FORMS)] for i in range(number)]
    turns = await asyncio.gather(*(turn_of(engine, family, i, form) for i, form in enumerate(forms)))
    for form, (_, _, done) in zip(forms, turns, strict=True):
        check_valid(family, form, done)
    samples = [sample_of(i, *turn) for i, turn in enumerate(turns)]
    free = [replace(s, grammars=()) for s in samples]
    policy = policy_of(family)
    gaps, apart = [], []
    for (sample, held), (_, whole) in zip(policy.logprobs(samples), policy.logprobs(free), strict=True):
        engine_says = torch.tensor(turns[sample.sample_index][2].logprobs)
        gaps.append(float((held - engine_says).abs().max()))
        apart.append(float((whole - engine_says).abs().max()))
    assert max(gaps) < 1e-4, max(gaps)
    assert min(apart) > 1.0  # the policy alone would hardly have written any of it


async def test_a_neighbour_that_is_held_changes_nothing_for_one_that_is_free() -> None:
    engine = engine_of("chatml")
    alone = await asyncio.gather(*(turn_of(engine, "chatml", i, None, max_tokens=30) for i in range(6)))
    held = await asyncio.gather(*(turn_of(engine, "chatml", i, FORMS[i % 4]) for i in range(6, 12)))
    both = engine_of("chatml")
    beside = await asyncio.gather(
        *(turn_of(both, "chatml", i, None, max_tokens=30) for i in range(6)),
        *(turn_of(both, "chatml", i, FORMS[i % 4]) for i in range(6, 12)),
    )
    assert [(t.token_ids, t.logprobs) for *_, t in alone] == [(t.token_ids, t.logprobs) for *_, t in beside[:6]]
    assert [(t.token_ids, t.logprobs) for *_, t in held] == [(t.token_ids, t.logprobs) for *_, t in beside[6:]]


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5, "min_p": 0.01}]
)
async def test_greedy_and_filtered_turns_are_valid_too(options: Mapping[str, float]) -> None:
    engine = engine_of("llama3")
    for i, form in enumerate(FORMS):
        _, _, done = await turn_of(engine, "llama3", i, form, **options)
        check_valid("llama3", form, done)


async def test_a_limit_of_tokens_cuts_a_held_turn_short() -> None:
    context, grammar, done = await turn_of(engine_of("chatml"), "chatml", 0, FORMS[0], max_tokens=5)
    assert (len(done.token_ids), done.finish_reason) == (5, FinishReason.LENGTH)
    [(_, scores)] = policy_of("chatml").logprobs([sample_of(0, context, grammar, done)])
    assert float((scores - torch.tensor(done.logprobs)).abs().max()) < 1e-4


def trainer_of(policy: Policy, **algorithm: Any) -> Trainer:
    optimizer = AdamW(model=policy.model, lr=1e-3, warmup_steps=0)
    return Trainer(policy=policy, reference=None, optimizer=optimizer, algorithm=Algorithm(**algorithm), total_steps=4)


async def test_tokens_without_an_alternative_have_no_gradient_and_the_others_that_of_the_held_distribution() -> None:
    """The update's gradient against autograd's, of log-softmaxes over the allowed tokens alone."""
    context, grammar, done = await turn_of(engine_of("chatml"), "chatml", 1, FORMS[0])
    sample = sample_of(1, context, grammar, done)
    policy = policy_of("chatml")
    model = policy.model
    support = Support.of_turns([(0, grammar, done.token_ids)], policy.tokenizer)
    logits = model(torch.tensor([sample.token_ids[:-1]])).logits[0, len(context) - 1 :, : len(policy.tokenizer)]
    bits = (support.bits[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten(1)[:, : logits.shape[1]]
    logprobs = logits.masked_fill(~bits, -torch.inf).log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0]
    assert [float(x) == 0.0 for x in chosen.detach()] == [int(row.sum()) == 1 for row in bits]
    assert 5 < sum(int(row.sum()) == 1 for row in bits) < len(bits) - 5
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(-chosen.sum() / len(chosen), parameters)
    seen: dict[str, float] = {}
    before = [p.detach().clone() for p in parameters]
    trainer_of(policy).update([sample], step=0, guard=lambda tags: seen.update(tags))
    with torch.no_grad():
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)
    norm = float(torch.stack([g.norm() for g in wanted]).norm())
    assert seen["gradients/norm"] == pytest.approx(norm, rel=1e-4)


async def test_a_turn_that_its_grammar_does_not_allow_is_refused_before_anything_changes() -> None:
    context, grammar, done = await turn_of(engine_of("chatml"), "chatml", 2, FORMS[0])
    wrong = replace(done, token_ids=(*done.token_ids[:3], done.token_ids[0], *done.token_ids[4:]))
    policy = policy_of("chatml")
    before = [p.detach().clone() for p in policy.model.parameters()]
    with pytest.raises(TrainingError, match=r"step 0: token 3 of a turn, id \d+, is not allowed by the grammar"):
        trainer_of(policy).update([sample_of(1, context, grammar, wrong)], step=0)
    assert all(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True))


async def test_a_grammar_that_is_none_is_an_error_of_its_turn() -> None:
    engine = engine_of("chatml")
    with pytest.raises(EngineError, match="the grammar of a turn") as e:
        await engine.generate((1, 2), SamplingParams(grammar="start: <"), SeedKey("s", "t", 0, 0))
    assert e.value.kind == "grammar"
    _, _, done = await turn_of(engine, "chatml", 3, FORMS[1])
    check_valid("chatml", FORMS[1], done)


def test_what_no_answer_can_be_held_to() -> None:
    assert problem_of(PLACE) == ""
    assert "not_a_type" in problem_of({"type": "not_a_type"})
    assert problem_of({"type": "string", "contentEncoding": "base64", "not": {}}) != ""


def test_rows_that_are_held_and_rows_that_are_not() -> None:
    tokenizer = families.tokenizer("chatml")
    grammar = grammar_of(TurnForm(schema=CHOICE), families.renderer("chatml"), has_tools=True)
    matcher = Matcher(grammar, tokenizer)
    support = Support.of_next([None, matcher, None])
    assert support is not None
    logits = torch.zeros(3, len(tokenizer) + 20)
    support.hold(logits)
    assert not logits[0].any()
    assert not logits[2].any()
    open_ids = [i for i, x in enumerate(logits[1].tolist()) if x == 0.0]
    assert {tokenizer.decode([i])[0] for i in open_ids} == {'"', "n", "3"}
    assert logits[1].min() == NEVER
    later = Support(torch.tensor([2, 5, 9]), support.bits.repeat(3, 1))
    assert later.within(slice(4, 9)).rows.tolist() == [1]
    assert later.within(slice(0, 2)).hold(torch.zeros(2, 4)).tolist() == torch.zeros(2, 4).tolist()
    assert Support.of_next([None]) is None
