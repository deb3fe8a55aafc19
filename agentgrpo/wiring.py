"""The wiring: a checked configuration to the parts of a run.

    config --build_node--> dataset, model folder, policy, engine, retrievers, agent, judge, reward, trainer --> Session

Heavy objects are built once, here, and injected by keyword; no object below knows another's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from agentgrpo import __version__
from agentgrpo.agents.base import Agent
from agentgrpo.build import ModelPath, build_node
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.errors import ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.hardware import Hardware
from agentgrpo.recipes.carried import of_optimizer
from agentgrpo.recipes.examine import Examiner, first
from agentgrpo.recipes.guards import Guards
from agentgrpo.recipes.loading import local_folder, open_policy, open_reference
from agentgrpo.recipes.parts import RNG, Parts
from agentgrpo.recipes.profile import observed, stage_clock
from agentgrpo.recipes.rollback import restore
from agentgrpo.recipes.session import Session
from agentgrpo.recipes.showing import show_episode, show_stages
from agentgrpo.recipes.start import Start
from agentgrpo.recipes.together import in_turn, once, only_first, refuse_unequal
from agentgrpo.recipes.warm_start import WarmStart
from agentgrpo.records.card import model_card
from agentgrpo.records.metrics import MetricsLog
from agentgrpo.records.screen import Screen
from agentgrpo.records.trackers import Trackers
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.retrievers.base import Retriever
from agentgrpo.rewards.reward import Reward
from agentgrpo.settings import RolloutSettings, RunSettings
from agentgrpo.stages import Clock, NoClock
from agentgrpo.tasks.base import DemonstratedDataset, TaskDataset
from agentgrpo.tasks.curriculum import curriculum_of
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.adapters import add_adapter
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.freezing import freeze
from agentgrpo.training.policy import Policy
from agentgrpo.training.reference import reference_state
from agentgrpo.training.sharding import shard
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.world import World
from agentgrpo.types import Passage

VERSIONS = ("torch", "transformers", "tokenizers", "faiss-cpu", "tantivy", "numpy")


class Wiring:
    """Builds the parts of one configuration, each once, and on every process of `world` the same. `weights`: load these
    instead of the start weights."""

    def __init__(
        self, config: Mapping[str, Any], snapshot: str, screen: Screen, world: World, *, weights: Path | None = None
    ) -> None:
        self.config, self.screen, self.world = config, screen, world
        self.snapshot: Mapping[str, Any] = yaml.safe_load(snapshot)
        self.run: RunSettings = build_node("run", config["run"])
        self.rollout: RolloutSettings = build_node("rollout", config["rollout"])
        self.hardware: Hardware = build_node("hardware", config["hardware"])
        self.algorithm: Algorithm = build_node("algorithm", config["algorithm"])
        self.is_sharded = self.hardware.strategy == "fsdp" and world.size > 1
        self.guards = Guards(
            {name: build_node("guard", node) for name, node in config["guards"].items()},
            has_checkpoints=bool(self.run.checkpoint_every),
        )
        torch.set_num_threads(self.hardware.num_threads)
        self.dataset: TaskDataset = build_node("task", config["task"])
        self.judge = build_node("judge", config["judge"])
        self.reward: Reward = build_node("reward", config["reward"], judge=self.judge)
        self.clock: Clock = stage_clock(self.hardware.device) if self.run.profile else NoClock()
        self.model: WarmStart | ModelPath = build_node("model", config["model"])
        self.policy: Policy = open_policy(weights or self.start.folder, self.hardware)
        if weights is None and self.model.lora.rank is not None:
            add_adapter(self.policy.model, self.model.lora, base=str(self.start.folder), seed=self.run.seed)
        for note in freeze(self.policy.model, self.model.freeze):
            screen.line(f"note: {note}")
        self.renderer: Renderer = PlainRenderer(tokenizer=self.policy.tokenizer)
        self.engine: Engine = self._build(
            "engine",
            model=self.policy.model,
            tokenizer=self.policy.tokenizer,
            run_seed=self.run.seed,
            own_weights=self.algorithm.max_staleness > 0 or self.is_sharded,
        )
        self.retrievers = self.make_retrievers(self.dataset.corpora())
        self.agent = self.make_agent(self.engine, self.renderer, self.retrievers)

    def make_retrievers(self, corpora: Mapping[str, Sequence[Passage]]) -> Mapping[str, Retriever]:
        retrievers: Mapping[str, Retriever] = self._build("retriever", corpora=corpora)
        return retrievers

    def _build(self, kind: str, **injected: Any) -> Any:
        """The part that the configuration names, observed where the run is profiled."""
        node = self.config[kind]
        if not self.run.profile:
            return build_node(kind, node, **injected)
        return build_node(kind, node, partial(observed, clock=self.clock), **injected)

    def make_agent(self, engine: Engine, renderer: Renderer, retrievers: Mapping[str, Retriever]) -> Agent:
        agent: Agent = self._build(
            "agent",
            engine=engine,
            renderer=renderer,
            retrievers=retrievers,
            thesaurus=self.dataset.thesaurus(),
        )
        return agent

    def _demonstrating_agent(
        self, engine: Engine, renderer: Renderer, corpora: Mapping[str, Sequence[Passage]]
    ) -> Agent:
        """The agent over a demonstration world's own documents, which no server has."""
        node = self.config["retriever"]
        node = node if node["name"] == "embedded" else {"name": "embedded"}
        return self.make_agent(engine, renderer, build_node("retriever", node, corpora=corpora))

    @cached_property
    def start(self) -> Start:
        """The model to start from, warm-started first where the configuration says so."""
        model = self.model
        if isinstance(model, ModelPath):
            folder = local_folder(model.path)
        else:
            if not isinstance(self.dataset, DemonstratedDataset):
                raise ConfigError(
                    f"model={self.config['model']['name']} learns from demonstrations, and "
                    f"task={self.config['task']['name']} has none; give a model that "
                    "can search already: model=path model.path=FOLDER"
                )
            make = partial(
                model.folder,
                dataset=self.dataset,
                make_renderer=lambda tokenizer: PlainRenderer(tokenizer=tokenizer),
                make_agent=self._demonstrating_agent,
                agent_key=repr([self.config["agent"], self.config["retriever"], self._versions()]),
                seed=self.run.seed,
                progress=show_stages(self.screen),
            )
            folder = in_turn(self.world, make)
        return Start(folder)

    @property
    def sampling(self) -> SamplingParams:
        r = self.rollout
        return SamplingParams(
            max_tokens=r.max_tokens, temperature=r.temperature, top_p=r.top_p, top_k=r.top_k, min_p=r.min_p
        )

    def fixed_state(self, start: Mapping[str, str]) -> dict[str, Any]:
        """What every checkpoint says of its run; two that differ in a hard key do not continue each other."""
        return {
            "config": dict(self.snapshot),
            "start": dict(start),
            "fingerprints": {"data": self.dataset.fingerprint},
            "versions": {**self._versions(), "processes": str(self.world.size)},
        }

    def _versions(self) -> dict[str, str]:
        """What may change the last bits."""
        return {name: version(name) for name in VERSIONS} | {"threads": str(torch.get_num_threads())}

    def oracle(self) -> Agent | None:
        """The data set's ideal policy in the agent's loop, where the data set has one."""
        dataset = self.dataset
        if not isinstance(dataset, DemonstratedDataset):
            return None
        demonstrator = cache(lambda task_id: dataset.oracle(tasks[task_id]))
        tasks = {task.id: task for task in dataset.split("test")}
        engine = ScriptedEngine(
            encode=self.renderer.encode_action,
            decode=self.renderer.decode,
            script=lambda key, context: demonstrator(key.task_id).act(context),
        )
        return self.make_agent(engine, self.renderer, self.retrievers)

    def examiner(self, *, test: bool, dev: bool) -> Examiner:
        """What evaluates this wiring's policy, on the splits that are needed."""
        run = self.run
        if test and run.eval.tasks > len(self.dataset.split("test")):
            held_out = len(self.dataset.split("test"))
            self.screen.line(f"note: run.eval.tasks={run.eval.tasks}, but the test split has only {held_out}")
        return Examiner(
            agent=self.agent,
            agent_name=str(self.config["agent"]["name"]),
            engine=self.engine,
            retrievers=tuple(self.retrievers.values()),
            oracle=self.oracle(),
            judge=self.judge,
            reward=self.reward,
            tasks=first(self.dataset.split("test"), run.eval.tasks, split="test") if test else (),
            dev_tasks=first(self.dataset.split("dev"), run.eval_tasks, split="dev") if dev else (),
            sampling=self.sampling,
            settings=run.eval,
            rollout=self.rollout,
            max_error_fraction=run.max_error_fraction,
            run_dir=Path(run.dir),
            seed=run.seed,
            screen=self.screen,
            world=self.world,
        )

    def session(self, checkpoint: LoadedCheckpoint | None) -> Session:
        """The whole run; with a checkpoint, its optimizer and generator states restored. Raises ConfigError where
        sampled and recomputed log-probs could not agree."""
        if not self.engine.trainable:
            raise ConfigError(f"engine={self.config['engine']['name']} gives no exact log-probs: evaluate with it")
        if (self.rollout.top_p, self.rollout.top_k, self.rollout.min_p) != (1.0, 0, 0.0):
            raise ConfigError(
                f"rollout.top_p={self.rollout.top_p}, top_k={self.rollout.top_k}, min_p={self.rollout.min_p}: training "
                "scores the whole distribution, so only 1.0, 0 and 0.0 are allowed; shape it with rollout.temperature"
            )
        run, run_dir = self.run, Path(self.run.dir)
        algorithm = self.algorithm
        reference = open_reference(self.policy, algorithm, checkpoint, self.hardware)
        if self.is_sharded:
            shard(self.policy.model, self.world.size)
        optimizer = build_node("optimizer", self.config["optimizer"], model=self.policy.model)
        trainer = Trainer(
            policy=self.policy,
            reference=None if reference is None else reference.policy,
            optimizer=optimizer,
            algorithm=algorithm,
            total_steps=run.max_steps,
            temperature=self.rollout.temperature,
            tokens_per_micro_batch=self.hardware.tokens_per_micro_batch,
            head_chunk_tokens=self.hardware.head_chunk_tokens,
            mixed_precision=self.hardware.mixed_precision,
            activation_checkpointing=self.hardware.activation_checkpointing,
            clock=NoClock() if algorithm.max_staleness else self.clock,  # a clock is for one thread
            world=self.world,
            sampler_differs=algorithm.has_old_samples or self.hardware.mixed_precision != "no",
        )
        if checkpoint is not None:
            self.guards.load_state(checkpoint.state["guards"])
            torch.set_rng_state(checkpoint.tensors[RNG])
            optimizer.load_state_tensors(of_optimizer(checkpoint.tensors))
        start = checkpoint.state["start"] if checkpoint else self.start.state()
        fixed = self.fixed_state(start)
        refuse_unequal(self.world, "start weights or data", (start["sha256"], fixed["fingerprints"]))
        tasks = self.dataset.split("train")
        examiner = self.examiner(test=run.final_eval, dev=bool(run.eval_every))
        store = CheckpointStore(run_dir=run_dir, keep_last=run.keep_last, keep_best=run.keep_best)
        if run.checkpoint_every:
            held = [*self.policy.saved, *optimizer.state_tensors().values(), *reference_state(reference).values()]
            if algorithm.max_staleness:  # the sampler's
                held += [p for p in self.policy.model.parameters() if p.requires_grad]
            once(self.world, lambda: store.preflight(sum(x.numel() * x.element_size() for x in held)))
        parts = Parts(
            order=TaskOrder(
                tasks,
                tasks_per_step=self.rollout.tasks_per_step,
                seed=run.seed,
                stratify_by=self.rollout.stratify_by,
                curriculum=curriculum_of(self.rollout),
            ),
            agent=self.agent,
            agent_name=str(self.config["agent"]["name"]),
            engine=self.engine,
            reward=self.reward,
            trainer=trainer,
            run=run,
            rollout=self.rollout,
            sampling=self.sampling,
            store=store,
            metrics=only_first(self.world, lambda: MetricsLog(run_dir)),
            trackers=only_first(
                self.world,
                lambda: Trackers(
                    log_with=run.log_with,
                    run_dir=run_dir,
                    config=fixed["config"],
                    start_step=checkpoint.step if checkpoint else 0,
                ),
            ),
            screen=self.screen,
            guards=self.guards,
            restore=lambda saved: restore(trainer, reference, open_policy(saved.path, self.hardware), saved),
            reference=reference,
            canary_ids=self.renderer.open(tasks[0].messages),
            dev_score=examiner.dev_score,
            show=partial(show_episode, self.screen),
            card=self._card,
            fixed_state=fixed,
            clock=self.clock,
            world=self.world,
        )
        key = sha256(
            repr([start["sha256"], self.dataset.fingerprint, self.config["run"]["eval"], run.seed]).encode()
        ).hexdigest()
        return Session(parts=parts, examiner=examiner, eval_key=key)

    def _card(self, step: int, tags: Mapping[str, float]) -> str:
        return model_card(
            task=str(self.config["task"]["name"]),
            base=str(self.config["model"].get("path") or self.config["model"]["name"]),
            step=step,
            metrics=tags,
            config=self.snapshot,
            version=__version__,
        )
