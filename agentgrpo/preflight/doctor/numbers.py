"""Whether engine and trainer hold the same weights, and whether the engine's samples depend on its load."""

from __future__ import annotations

import math
from itertools import chain
from statistics import fmean

import torch

from agentgrpo.config.build import takes
from agentgrpo.engines.probe import determinism_probe
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.preflight.doctor.masks import training_samples
from agentgrpo.training.canary import TOLERANCE, allowed_gap, refuse_stale_weights
from agentgrpo.training.precision import autocast

SAMPLES = 16
"""Maximum number of branches that the trainer scores."""
CAPPED = 0.1
"""Acceptable share of tokens capped by the correction in half precision."""


def _trainable(case: Case) -> None:
    if not case.built.engine.trainable:
        raise Skipped("the engine gives no log-probs of its own")


async def look_at_logprobs(case: Case, found: CheckNotes) -> None:
    """Log-probs of sampled tokens from the engine, compared with the trainer's."""
    _trainable(case)
    built = case.built
    samples = [s for s in training_samples(case) if any(s.loss_mask[1:])][:SAMPLES]
    if not samples:
        raise Skipped("needs: masks, and no token is trained on")
    with autocast(built.hardware.mixed_precision, built.policy.device):
        scored = built.policy.logprobs(samples, temperature=case.rollout.temperature)
    sampled = [
        [p for p, m in zip((s.rollout_logprobs or ())[1:], s.loss_mask[1:], strict=True) if m] for s, _ in scored
    ]
    ours = torch.cat([logprobs.detach().float().cpu() for _, logprobs in scored])
    theirs = torch.tensor([*chain(*sampled)])
    gaps: list[float] = (ours - theirs).abs().tolist()
    worst = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)  # max() does not treat NaN as the largest
    found.facts |= {
        "tokens": len(gaps),
        "largest gap": worst,
        "mean gap": fmean(gaps),
        "allowed": TOLERANCE,
    }
    if worst <= TOLERANCE:
        return
    beyond = sum(not gap <= TOLERANCE for gap in gaps)
    what = (
        f"{beyond} of {len(gaps)} sampled tokens have log-probs that differ by more than {TOLERANCE} nats between "
        f"engine and trainer, by {worst:.3g} at most"
    )
    algorithm = built.algorithm
    if built.hardware.rounds and algorithm.correction != "none" and math.isfinite(worst):
        capped = algorithm.correct(ours, theirs, [len(s) for s in sampled]).capped.float().mean().item()
        found.facts["capped"] = capped
        if capped <= CAPPED:
            found.note(
                f"{what}: bfloat16 rounds, and algorithm.correction={algorithm.correction} weighs it, cutting "
                f"{capped:.0%} of the tokens",
                why="the gradient is that of the trainer's policy, and a little noisier",
                key="hardware.dtype=float32",
            )
            return
    found.problem(
        what,
        why="the ratio of the policy to the one that sampled is wrong from the first step, and with it every gradient",
        key="algorithm.correction" if built.hardware.rounds else "engine.name",
    )


async def look_at_weights(case: Case, found: CheckNotes) -> None:
    """A fixed prompt, scored by the engine and by the policy. No weights are loaded for it."""
    _trainable(case)
    built = case.built
    tags = await refuse_stale_weights(built.engine, built.policy, built.canary_ids, -1)
    allowed = allowed_gap(built.policy)
    found.facts |= {"gap": tags["policy/canary_gap"], "allowed": allowed, "tokens": len(built.canary_ids)}


async def look_at_determinism(case: Case, found: CheckNotes) -> None:
    """Episodes sampled alone, together, and in another order must have the same tokens and log-probs, bit for bit."""
    _trainable(case)
    built, node = case.built, case.config["engine"]
    report = await determinism_probe(built.engine, [built.canary_ids])
    found.facts |= {"determinism": report.level, "largest difference": report.max_logprob_difference}
    if report.level == "exact":
        return
    if report.level == "none":
        what = "what an episode samples depends on what else is sampled beside it"
    else:
        what = f"log-probs depend by {report.max_logprob_difference:.2g} nats on what is sampled beside an episode"
    why = "two runs of one seed differ, and neither a replay nor a resumed run is the same"
    promises = takes("engine", node, "deterministic") and node.get("deterministic", True)
    if promises and report.level == "none" and not built.hardware.rounds:
        found.problem(f"{what}, with engine.deterministic=true", why=why, key="engine.deterministic")
    else:
        found.note(what, why=why, key="hardware.dtype=float32" if promises else "engine.deterministic")
