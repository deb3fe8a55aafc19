"""The warm start: from nothing to a tiny policy that searches, or uses tools, as the demonstrations do.

    demonstration worlds -> tokenizer -> [Episode] of the real environment -> [WeightedSample] -> supervised epoch ->
    folder

The training loop makes the episodes, with a scripted engine in place of the policy's, so tokens and masks are exactly
those of training. The folder is cached under a hash of everything that determines it; a later or concurrent process
uses the same folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase

import agentgrpo
from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.cache import default_cache, made_once
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch, Episode, Passage
from agentgrpo.engines.base import Engine, SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.factory import Runner
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.train_tokenizer import digits_and_plurals, parted, train_tokenizer
from agentgrpo.rollout.demonstrations.oracle import said_by
from agentgrpo.tasks.base import DemonstrationWorld, Demonstrator, Language, TeachingDataset, ToolDemonstrator
from agentgrpo.training.policy import init_policy
from agentgrpo.training.supervised import SupervisedStep, WeightedSample, train_supervised

SOURCES = (
    "core/types.py",
    "core/messages.py",
    "tasks",
    "worlds",
    "renderers",
    "retrieval",
    "judges",
    "tools",
    "environments",
    "engines",
    "training",
    "rollout/demonstrations/oracle.py",
    "run/warm_start.py",
)
"""Parts of the package whose source code determines a warm start, and so its cache key."""

MakeRenderer = Callable[[PreTrainedTokenizerBase], Renderer]
MakeRunner = Callable[[Engine, Renderer, Mapping[str, Sequence[Passage]]], Runner]
Progress = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How a tiny policy is made from nothing: demonstrations, tokenizer, model, loss weights, optimisation.

    A token's weight in the loss: `context_weight` for tokens that the policy did not write. For its own tokens:
    `decision_weight` for the first token of a turn (search or answer?), `later_query_weight` for the rest of every
    search or call but the first, `answer_weight` for the rest of an answer and `action_weight` for the rest of a first
    search or call.
    (Decisions stay at 1, so that they are made as often as demonstrated; copying from documents is hard and rare, so it
    weighs more.)"""

    worlds: int = 120
    """Worlds over all phases of the data set; each phase is learned after the one before it."""
    tasks_per_world: int = 90
    vocab_size: int = 704
    tokenizer_worlds: int = 8
    """Worlds whose documents and episodes the tokenizer is trained on."""
    hidden_size: int = 128
    num_layers: int = 3
    intermediate_size: int = 256
    num_heads: int = 4
    num_kv_heads: int = 4
    max_positions: int = 512
    shared_embedding: float = 0.0
    """See training.policy.init_policy; about 0.02, the spread of embeddings, makes copying quicker to learn."""
    renderer: str = "auto"
    """How messages and tool calls are written (renderers.choose); auto = plain for searches, react for tools."""
    context_weight: float = 0.3
    decision_weight: float = 1.0
    action_weight: float = 1.0
    later_query_weight: float = 3.0
    answer_weight: float = 3.0
    tokens_per_batch: int = 1024
    lr: float = 3e-3
    muon_lr: float = 0.012
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Adapter that trains after the warm start, in place of the whole weights that the warm start makes."""
    freeze: tuple[str, ...] = ()
    """Parts that do not train after the warm start: embeddings, head, and patterns over parameter names."""

    def __post_init__(self) -> None:
        for name in ("worlds", "tasks_per_world", "tokenizer_worlds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"warm start: {name}={getattr(self, name)}; at least 1 is allowed")

    def key(self, demonstration_fingerprint: str, environment_key: str, seed: int) -> str:
        """Return the cache key: a hash of all inputs."""
        made_with = {key: value for key, value in asdict(self).items() if key not in ("lora", "freeze")}
        return key_of(made_with, demonstration_fingerprint, environment_key, seed)

    def folder(
        self,
        *,
        dataset: TeachingDataset,
        make_renderer: MakeRenderer,
        make_runner: MakeRunner,
        environment_key: str,
        teaches: str | None = None,
        seed: int = 0,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Return a transformers folder with the policy, from the cache or made now. Call it outside any event loop.

        `make_runner(engine, renderer, corpora)`: makes the training environment for a demonstration world's corpora.
        `environment_key` names everything besides the source code that it and `make_renderer` depend on, such as
        settings.
        `teaches`: Policy.knows_format.
        `seed` draws the initial weights and the order of training; the demonstrations are the same for all seeds."""
        home = (
            (cache or default_cache())
            / "warm_start"
            / self.key(dataset.demonstration_fingerprint, environment_key, seed)
        )
        return made_once(
            home,
            lambda folder: self._make(folder, dataset, make_renderer, make_runner, teaches, seed, progress or _silent),
        )

    def _make(
        self,
        directory: Path,
        dataset: TeachingDataset,
        make_renderer: MakeRenderer,
        make_runner: MakeRunner,
        teaches: str | None,
        seed: int,
        progress: Progress,
    ) -> None:
        progress("tokenizer", 0, 1)
        renderer = make_renderer(self._tokenizer((), dataset.language))  # bytes only: encodes any text, in many tokens
        texts: list[str] = []
        for world in dataset.demonstration_worlds(self.tokenizer_worlds, self.tasks_per_world):
            episodes = demonstrate(world, renderer, make_runner)
            texts += [renderer.decode(branch.token_ids) for episode in episodes for branch in episode.branches]
            # in a context, a label and a space precede a passage: the tokenizer must see its first word the same way
            texts += [f" {passage.text}" for passages in world.corpora().values() for passage in passages]
        tokenizer = self._tokenizer(texts, dataset.language)
        renderer = make_renderer(tokenizer)
        samples: list[WeightedSample] = []
        worlds = dataset.demonstration_worlds(self.worlds, self.tasks_per_world)
        for done, world in enumerate(worlds):
            progress("demonstrations", done, self.worlds)
            episodes = demonstrate(world, renderer, make_runner)
            for episode in episodes:
                samples += self.weigh(episode, renderer, dataset.language.answer, phase=world.phase)
        policy = init_policy(
            tokenizer=tokenizer,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            max_positions=self.max_positions,
            shared_embedding=self.shared_embedding,
            seed=seed,
        )

        def on_step(step: SupervisedStep) -> None:
            progress("warm start", step.step, step.total_steps)

        train_supervised(
            policy,
            samples,
            seed=seed,
            tokens_per_batch=self.tokens_per_batch,
            lr=self.lr,
            muon_lr=self.muon_lr,
            on_step=on_step,
        )
        policy.knows_format = teaches
        policy.save(directory)

    def _tokenizer(self, texts: Iterable[str], language: Language) -> PreTrainedTokenizerBase:
        given: dict[str, Any] = {"control_strings": language.control_strings, "words": language.words}
        if language.splits_digits:
            given["pre_tokenizer"] = partial(digits_and_plurals, *language.parts)
        elif language.parts:
            given["pre_tokenizer"] = partial(parted, *language.parts)
        own = {name: value for name, value in given.items() if value is not None}
        return train_tokenizer(texts, vocab_size=self.vocab_size, **own)

    def weigh(self, episode: Episode, renderer: Renderer, answer: str, *, phase: int = 0) -> list[WeightedSample]:
        """Return the tokens of each of the episode's contexts, with their loss weights. `answer`: text that opens an
        answering turn."""
        return [self._weigh(branch, renderer, answer, phase) for branch in episode.branches]

    def _weigh(self, branch: Branch, renderer: Renderer, answer: str, phase: int) -> WeightedSample:
        weights: list[float] = []
        acted = False
        for segment in branch.segments:
            if not segment.sampled:
                weights += [self.context_weight] * len(segment.token_ids)
                continue
            if renderer.decode(segment.token_ids).startswith(answer):
                content = self.answer_weight
            else:
                content = self.later_query_weight if acted else self.action_weight
                acted = True
            weights += [self.decision_weight] + [content] * (len(segment.token_ids) - 1)
        return WeightedSample(token_ids=branch.token_ids, weights=tuple(weights), phase=phase)


