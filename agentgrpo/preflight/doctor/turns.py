"""Ends of turns and control tokens: tokenizer, model and renderer must agree on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgrpo.core.messages import ParsedTurn
from agentgrpo.core.types import FinishReason
from agentgrpo.preflight.doctor.case import STREAM, Case
from agentgrpo.preflight.doctor.finding import CheckNotes
from agentgrpo.preflight.doctor.recording import Said
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.tokens import added_tokens
from agentgrpo.training.policy import Policy

MAX_CONTROLS = 256
"""Maximum number of added tokens to try."""
_KEY = "model.renderer"


async def look_at_stops(case: Case, found: CheckNotes) -> None:
    """Tokenizer, model and renderer must end a turn with the same single token, and sampling that token must end the
    turn."""
    built = case.built
    tokenizer, renderer = built.policy.tokenizer, built.renderer
    stops = set(renderer.stop_token_ids)
    found.facts |= {"stop tokens": {renderer.decode([i]): i for i in sorted(stops)}, "eos": tokenizer.eos_token_id}
    _model_ends(built.policy, stops, renderer, found)
    found.facts["embeddings without a token"] = len(built.policy.vocabulary.unused)
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id in stops:
        found.note(
            f"the padding token {renderer.decode([tokenizer.pad_token_id])!r} also ends turns",
            why="here nothing is padded; a trainer that masks padding would take the end of turns out of the loss",
            key="",
        )
    _controls(renderer, added_tokens(tokenizer), found)
    _written_end(case, found)


def _model_ends(policy: Policy, stops: set[int], renderer: Renderer, found: CheckNotes) -> None:
    """The model's own end-of-turn tokens must be stop tokens here."""
    source, ends = policy.ends
    found.facts[f"eos of {source}"] = sorted(ends)
    missing = sorted({*ends} - stops)
    texts = ", ".join(f"{renderer.decode([i])!r} ({i})" for i in missing)
    if missing and stops.isdisjoint(ends):
        found.problem(
            f"{source} ends turns with {texts}, and the renderer with {sorted(stops)}",
            why="the model's own end of a turn would not end it here: it goes on to the limit of tokens, and what "
            "it is trained to stop with is another token",
            key=_KEY,
        )
    elif missing:
        found.note(
            f"{source} also ends turns with {texts}, which ends none here",
            why="a turn that the model ends so goes on to the limit of tokens",
            key=_KEY,
        )


def _controls(renderer: Renderer, added: dict[str, int], found: CheckNotes) -> None:
    """Every added token must encode to itself and decode to itself."""
    wrong = []
    for text, i in list(added.items())[:MAX_CONTROLS]:
        if renderer.encode_action(text) != (i,) or renderer.decode([i]) != text:
            wrong.append(f"{text!r} ({i})")
    found.facts["added tokens"] = len(added)
    if wrong:
        found.note(
            f"{len(wrong)} added tokens do not come back as they are written: {', '.join(wrong[:5])}",
            why="markup that the policy samples would be read as something else",
            key=_KEY,
        )


def _written_end(case: Case, found: CheckNotes) -> None:
    """A demonstrated turn must end with a stop token or stop string, like a sampled turn."""
    renderer: Any = case.built.renderer
    if not hasattr(renderer, "write"):
        return
    text = renderer.write(ParsedTurn(answer="probe"))
    ids = renderer.encode_action(text)
    if not (ids and ids[-1] in renderer.stop_token_ids) and not text.endswith(tuple(renderer.stop_strings) or ("\0",)):
        found.problem(
            f"an answer is written as {text!r}, which ends with neither a stop token nor a stop string",
            why="a policy that writes so never ends its turn",
            key=_KEY,
        )


async def look_at_ends(case: Case, found: CheckNotes) -> None:
    """Every sampled turn that stopped must end with its stop token, and no token may follow a stop token."""
    said = [s for e in case.episodes for s in case.sample.recording.said_in(e, STREAM)]
    stopped = [s for s in said if s.completion.finish_reason is FinishReason.STOP]
    renderer = case.built.renderer
    without = [s for s in stopped if not _ends_with_stop(s, renderer)]
    passed = [s for s in said if set(s.completion.token_ids[:-1]) & set(s.sampling.stop_token_ids)]
    found.facts |= {
        "turns": len(said),
        "stopped": len(stopped),
        "cut at the limit": len(said) - len(stopped),
    }
    if without:
        found.problem(
            f"{len(without)} of {len(stopped)} turns that stopped do not hold the token they stopped with",
            why="the token that ends a turn gets no gradient, and the policy cannot learn when to stop",
            key="engine.name",
        )
    if passed:
        found.problem(
            f"{len(passed)} of {len(said)} turns go on behind a stop token",
            why="what comes after the end of a turn is trained on as if it had been meant",
            key="engine.name",
        )
    _too_long(said, stopped, case, found)


def _too_long(said: Sequence[Said], stopped: Sequence[Said], case: Case, found: CheckNotes) -> None:
    share = 1 - len(stopped) / len(said) if said else 0.0
    if share <= 0.25:
        return
    what = f"{share:.0%} of {len(said)} sampled turns were cut at rollout.max_tokens={case.rollout.max_tokens}"
    why = "a turn that is cut has no end, and mostly no action: what it is graded by is chance"
    if share > 0.9:
        found.problem(what, why=why, key="rollout.max_tokens")
    else:
        found.note(what, why=why, key="rollout.max_tokens")


def _ends_with_stop(said: Said, renderer: Renderer) -> bool:
    ids = said.completion.token_ids
    if ids and ids[-1] in said.sampling.stop_token_ids:
        return True
    text = renderer.decode(ids)
    tail = renderer.decode(ids[:-1])  # the last token completes the stop string
    return any(stop in text and stop not in tail for stop in said.sampling.stop)
