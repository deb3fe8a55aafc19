"""Model and tokenizer that mean different things by the same ids: what the run makes of it, and says."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import FinishReason, Message, Piece
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.hf import HFEngine
from agentgrpo.environments.conversation import Conversation
from agentgrpo.environments.factory import Attempt, TurnLimits
from agentgrpo.renderers.choose import choose_for_tools
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.tokens import added_tokens
from agentgrpo.run.tokens import settle_tokens
from agentgrpo.training.policy import Policy
from tests.builders import task
from tests.engines import tiny
from tests.engines.test_hf import force
from tests.renderers import families

OTHER = 258
"""</search>, an added token of the tiny tokenizer."""


def policy(*ends: int) -> Policy:
    model = tiny.model("llama")
    model.generation_config = GenerationConfig(eos_token_id=list(ends))
    return Policy(model=model, tokenizer=tiny.tokenizer())


def test_an_end_that_generation_config_alone_names_is_taken_over() -> None:
    renderer = PlainRenderer(tokenizer=tiny.tokenizer())
    [note] = settle_tokens(renderer, policy(tiny.EOS, OTHER))
    assert note == "generation_config.json ends turns with '</search>' (258) too, and so does this run"
    assert renderer.stop_token_ids == (tiny.EOS, OTHER)
    assert list(settle_tokens(renderer, policy(tiny.EOS, OTHER))) == []


def test_a_letter_that_it_names_ends_nothing() -> None:
    renderer = PlainRenderer(tokenizer=tiny.tokenizer())
    [note] = settle_tokens(renderer, policy(tiny.EOS, 5))
    assert note == (
        "generation_config.json ends turns with '&' (5) too, which is no control token of the tokenizer: here it ends "
        "none"
    )
    assert renderer.stop_token_ids == (tiny.EOS,)


@pytest.mark.parametrize("ends", [(257,), (257, 258)])
async def test_the_turn_ends_with_it_and_it_is_trained(ends: tuple[int, ...]) -> None:
    of = policy(*ends)
    force(of.model, OTHER)
    renderer = PlainRenderer(tokenizer=tiny.tokenizer())
    list(settle_tokens(renderer, of))
    conversation = Conversation(
        HFEngine(model=of.model, tokenizer=tiny.tokenizer(), run_seed=0),
        renderer,
        Attempt(task=task(), sample_index=0, stream="train/0", max_context=512),
        SamplingParams(max_tokens=4),
        TurnLimits(),
    )
    conversation.open([Message(role="user", content="?")], None)
    turn = await conversation.sample()
    assert turn is not None
    if OTHER in ends:
        assert (turn.token_ids, turn.content, turn.finish_reason) == ((OTHER,), "", FinishReason.STOP)
    else:
        assert (turn.token_ids, turn.finish_reason) == ((OTHER,) * 4, FinishReason.LENGTH)
    assert conversation.branch.loss_mask[-1] == 1


@pytest.mark.parametrize("name", ["react", "tags", "chatml", "llama3", "mistral"])
def test_what_follows_such_an_end_is_what_follows_eos(name: str) -> None:
    """But for a family of chat turns, which closes the turn with its own mark first."""
    tokenizer = families.tokenizer(name)
    renderer = choose_for_tools(name, tokenizer=tokenizer)
    before = renderer.stop_token_ids
    other = next(i for i in added_tokens(tokenizer).values() if i not in before)
    model = tiny.model("llama")
    model.generation_config = GenerationConfig(eos_token_id=[*before, other])
    assert any(
        "and so does this run" in note for note in settle_tokens(renderer, Policy(model=model, tokenizer=tokenizer))
    )
    assert renderer.stop_token_ids == (*before, other)
    said, word = renderer.encode_action("Yes."), (Piece("Sure?", False),)
    after = renderer.tell(word, sampled=(*said, before[0]))
    closing = before[:1] if renderer.in_turns else ()
    assert renderer.tell(word, sampled=(*said, other)) == (*closing, *after)
    ended, cut = renderer.parse((*said, other)), renderer.parse(said)
    assert (ended.answer or ended.content) == "Yes."
    assert (cut.answer, cut.content) == (None, "Yes.")


def test_tokens_without_an_embedding_are_said_and_refused_as_an_end() -> None:
    model = tiny.model("qwen2")
    with torch.no_grad():
        model.resize_token_embeddings(250)
    of = Policy(model=model, tokenizer=tiny.tokenizer())
    with pytest.raises(ConfigError, match=r"ends turns with '<\|eos\|>' \(257\), and the model has embeddings for 250"):
        list(settle_tokens(PlainRenderer(tokenizer=tiny.tokenizer()), of))
    model.resize_token_embeddings(258)
    of = Policy(model=model, tokenizer=tiny.tokenizer())
    [note] = settle_tokens(PlainRenderer(tokenizer=tiny.tokenizer()), of)
    assert note.startswith("1 tokens of the tokenizer have no embedding in the model, such as '</search>': ")