def key_of(*parts: object) -> str:
    """Hash JSON values, the versions of the libraries, and the sources that a warm start depends on."""
    given = (*parts, torch.__version__, transformers.__version__)
    digest = blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=12)
    package = Path(agentgrpo.__file__).parent
    for part in SOURCES:
        for path in sorted((package / part).rglob("*.py")) or [package / part]:
            digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def demonstrate(world: DemonstrationWorld, renderer: Renderer, make_runner: MakeRunner) -> list[Episode]:
    """Return one episode per task of the world, in order, by its demonstrators. An infrastructure failure raises."""
    demonstrators = {task.id: world.demonstrator(task) for task in world.tasks}
    runner = make_runner(scripted(renderer, demonstrators.__getitem__), renderer, world.corpora())

    async def run_all() -> list[Episode]:
        sampling = SamplingParams(max_tokens=256)
        runs = (runner.run(task, sample_index=0, stream="demonstration", sampling=sampling) for task in world.tasks)
        return await asyncio.gather(*runs)

    return asyncio.run(run_all())


def scripted(renderer: Renderer, demonstrator: Callable[[str], Demonstrator | ToolDemonstrator]) -> ScriptedEngine:
    """Return an engine that writes the turns of each task's demonstrator, looked up by task id."""

    def script(key: SeedKey, context: str) -> str:
        return said_by(demonstrator(key.task_id), context, renderer)

    return ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=script)


def _silent(stage: str, done: int, total: int) -> None:
    pass
