"""Rows of the output layer that stand for no token: engine and trainer take the same distribution over the others."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.hf import HFEngine
from agentgrpo.engines.vocabulary import Vocabulary
from agentgrpo.training.policy import Policy
from tests.engines import tiny

SAMPLED = 200


def narrower(*without: int) -> PreTrainedTokenizerFast:
    """The tokenizer, without some of its ids: to the model they are gaps."""

    class Narrower(PreTrainedTokenizerFast):
        def get_vocab(self) -> dict[str, int]:
            return {token: i for token, i in super().get_vocab().items() if i not in without}

    return Narrower(tokenizer_object=tiny.tokenizer().backend_tokenizer, eos_token="<|eos|>", pad_token="<|pad|>")


@pytest.mark.parametrize(
    ("ids", "rows", "expected"),
    [
        ((0, 1, 2), 3, Vocabulary(3, 3, (), ())),
        ((0, 1, 2), 5, Vocabulary(5, 3, (), ())),
        ((0, 2), 4, Vocabulary(4, 3, (1,), ())),
        ((0, 1, 2, 7), 3, Vocabulary(3, 3, (), ("t7",))),
    ],
)
def test_what_rows_stand_for(ids: tuple[int, ...], rows: int, expected: Vocabulary) -> None:
    class Ids:
        def get_vocab(self) -> dict[str, int]:
            return {f"t{i}": i for i in ids}

    found = Vocabulary.of(rows, Ids())
    assert found == expected
    assert found.unused == tuple(i for i in range(rows) if i not in ids)


def test_a_model_without_such_rows_is_computed_as_ever() -> None:
    logits = torch.randn(2, 3)
    assert Vocabulary(3, 3, (), ("beyond",)).within(logits) is logits


async def turns_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], list[float]]]:
    """Prompt and completion, with the log-probs of the completion, of several turns."""
    engine = HFEngine(model=model, tokenizer=tokenizer, run_seed=7)
    turns = []
    for i in range(4):
        done = await engine.generate(
            tiny.prompt(1), SamplingParams(max_tokens=SAMPLED // 4), SeedKey("train/0", "t", i, 0)
        )
        turns.append(([*tiny.prompt(1), *done.token_ids], list(done.logprobs)))
    await engine.close()
    return turns


@pytest.mark.parametrize("without", [*(pytest.param(w, marks=pytest.mark.slow) for w in ((), (3, 120, 121))), (258,)])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
async def test_it_is_never_sampled_and_the_trainer_scores_what_the_engine_sampled(
    family: str, without: tuple[int, ...]
) -> None:
    model, tokenizer = tiny.model(family), narrower(*without)
    policy = Policy(model=model, tokenizer=tokenizer)
    assert set(policy.vocabulary.unused) == {*without, *range(259, 320)}
    turns = await turns_of(model, tokenizer)
    sampled = [token for tokens, logprobs in turns for token in tokens[-len(logprobs) :]]
    assert len(sampled) == SAMPLED
    assert not {*sampled} & {*policy.vocabulary.unused}
    samples = [
        TrainingSample(
            group_id="g",
            sample_index=i,
            token_ids=tuple(tokens),
            loss_mask=(0,) * (len(tokens) - len(logprobs)) + (1,) * len(logprobs),
            rollout_logprobs=(0.0,) * (len(tokens) - len(logprobs)) + tuple(logprobs),
            advantage=1.0,
            num_prompt_tokens=len(tokens) - len(logprobs),
            policy_version=0,
        )
        for i, (tokens, logprobs) in enumerate(turns)
    ]
    for sample, scores in policy.logprobs(samples):
        engine = turns[sample.sample_index][1]
        assert float((scores - torch.tensor(engine)).abs().max()) < 1e-5
    whole = policy.logprobs(samples, all_rows=True)
    assert all(float((a - b).min()) > 0.05 for (_, a), (_, b) in zip(policy.logprobs(samples), whole, strict=True))


async def test_greedy_takes_the_best_of_the_tokens() -> None:
    model = tiny.model("qwen2")
    with torch.no_grad():  # what comes first of all rows is no token
        model.lm_head.weight[300] = 3 * model.lm_head.weight[5]
        model.lm_head.weight[120] = 2 * model.lm_head.weight[5]
    engine = HFEngine(model=model, tokenizer=narrower(120), run_seed=7)
    done = await engine.generate(
        tiny.prompt(1), SamplingParams(max_tokens=40, temperature=0.0), SeedKey("eval", "t", 0, 0)
    )
    assert not {*done.token_ids} & {120, 300}
