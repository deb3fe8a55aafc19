"""The wiring: a checked configuration to the parts of a run.

    config --build_node--> dataset, model folder, policy, engine, retrievers, agent, judge, reward, trainer --> Session

Heavy objects are built once, here, and injected by keyword; no object below knows another's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from agentgrpo.durable import verify_directory
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.errors import CheckpointError, ConfigError
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.hardware import Hardware
from agentgrpo.recipes.alarms import Alarms
from agentgrpo.recipes.examine import Examiner, first
from agentgrpo.recipes.parts import RNG, Parts
from agentgrpo.recipes.profile import observed, stage_clock
from agentgrpo.recipes.session import Session
from agentgrpo.recipes.start import Start
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
from agentgrpo.tasks.order import TaskOrder
from agentgrpo.training.checkpoint import CheckpointStore, LoadedCheckpoint
from agentgrpo.training.policy import Policy, load_policy
from agentgrpo.training.reference import frozen_reference
from agentgrpo.training.trainer import Trainer
from agentgrpo.types import Passage, ScoredGroup

CONFIG = "config.yaml"
VERSIONS = ("torch", "transformers", "tokenizers", "faiss-cpu", "tantivy", "numpy")


class Wiring:
    """Builds the parts of one configuration, each once. `weights`: load these instead of the start weights."""

    def __init__(
        self, config: Mapping[str, Any], snapshot: str, screen: Screen, *, weights: Path | None = None
    ) -> None:
        self.config, self.screen = config, screen
        self.snapshot: Mapping[str, Any] = yaml.safe_load(snapshot)
        self.run: RunSettings = build_node("run", config["run"])
        self.rollout: RolloutSettings = build_node("rollout", config["rollout"])
        self.hardware: Hardware = build_node("hardware", config["hardware"])
        self.algorithm: Algorithm = build_node("algorithm", config["algorithm"])
        torch.set_num_threads(self.hardware.num_threads)
        self.dataset: TaskDataset = build_node("task", config["task"])
        self.judge = build_node("judge", config["judge"])
        self.reward: Reward = build_node("reward", config["reward"], judge=self.judge)
        self.clock: Clock = stage_clock(self.hardware.device) if self.run.profile else NoClock()
        self.policy: Policy = self._load(weights or self.start.folder)
        self.renderer: Renderer = PlainRenderer(tokenizer=self.policy.tokenizer)
        self.engine: Engine = self._build(
            "engine", model=self.policy.model, tokenizer=self.policy.tokenizer, run_seed=self.run.seed
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

    def _load(self, folder: Path) -> Policy:
        if (folder / "manifest.json").is_file():
            verify_directory(folder)
        return load_policy(folder, dtype=self.hardware.dtype, device=self.hardware.device)

    def _reference(self, checkpoint: LoadedCheckpoint | None) -> Policy:
        """The frozen start weights, also for a run that is resumed."""
        if checkpoint is None:
            return frozen_reference(self.policy)
        saved = checkpoint.state["start"]
        found = Start(Path(saved["folder"]))
        if not found.folder.is_dir() or found.state() != saved:
            raise CheckpointError(
                f"the KL term needs the start weights, and {saved['folder']} no longer holds them; put the folder back"
            )
        return frozen_reference(self._load(found.folder))

    @cached_property
    def start(self) -> Start:
        """The model to start from, warm-started first where the configuration says so."""
        model: WarmStart | ModelPath = build_node("model", self.config["model"])
        if isinstance(model, ModelPath):
            folder = Path(model.path).expanduser()
        else:
            if not isinstance(self.dataset, DemonstratedDataset):
                raise ConfigError(
                    f"model={self.config['model']['name']} learns from demonstrations, and "
                    f"task={self.config['task']['name']} has none; give a model that "
                    "can search already: model=path model.path=FOLDER"
                )
            folder = model.folder(
                dataset=self.dataset,
                make_renderer=lambda tokenizer: PlainRenderer(tokenizer=tokenizer),
                make_agent=self._demonstrating_agent,
                agent_key=repr([self.config["agent"], self.config["retriever"], self._versions()]),
                seed=self.run.seed,
                progress=self._progress(),
            )
        return Start(folder)

    def _progress(self) -> Callable[[str, int, int], None]:
        """Shows the warm start's stages on the screen."""
        stage, shown = "", 0

        def show(name: str, done: int, total: int) -> None:
            nonlocal stage, shown
            if name != stage:
                self.screen.stage(name, total)
                stage, shown = name, 0
            self.screen.advance(done - shown)
            shown = done

        return show

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
            "versions": self._versions(),
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
        optimizer = build_node("optimizer", self.config["optimizer"], model=self.policy.model)
        trainer = Trainer(
            policy=self.policy,
            reference=self._reference(checkpoint) if algorithm.needs_reference else None,
            optimizer=optimizer,
            algorithm=algorithm,
            total_steps=run.max_steps,
            temperature=self.rollout.temperature,
            tokens_per_micro_batch=self.hardware.tokens_per_micro_batch,
            head_chunk_tokens=self.hardware.head_chunk_tokens,
            mixed_precision=self.hardware.mixed_precision,
            activation_checkpointing=self.hardware.activation_checkpointing,
            clock=self.clock,
        )
        if checkpoint is not None:
            tensors = dict(checkpoint.tensors)
            torch.set_rng_state(tensors.pop(RNG))
            optimizer.load_state_tensors(tensors)
        start = checkpoint.state["start"] if checkpoint else self.start.state()
        fixed = self.fixed_state(start)
        tasks = self.dataset.split("train")
        examiner = self.examiner(test=run.final_eval, dev=bool(run.eval_every))
        store = CheckpointStore(run_dir=run_dir, keep_last=run.keep_last, keep_best=run.keep_best)
        if run.checkpoint_every:
            held = [*self.policy.model.parameters(), *optimizer.state_tensors().values()]
            store.preflight(sum(x.numel() * x.element_size() for x in held))
        parts = Parts(
            order=TaskOrder(
                tasks,
                tasks_per_step=self.rollout.tasks_per_step,
                seed=run.seed,
                stratify_by=self.rollout.stratify_by,
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
            metrics=MetricsLog(run_dir),
            trackers=Trackers(
                log_with=run.log_with,
                run_dir=run_dir,
                config=fixed["config"],
                start_step=checkpoint.step if checkpoint else 0,
            ),
            screen=self.screen,
            alarms=Alarms(),
            canary_ids=self.renderer.open(tasks[0].messages),
            dev_score=examiner.dev_score,
            show=self._show,
            card=self._card,
            fixed_state=fixed,
            clock=self.clock,
        )
        key = sha256(
            repr([start["sha256"], self.dataset.fingerprint, self.config["run"]["eval"], run.seed]).encode()
        ).hexdigest()
        return Session(parts=parts, examiner=examiner, eval_key=key)

    def _show(self, scored: Sequence[ScoredGroup]) -> None:
        for group in scored:
            for episode, reward in zip(group.group.episodes, group.rewards, strict=True):
                if episode.branches and reward is not None:
                    text = "".join(s.text for s in episode.branches[0].segments)
                    self.screen.trajectory(
                        f"{text}\nreference: {episode.task.references[0]}  reward: {reward.total:+.3f}"
                    )
                    return

    def _card(self, step: int, tags: Mapping[str, float]) -> str:
        return model_card(
            task=str(self.config["task"]["name"]),
            base=str(self.config["model"].get("path") or self.config["model"]["name"]),
            step=step,
            metrics=tags,
            config=self.snapshot,
            version=__version__,
        )
