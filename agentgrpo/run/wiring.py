"""The wiring: a checked configuration to the parts that training and evaluation share.

    config --build_node--> dataset, model folder, policy, engine, equipment, environment, judge, reward --> Examiner

Heavy objects are built once, here, and injected by keyword; no object below knows another's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from agentgrpo.config.build import ModelPath, build_node, takes
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.registry import FROZEN
from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.stages import Clock, NoClock
from agentgrpo.core.types import Passage
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.environments.base import EnvironmentFactory, Runner
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.options import MemoryOptions, schema_of
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.judges.composed import refuse_unjudged
from agentgrpo.models.loading import Start, fetched_folder, local_folder, open_policy, refuse_other_shape
from agentgrpo.records.screen import Screen
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.choose import choose, choose_for_tools
from agentgrpo.renderers.speech import Speech
from agentgrpo.renderers.tokens import FastTokenizer
from agentgrpo.rewards.reward import Reward
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.run.equipment import Equipment, build_part
from agentgrpo.run.examine import Examiner, first
from agentgrpo.run.guards import Guards
from agentgrpo.run.metered import IN_PROCESS
from agentgrpo.run.profile import stage_clock
from agentgrpo.run.report import show_stages
from agentgrpo.run.warm_start import WarmStart, ideal_of, scripted
from agentgrpo.services.meter import Meter
from agentgrpo.tasks.base import SPLITS, DemonstratedDataset, MixedDataset, TaskDataset
from agentgrpo.training.adapters import add_adapter, freeze
from agentgrpo.training.canary import have_sample, is_pooled
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import ProcessGroup, in_turn
from agentgrpo.training.weight_files import PolicyFiles
from agentgrpo.worlds.simulated import simulated

# --- The policy must not be its own reader: what reads and judges a memory stays as it is while the policy learns.


def refuse_own_reader(environment: Mapping[str, Any], *, run_dir: Path, policies: Iterable[Path]) -> None:
    """Raise ConfigError where a frozen part of the node `agent`, or a part in it, names the folder of the policy, or
    one in the run's own directory, where checkpoints appear. policies: folders that the policy is loaded from."""
    trained, inside = [policy.resolve() for policy in policies], run_dir.expanduser().resolve()
    for key in sorted(FROZEN & environment.keys()):
        for where, folder in _folders(environment[key], f"environment.{key}"):
            found = folder.resolve()
            if found in trained or inside in (found, *found.parents):
                whose = "the policy's own" if found in trained else f"in the directory of this run, {run_dir}"
                raise ConfigError(
                    f"{where}={folder}: this folder is {whose}, and a {key} must be a model that is not trained here; "
                    "give another one, be it a copy elsewhere"
                )


