"""The cold start: a published model learns the episode format of its task set from demonstrations.

    model folder -> [Episode] of the real environment, in the model's own format -> supervised epochs -> folder

The loss covers exactly the tokens that a policy would have sampled, with equal weight, in float32. The folder is cached
under a hash of everything that determines it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import ColdStartSettings
from agentgrpo.core.cache import default_cache, made_once
from agentgrpo.core.errors import DataError
from agentgrpo.core.types import Branch, Episode
from agentgrpo.models.loading import Start, open_policy
from agentgrpo.run.warm_start import MakeRenderer, MakeRunner, Progress, demonstrate, key_of
from agentgrpo.tasks.base import TeachingDataset
from agentgrpo.training.adapters import freeze
from agentgrpo.training.supervised import SupervisedStep, WeightedSample, train_supervised

WARMUP_STEPS = 5


def cold_started(
    base: Start,
    settings: ColdStartSettings,
    *,
    dataset: TeachingDataset,
    renderer: str,
    make_renderer: MakeRenderer,
    make_runner: MakeRunner,
    environment_key: str,
    teaches: str | None,
    hardware: Hardware,
    seed: int,
    progress: Progress,
    tell: Callable[[str], None],
) -> Path:
    """Return a transformers folder with the model in `base` after the cold start, from the cache or trained now. Call
    it outside any event loop. `renderer`: the format to teach, as model.renderer names it. `seed` draws the order of
    training. `tell` receives notes, a line each. For other arguments see WarmStart.folder. Raises DataError if no
    demonstration reaches an answer."""
    made_by = Path(__file__).read_text("utf-8")
    start = base.state()["sha256"]
    key = key_of(asdict(settings), made_by, start, renderer, dataset.demonstration_fingerprint, environment_key, seed)

    def make(folder: Path) -> None:
        policy = open_policy(base.folder, replace(hardware, dtype="float32"))
        renderer = make_renderer(policy.tokenizer)
        progress("demonstrations", 0, settings.demonstrations)
        [world] = dataset.demonstration_worlds(1, settings.demonstrations)
        episodes = _answered(demonstrate(world, renderer, make_runner), tell)
        freeze(policy.model, settings.freeze)

        def on_step(step: SupervisedStep) -> None:
            progress("cold start", step.step, step.total_steps)

        train_supervised(
            policy,
            [_weigh(branch) for episode in episodes for branch in episode.branches],
            seed=seed,
            tokens_per_batch=settings.tokens_per_batch,
            lr=settings.lr,
            muon_lr=None,
            epochs=settings.epochs,
            warmup_steps=WARMUP_STEPS,
            on_step=on_step,
        )
        policy.knows_format = teaches
        policy.save(folder)

    return made_once(default_cache() / "cold_start" / key, make)


def _answered(episodes: Sequence[Episode], tell: Callable[[str], None]) -> list[Episode]:
    """Return the episodes in which the demonstrator reached an answer. Raises DataError if none did."""
    answered = [episode for episode in episodes if episode.answer]
    if not answered:
        raise DataError(
            f"none of {len(episodes)} demonstrations found the answer of its question; they need the tool search "
            "(tools=[search]) and a corpus that holds the answers verbatim, or model.cold_start.demonstrations=0"
        )
    if len(answered) < len(episodes):
        shown = f"the cold start shows {len(answered)} of {len(episodes)} questions"
        tell(f"note: {shown}; the answers of the others were not found in the corpus")
    return answered


def _weigh(branch: Branch) -> WeightedSample:
    weights = [float(segment.sampled) for segment in branch.segments for _ in segment.token_ids]
    return WeightedSample(token_ids=branch.token_ids, weights=tuple(weights))
