"""What all prompts of a memory open with: the engine is told, and computes it once."""

from __future__ import annotations

from agentgrpo.engines.base import SamplingParams
from agentgrpo.rollout.loop import PolicyRunner
from tests.engines.tiny import engine, model
from tests.environments.memory.scripted import EOS, TASK, insert, made_of, make, play, tags, token_ids_of
from tests.environments.scripted import ScriptedEngine, renderer, tokenizer


def prompt_of(agent: PolicyRunner, chunk: str) -> tuple[int, ...]:
    """With nothing written down."""
    return token_ids_of(agent, made_of(agent).new_memory(), chunk)[0]


async def test_it_ends_where_the_memory_begins_and_every_turn_is_sampled_with_it() -> None:
    played = await play(
        f"{insert('Velmor lives in Castin')}{EOS}", f"{insert('Velmor eats tea')}{EOS}", instructions="Write it all."
    )
    contexts, samplings = played.engine.contexts, played.engine.samplings
    agent = make(ScriptedEngine(()), instructions="Write it all.")
    shared = made_of(agent).shared_opening
    assert [s.opening for s in samplings] == [shared, shared]
    texts = [renderer().decode(tokenizer()(context)["input_ids"][:shared]) for context in contexts]
    assert texts == [texts[0]] * 2
    assert "Write it all." in texts[0]
    assert texts[0].endswith("Memory:\n")


async def test_without_instructions_there_is_next_to_none() -> None:
    agent = make(ScriptedEngine(()))
    assert renderer().decode(prompt_of(agent, "x")[: made_of(agent).shared_opening]).endswith("Memory:\n")


async def test_a_real_engine_computes_it_once_for_an_episode() -> None:
    backend = engine(model())
    agent = make(backend, renderer=tags(), instructions="Write down what is said, and nothing else. " * 3)
    for sample in range(2):
        await agent.run(TASK, sample_index=sample, stream="train/0", sampling=SamplingParams(max_tokens=6))
    prompts = [len(prompt_of(agent, chunk)) for chunk in TASK.metadata["chunks"]]
    shared = made_of(agent).shared_opening
    once = shared + sum(n - 1 - shared for n in prompts)
    assert shared > 100
    assert backend.stats.prefill_tokens == 2 * once  # one after the other, and none of them wrote anything