def _folders(node: Any, where: str) -> Iterator[tuple[str, Path]]:
    """Every folder that a text in the node names; `path` may also be a name in the cache of models."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, str):
            folder = local_folder(value) if key == "path" else Path(value).expanduser()
            if folder.is_dir():
                yield f"{where}.{key}", folder
        else:
            yield from _folders(value, f"{where}.{key}")


VERSIONS = ("torch", "transformers", "tokenizers", "faiss-cpu", "tantivy", "numpy")
_FREE: Mapping[str, Mapping[str, str]] = {
    "reader": {"name": "cloze"},
    "validity": {"name": "none"},
    "reranker": {"name": "lexical"},
    "fetcher": {"name": "none"},
}
"""Parts of an agent that ask nobody."""


class Wiring:
    """Builds the parts of one configuration, each once, and on every process of `world` the same. `weights`: load these
    instead of the start weights."""

    def __init__(
        self,
        config: Mapping[str, Any],
        snapshot: str,
        screen: Screen,
        world: ProcessGroup,
        *,
        weights: Path | None = None,
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
        for note in self.dataset.notes if isinstance(self.dataset, MixedDataset) else ():
            screen.line(f"note: {note}")
        self.meter = Meter(
            cassette=build_node("cassette", config["cassette"]),
            budget=build_node("budget", config["budget"]),
            run_dir=Path(self.run.dir),
        )
        self.judge = build_part("judge", config["judge"], self.meter, None)
        refuse_unjudged(self.judge, (task for name in SPLITS for task in self.dataset.split(name)))
        self.reward: Reward = build_node("reward", config["reward"], judge=self.judge)
        self.clock: Clock = stage_clock(self.hardware.device) if self.run.profile else NoClock()
        self.model: WarmStart | ModelPath = build_node("model", config["model"])
        folders = [self.start.folder, *([] if weights is None else [weights])]
        refuse_own_reader(config["environment"], run_dir=Path(self.run.dir), policies=folders)
        self.policy: Policy = open_policy(folders[-1], self.hardware, code=self.code)
        if weights is None and self.model.lora.rank is not None:
            add_adapter(self.policy.model, self.model.lora, base=str(self.start.folder), seed=self.run.seed)
        for note in freeze(self.policy.model, self.model.freeze):
            screen.line(f"note: {note}")
        self.renderer = self._make_renderer(self.policy.tokenizer)
        self.engine: Engine = build_part(
            "engine",
            config["engine"],
            self.meter if takes("engine", config["engine"], "meter") else None,
            self._calls,
            meter=self.meter,
            **({} if "model" in config["engine"] else {"model": self.policy.model}),  # there it is an endpoint's
            tokenizer=self.policy.tokenizer,
            run_seed=self.run.seed,
            weights=PolicyFiles(self.policy, world),
            sync_dir=Path(self.run.dir) / "sync",
            rank=world.rank,
            context_limit=int(self.policy.model.config.get_text_config().max_position_embeddings),
            own_weights=self.algorithm.max_staleness > 0 or self.is_sharded,
            renderer=self.renderer,
            speech=Speech(self.renderer, self.policy.tokenizer),
            oracle=ideal_of(self.dataset, self.renderer),
        )
        self.runner = PolicyRunner(
            environment=self.make_environment(self.renderer, self.equipment.for_environment),
            engine=self.engine,
            renderer=self.renderer,
        )
        for task in self.dataset.split("train")[:1]:
            self.runner.rehearse(task)
        for note in self.equipment.notes:
            screen.line(f"note: {note}")
        self.run = replace(self.run, eval=replace(self.run.eval, prices=self._prices(self.runner.figures)))
        figures = self.runner.figures
        screen.show({f"agent/{name}": figures.label(name) for name in figures.headline})

    @cached_property
    def equipment(self) -> Equipment:
        """What the agent works with."""
        node = self.config["counterfactual"]
        given = {"tasks": [t for name in SPLITS for t in self.dataset.split(name)]} if node["name"] != "none" else {}
        counterfactual = build_node("counterfactual", node, **given)
        return Equipment(self.config, self.dataset.corpora(), self._calls, self.meter, counterfactual)

    def _make_renderer(self, tokenizer: FastTokenizer, *, describes: bool | None = None) -> Renderer:
        name, chosen = self.model.renderer, self.config["environment"]
        if takes("environment", chosen, "schema"):
            tools: Sequence[ToolSpec] = schema_of(chosen.get("schema", MemoryOptions.schema)).specs
        elif takes("environment", chosen, "tools"):
            tools = [t.spec for t in self.equipment.for_environment["tools"].values()] if name == "tags" else ()
        else:
            return choose(name, tokenizer=tokenizer)
        describes = self._describe_tools if describes is None else describes
        return choose_for_tools(name, tokenizer=tokenizer, describe_tools=describes, tools=tools)

    @property
    def _describe_tools(self) -> bool:
        """Whether the policy must be told what there is to do and how it is written, which a warm start teaches."""
        if isinstance(self.model, ModelPath) and self.model.describe_tools is not None:
            return self.model.describe_tools
        if "model" in self.config["engine"]:  # an endpoint's, which has had no warm start
            return True
        return isinstance(self.model, ModelPath) and self.policy.knows_format != self._format

    @property
    def _format(self) -> str:
        """The name of what the environment wants written."""
        chosen = self.config["environment"]
        return json.dumps({key: chosen[key] for key in ("name", "schema", "tags") if chosen.get(key)})

    @property
    def _calls(self) -> Clock | None:
        """What parts are observed on, where the run is profiled."""
        return self.clock if self.run.profile else None

    def make_environment(
        self, renderer: Renderer, equipment: Mapping[str, Any], node: Mapping[str, Any] | None = None
    ) -> EnvironmentFactory:
        """node: None = the configuration's, whose calls are metered; another one demonstrates."""
        environment: EnvironmentFactory = build_part(
            "environment",
            node or self.config["environment"],
            None if node else self.meter,
            self._calls,
            renderer=renderer,
            thesaurus=self.dataset.thesaurus(),
            prices=self.run.eval.prices,
            call_prices=self.meter.budget.prices.by_kind,
            describe_tools=node is None and self._describe_tools,
            **equipment,
        )
        figures = environment.figures
        figures.priced(self._prices(figures))  # these raise here, before a warm start and not after it
        if environment.metrics and isinstance(self.reward, Reward):
            self.reward.refuse_uncounted(environment.metrics)
        return environment

    def _prices(self, figures: Figures) -> Mapping[str, float]:
        """What calls cost where policies are compared: run.eval.prices, and for names that it does not have those of
        the budget; what neither prices costs what the environment says."""
        paid = self.meter.budget.prices.by_kind
        known = {name: paid[name] for name in figures.counts if paid.get(name)}
        return {**known, **self.run.eval.prices}

    def _demonstrating(self, engine: Engine, renderer: Renderer, corpora: Mapping[str, Sequence[Passage]]) -> Runner:
        """The environment over a demonstration world's own documents. What was written down in it nobody asks for, so
        no model is."""
        equipment, chosen = self.equipment.over(corpora), self.config["environment"]
        asks = {key for key in chosen.keys() & _FREE if chosen[key]["name"] not in IN_PROCESS.get(key, ())}
        node = {**chosen, **{key: _FREE[key] for key in asks}}
        environment = self.make_environment(renderer, {**equipment, "tools": simulated(equipment["tools"])}, node)
        return PolicyRunner(environment=environment, engine=engine, renderer=renderer)

    @cached_property
    def start(self) -> Start:
        """The model to start from, warm-started first where the configuration says so."""
        model = self.model
        if isinstance(model, ModelPath):
            fetch = partial(fetched_folder, model.path, model.revision, tell=self.screen.line)
            folder = in_turn(self.world, fetch)
            refuse_other_shape(folder, model.shape, trust_remote_code=model.trust_remote_code)
        else:
            if not isinstance(self.dataset, DemonstratedDataset):
                raise ConfigError(
                    f"model={self.config['model']['name']} learns from demonstrations, and "
                    f"task={self.config['task']['name']} has none; give a model that "
                    "can do without: model=path model.path=FOLDER"
                )
            writing = {key: node for key, node in self.config["environment"].items() if key not in FROZEN}
            make = partial(
                model.folder,
                dataset=self.dataset,
                make_renderer=partial(self._make_renderer, describes=False),
                make_runner=self._demonstrating,
                teaches=self._format,
                environment_key=repr(
                    [writing, *(self.config[group] for group in ("tools", "retriever")), self._versions()]
                ),
                seed=self.run.seed,
                progress=show_stages(self.screen),
            )
            folder = in_turn(self.world, make)
        return Start(folder)

    @property
    def code(self) -> Path | None:
        """The folder with Python files of the model's that are trusted."""
        return self.start.folder if isinstance(self.model, ModelPath) and self.model.trust_remote_code else None

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
            "fingerprints": {"data": self.dataset.fingerprint, **self.equipment.fingerprints},
            "versions": {**self._versions(), "processes": str(self.world.size)},
        }

    def _versions(self) -> dict[str, str]:
        """What may change the last bits."""
        return {name: version(name) for name in VERSIONS} | {"threads": str(torch.get_num_threads())}

    def oracle(self) -> Runner | None:
        """The data set's ideal policy in the same environment, where the data set has one."""
        dataset = self.dataset
        if not isinstance(dataset, DemonstratedDataset):
            return None
        demonstrator = cache(lambda task_id: dataset.oracle(tasks[task_id]))
        tasks = {task.id: task for task in dataset.split("test")}
        return replace(self.runner, engine=scripted(self.renderer, demonstrator))

    @property
    def canary_ids(self) -> tuple[int, ...]:
        """A fixed prompt, by which the engine's weights are held against the policy's."""
        return self.renderer.open(self.dataset.split("train")[0].messages)

    def examiner(self, *, test: bool, dev: bool) -> Examiner:
        """What evaluates this wiring's policy, on the splits that are needed."""
        run = self.run
        if test and run.eval.tasks > len(self.dataset.split("test")):
            held_out = len(self.dataset.split("test"))
            self.screen.line(f"note: run.eval.tasks={run.eval.tasks}, but the test split has only {held_out}")
        return Examiner(
            runner=self.runner,
            engine=self.engine,
            equipment=(*self.equipment.closing, self.runner.environment),
            meter=self.meter,
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
            record_tokens=run.record_tokens,
            sync=partial(have_sample, self.engine, self.policy, self.canary_ids, 0) if is_pooled(self.engine) else None,
        )
