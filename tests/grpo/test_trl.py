"""Our objective against TRL's own loss code, on the same log-probs: `trl_losses.py` runs it where TRL is installed, in
this interpreter's environment or in that of the benches (`make bench-peer`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.golden import GoldenSample
from agentgrpo.preflight.numerics import objective
from agentgrpo.training.objective import highest
from tests.grpo import reference_numpy as paper
from tests.grpo.test_variants import difference, random_answers

TOP = Path(__file__).parents[2]
PEER = TOP / ".bench" / "peer" / "bin" / "python"
PYTHON = sys.executable if find_spec("trl") else str(PEER)
NEEDS_TRL = pytest.mark.skipif(not Path(PYTHON).exists(), reason="TRL is not installed; `make bench-peer` installs it")
pytestmark = [NEEDS_TRL, pytest.mark.slow]

ARGS = {
    "delta": None,
    "use_bias_correction_kl": False,
    "steps_per_generation": 1,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
}
"""Its defaults, but for use_bias_correction_kl: "kl weighed" has it."""
SEED = 3
"""Of answers of which no loss and no correction leaves nothing."""
WIDTH = 6
"""Tokens of a padded completion."""

LOSSES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({}, {"loss": "clipped", "aggregation": "sequence_mean"}),
    "dr_grpo": (
        {"max_completion_length": 9},
        {"loss": "clipped", "aggregation": "constant", "max_sampled_tokens": 9},
    ),
    "dapo": (
        {"epsilon_high": 0.28},
        {"loss": "clipped", "loss_args": {"clip_high": 0.28}, "aggregation": "token_mean"},
    ),
    "bnpo": ({}, {"loss": "clipped", "aggregation": "token_mean"}),
    # its epsilon_high is the largest weight itself
    "cispo": ({"epsilon_high": 2.0}, {"loss": "cispo", "loss_args": {"clip_high": 1.0}, "aggregation": "token_mean"}),
    "sapo": ({}, {"loss": "sapo", "aggregation": "sequence_mean"}),
    "vespo": ({}, {"loss": "vespo", "aggregation": "token_mean"}),
    "luspo": (
        {"importance_sampling_level": "sequence"},
        {"loss": "sequence_clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.2}, "aggregation": "sequence_sum"},
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        {"loss": "sequence_clipped", "aggregation": "sequence_mean"},
    ),
    "gspo, wide": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss": "sequence_clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.2}, "aggregation": "sequence_mean"},
    ),
}
"""loss_type -> (TRL's settings, ours)."""
EXTRAS: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "": ({}, {}, {}),
    "kl": ({"beta": 0.3}, {}, {"kl_coef": 0.3}),
    "kl weighed": ({"beta": 0.3}, {"use_bias_correction_kl": True}, {"kl_coef": 0.3, "kl_importance": True}),
    "dual clip": ({}, {"delta": 2.0}, {"loss_args": {"clip_dual": 2.0}}),
    "top entropies": ({"top_entropy_quantile": 0.4, "beta": 0.3}, {}, {"top_entropy_fraction": 0.4, "kl_coef": 0.3}),
    **{
        correction: ({"use_vllm": True, "vllm_importance_sampling_correction": True}, {}, {"correction": correction})
        for correction in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
}
"""name -> (TRL's settings, its arguments, ours)."""


def is_meant(loss: str, extra: str) -> bool:
    """Whether both have it, and mean the same by it."""
    if extra == "dual clip":
        return LOSSES[loss][1]["loss"].endswith("clipped")
    # TRL weighs the KL of a token, and takes the gradient of its weight, with the ratio of the sequence; ours with the
    # token's own. A weight or a choice of tokens makes a sequence-level loss one of tokens: ours is GSPO-token, where
    # each token has the gradient of its own loss; in TRL all share it, those that were left out too.
    of_tokens = extra in ("kl weighed", "top entropies") or extra.startswith("token")
    return not (LOSSES[loss][1]["loss"] == "sequence_clipped" and of_tokens)


CASES = [(loss, extra) for loss in LOSSES for extra in EXTRAS if is_meant(loss, extra)]


def answers_of(case: tuple[str, str]) -> list[GoldenSample]:
    """TRL's sequence-level losses have one advantage for an answer."""
    answers = [a._replace(advantages=a.advantages[:1] * len(a.policy)) for a in random_answers(seed=SEED)]
    fraction = algorithm_of(case).top_entropy_fraction
    if fraction is None:
        return answers
    least = highest([torch.tensor(entropies_of(a)) for a in answers], fraction)
    return [a._replace(kept=tuple(h >= least for h in entropies_of(a))) for a in answers]


def entropies_of(answer: GoldenSample) -> tuple[float, ...]:
    """Any numbers will do."""
    return tuple(-x for x in answer.rollout)


def algorithm_of(case: tuple[str, str]) -> Algorithm:
    loss, extra = case
    ours, more = LOSSES[loss][1], EXTRAS[extra][2]
    loss_args = {**ours.get("loss_args", {}), **more.get("loss_args", {})}
    return Algorithm(**{"correction": "none", **ours, **more, "loss_args": loss_args}, mini_batches=2)


def padded(rows: list[tuple[float, ...]], fill: float) -> list[list[float]]:
    """Right padding, and after the first token one that a tool has written."""
    return [[row[0], fill, *row[1:], *[fill] * (WIDTH - 1 - len(row))] for row in rows]


def trl_case(case: tuple[str, str]) -> dict[str, Any]:
    loss, extra = case
    settings, args, _ = EXTRAS[extra]
    answers = answers_of(case)
    lengths = [len(a.policy) for a in answers]
    inputs = {
        "prompt_ids": [[1]] * len(answers),
        "prompt_mask": [[1]] * len(answers),
        "completion_ids": [[1] * WIDTH] * len(answers),
        "completion_mask": [[1] * (n + 1) + [0] * (WIDTH - n - 1) for n in lengths],
        "tool_mask": [[1, 0] + [1] * (WIDTH - 2)] * len(answers),
        "advantages": [a.advantages[0] for a in answers],
        "old_per_token_logps": padded([a.old for a in answers], -1.0),
        "ref_per_token_logps": padded([a.reference for a in answers], -2.0),
        "num_items_in_batch": sum(lengths),
    }
    if settings.get("use_vllm"):
        weights = [tuple(of_answer) for of_answer in map(weights_of(extra), answers)]
        # one for each sequence, or for each token
        inputs["importance_sampling_ratio"] = (
            [[w[0]] for w in weights] if extra.startswith("sequence") else padded(weights, 1.0)
        )
    trl = {
        "loss_type": loss,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
    }
    return {
        "trl": trl | LOSSES[loss][0] | settings,
        "args": ARGS | args,
        "inputs": inputs,
        "logprobs": padded([a.policy for a in answers], -3.0),
        "entropies": padded([entropies_of(a) for a in answers], 99.0),
    }


def weights_of(correction: str) -> Any:
    """What TRL computes from vLLM's log-probs before its loss: here by the reference."""
    o = paper.Objective(loss="", aggregation="", correction=correction, cap=Algorithm().correction_cap)

    def weights(a: GoldenSample) -> list[float]:
        fields = [np.array(x) for x in (a.policy, a.old, a.rollout, a.reference, a.advantages)]
        names = ("logprobs", "old", "rollout", "reference", "advantages")
        return paper.correction_weights(paper.Answer(group=a.group, **dict(zip(names, fields, strict=True))), o)

    return weights


@pytest.fixture(scope="module")
def peer() -> list[dict[str, Any]]:
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("trl_losses.py"))],
        input=json.dumps([trl_case(case) for case in CASES]),
        capture_output=True,
        text=True,
        check=False,
        cwd=TOP,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(filter(None, case)))
def test_value_and_gradient_are_those_of_trl(peer: list[dict[str, Any]], case: tuple[str, str]) -> None:
    answers, result = answers_of(case), peer[CASES.index(case)]
    rows = [[row[0], *row[2 : len(a.policy) + 1]] for row, a in zip(result["gradient"], answers, strict=True)]
    everywhere = sum(abs(x) for row in result["gradient"] for x in row)
    assert sum(abs(x) for row in rows for x in row) == everywhere  # nothing for padding and tools
    found = objective(answers, algorithm_of(case), torch.device("cpu"), torch.float64)
    assert difference(found, (result["loss"], [x for row in rows for x in row])) < 1e-6
