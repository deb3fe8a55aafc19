"""Ratios of token probabilities: p(token) under given weights divided by p(token) when it was sampled.

Tokens are scored as a trainer would score them: by the policy's packed forward pass at the sampling temperature (top_k,
top_p and min_p, which trainers ignore, are left out). A ratio far from 1 shows where these weights have moved, and in
which direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from agentgrpo.config.hardware import Hardware
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import TrainingSample
from agentgrpo.models.export import require_model
from agentgrpo.models.loading import open_policy
from agentgrpo.records.run_dir import TrajectoryFile
from agentgrpo.reports.view.episode import rounded, segments_of
from agentgrpo.reports.view.facts import config_of, mapping
from agentgrpo.reports.view.pieces import FILE
from agentgrpo.reports.view.source import RunSource, ShownEpisode
from agentgrpo.training.policy import Policy


class Ratios:
    """Raises ConfigError if the folder contains no model or its tokenizer differs from the run's, and CheckpointError
    if it is damaged."""

    def __init__(self, checkpoint: Path, sources: Sequence[RunSource]) -> None:
        require_model(checkpoint, f"--ratio {checkpoint}")
        self._configs = {source.name: _config(source) for source in sources}
        for source in sources:
            _require_same_tokens(checkpoint, source)
        hardware = _hardware(self._configs[sources[0].name])
        torch.set_num_threads(hardware.num_threads)
        transformers.logging.disable_progress_bar()
        self._checkpoint = checkpoint
        self._policy: Policy = open_policy(checkpoint, hardware)
        self._num_ids = self._policy.model.get_input_embeddings().weight.shape[0]
        self.scored: set[str] = set()
        """Names of the runs with scored tokens."""

    def fill(self, source: RunSource, shown: Sequence[ShownEpisode]) -> None:
        """Write the ratios of these episodes of one run into their messages, if their tokens were recorded."""
        by_temperature: dict[float, list[ShownEpisode]] = {}
        for one in shown:
            if one.record.branches:
                by_temperature.setdefault(temperature_of(one.file, self._configs[source.name]), []).append(one)
        for temperature, of_one in by_temperature.items():
            self._fill(of_one, temperature)
            self.scored.add(source.name)

    def _fill(self, shown: Sequence[ShownEpisode], temperature: float) -> None:
        samples = {(i, j): sample for i, one in enumerate(shown) for j, sample in _samples(one)}
        for sample in samples.values():
            if (highest := max(sample.token_ids)) >= self._num_ids:
                raise ConfigError(
                    f"--ratio {self._checkpoint} knows {self._num_ids} tokens, and {sample.group_id} has token "
                    f"{highest}; give weights that its run could have started from"
                )
        found = self._policy.logprobs([*samples.values()], temperature=temperature)
        places = {id(sample): place for place, sample in samples.items()}
        scored = {places[id(sample)]: logprobs.tolist() for sample, logprobs in found}
        for i, one in enumerate(shown):
            _write(one, {j: iter(values) for (k, j), values in scored.items() if k == i})


def temperature_of(file: TrajectoryFile, config: Mapping[str, Any]) -> float:
    """The temperature of the recorded log-probs in `file`; greedy tokens have those of the plain softmax."""
    if file.mode == "greedy":
        return 1.0
    group = mapping(config, "rollout") if file.step is not None else mapping(mapping(config, "run"), "eval")
    found = group.get("temperature", 1.0)
    return float(found) if isinstance(found, int | float) and found > 0 else 1.0


def _samples(shown: ShownEpisode) -> Iterator[tuple[int, TrainingSample]]:
    """(branch number, sample to score) for each branch with a prompt and trained tokens."""
    for number, branch in enumerate(shown.record.branches):
        if branch.num_prompt_tokens and branch.num_trained_tokens:
            yield (
                number,
                TrainingSample(
                    group_id=shown.record.group,
                    sample_index=shown.record.sample_index,
                    token_ids=branch.token_ids,
                    loss_mask=branch.loss_mask,
                    rollout_logprobs=branch.logprobs,
                    advantage=0.0,
                    num_prompt_tokens=branch.num_prompt_tokens,
                    policy_version=shown.record.policy_version or 0,
                ),
            )


def _write(shown: ShownEpisode, logprobs: Mapping[int, Iterator[float]]) -> None:
    """logprobs: of the sampled tokens of each scored branch."""
    numbers: dict[int, int] = {}
    for message, segment in zip(shown.episode["messages"], segments_of(shown.record), strict=True):
        now = logprobs.get(numbers.setdefault(message["branch"], len(numbers)))
        if now is not None and segment is not None and segment.logprobs is not None:
            message["ratios"] = rounded([_ratio(next(now), then) for then in segment.logprobs])


def _ratio(now: float, then: float) -> float:
    try:
        return math.exp(now - then)
    except OverflowError:
        return math.inf


def _config(source: RunSource) -> Mapping[str, Any]:
    try:
        return config_of(source.run)[0]
    except (DataError, OSError):
        return {}  # reported where the run is shown


def _hardware(config: Mapping[str, Any]) -> Hardware:
    """The run's hardware settings, with the CPU in place of an absent device."""
    given = mapping(config, "hardware")
    device, dtype, threads = (given.get(key) for key in ("device", "dtype", "threads"))
    is_here = isinstance(device, str) and (device == "cpu" or torch.cuda.is_available())
    return Hardware(
        device=str(device) if is_here else "cpu",
        dtype="bfloat16" if dtype == "bfloat16" else "float32",
        threads=threads if isinstance(threads, int) else None,
    )


def _require_same_tokens(checkpoint: Path, source: RunSource) -> None:
    """Raises ConfigError if these weights assign other texts to the same ids than the run does."""
    file = checkpoint / FILE
    if source.pieces is None or not file.is_file():
        return
    if Tokenizer.from_file(str(file)).get_vocab() != source.pieces.vocabulary():
        raise ConfigError(
            f"--ratio {checkpoint} has another tokenizer than {source.run.path}; give weights of the same model family"
        )
