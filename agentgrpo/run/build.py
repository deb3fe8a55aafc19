"""From settings to the parts of a run, with one typed function for each part.

    load_inputs     settings, data, judge, reward, tools: everything that needs no weights
    prepare_start   the start weights: fetched, found in the cache, or made by a warm start; a separate stage
    build_run       policy, renderer, engine and environment on these weights: a frozen Run
    run_of          the three in a row

train, evaluate, replay and the doctor call the same functions. Heavy objects are built once, identically in every
process; no part knows another part's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from agentgrpo.config.build import ModelPath, PartNode
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.registry import FROZEN
from agentgrpo.config.settings import RolloutSettings, RunSettings
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.stages import Clock, NoClock
from agentgrpo.core.types import Passage, Task
from agentgrpo.engines.base import Engine, SamplingParams
from agentgrpo.environments.factory import EnvironmentFactory, Runner
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.memory.options import MemoryOptions, schema_of
from agentgrpo.environments.program.view import files_named_in
from agentgrpo.environments.search.calls import specs_of
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.judges.composed import SuiteJudge, refuse_unjudged
from agentgrpo.models.loading import Start, fetched_folder, open_policy, refuse_other_shape
from agentgrpo.records.screen import Screen
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.choose import choose, choose_for_tools
from agentgrpo.renderers.speech import Speech
from agentgrpo.renderers.tokens import FastTokenizer
from agentgrpo.rewards.base import GroupReward
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.suite import SuiteReward
from agentgrpo.rollout.demonstrations.base import Source
from agentgrpo.rollout.demonstrations.oracle import ideal_of
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.rollout.openings import OverlongTasks, overlong
from agentgrpo.rollout.suite import SuiteEnvironments, SuiteRunner
from agentgrpo.run.cold_start import cold_started
from agentgrpo.run.drift import files_of
from agentgrpo.run.equipment import Equipment, SuiteEquipment, build_part
from agentgrpo.run.examine import Examiner, first
from agentgrpo.run.frozen import refuse_own_endpoint, refuse_own_reader
from agentgrpo.run.guards import Guards
from agentgrpo.run.profile import stage_clock
from agentgrpo.run.report import show_stages
from agentgrpo.run.services import IN_PROCESS
from agentgrpo.run.settings import Settings
from agentgrpo.run.tokens import settle_tokens
from agentgrpo.run.warm_start import WarmStart, scripted
from agentgrpo.services.meter import Meter
from agentgrpo.tasks.base import SPLITS, DemonstratedDataset, HeldOutDataset, MixedDataset, TaskDataset, TeachingDataset
from agentgrpo.tasks.suite import MemberTasks, SuiteTasks, of_member
from agentgrpo.training.adapters import add_adapter, freeze
from agentgrpo.training.canary import have_sample, is_pooled
from agentgrpo.training.policy import Policy
from agentgrpo.training.process_group import ProcessGroup, in_turn
from agentgrpo.training.weight_files import PolicyFiles
from agentgrpo.worlds.simulated import simulated

VERSIONS = ("torch", "transformers", "tokenizers", "faiss-cpu", "tantivy", "numpy")
_FREE: Mapping[str, Mapping[str, str]] = {
    "reader": {"name": "cloze"},
    "validity": {"name": "none"},
    "reranker": {"name": "lexical"},
    "fetcher": {"name": "none"},
    "evidence": {"name": "lexical"},
}
"""Replacements for the parts of an environment that may call a service."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything in a run that needs no weights."""

    settings: Settings
    snapshot: Mapping[str, Any]
    """The configuration with unresolved interpolations."""
    screen: Screen
    world: ProcessGroup
    guards: Guards
    dataset: TaskDataset
    meter: Meter
    """Gate for all calls to external services."""
    judge: AnswerJudge
    reward: GroupReward
    clock: Clock
    equipment: Equipment
    """Retrievers, tools and workspaces for the environment."""
    members: Mapping[str, Inputs] = field(default_factory=dict)
    """For a suite: the inputs of each member, as if it were a run by itself."""
    source: Source | None = None
    """Source of the demonstrations to imitate; None = the policy learns from its own episodes."""

    @property
    def run(self) -> RunSettings:
        return self.settings.run

    @property
    def rollout(self) -> RolloutSettings:
        return self.settings.rollout

    @property
    def hardware(self) -> Hardware:
        return self.settings.hardware

    @property
    def algorithm(self) -> Algorithm:
        return self.settings.algorithm

    @property
    def group_sizes(self) -> Mapping[str, int]:
        """Group size of each member of a suite."""
        return {name: member.rollout.group_size for name, member in self.members.items()}

    @property
    def is_sharded(self) -> bool:
        return self.hardware.strategy == "fsdp" and self.world.size > 1

    @property
    def sampling(self) -> SamplingParams:
        r = self.rollout
        return SamplingParams(
            max_tokens=r.max_tokens, temperature=r.temperature, top_p=r.top_p, top_k=r.top_k, min_p=r.min_p
        )

    @property
    def format(self) -> str:
        """The name of the turn format that the environment expects."""
        chosen = self.settings.environment.tree
        return json.dumps({key: chosen[key] for key in ("name", "schema", "tags", "native_calls") if chosen.get(key)})

    def prices(self, figures: Figures) -> Mapping[str, float]:
        """Return the price of each kind of call for comparing policies: run.eval.prices, else the budget's price. A
        call without either costs the environment's own price."""
        paid = self.meter.budget.prices.by_kind
        known = {name: paid[name] for name in figures.counts if paid.get(name)}
        return {**known, **self.run.eval.prices}

    def fixed_state(self, start: Mapping[str, str]) -> dict[str, Any]:
        """Return a checkpoint's fixed part; runs that differ in one of its hard keys cannot continue each other."""
        files = files_of(self.snapshot)
        return {
            "config": dict(self.snapshot),
            "start": dict(start),
            "fingerprints": {
                "data": self.dataset.fingerprint,
                **({"demonstrations": self.source.fingerprint} if self.source else {}),
                **self.equipment.fingerprints,
            },
            **({"files": files} if files else {}),
            "versions": {**versions(), "processes": str(self.world.size)},
        }


@dataclass(frozen=True, kw_only=True)
class Run(Inputs):
    """The parts of a run, each built once. Training adds an optimizer (run.assembly)."""

    start: Start
    """The start weights, even if the policy holds other weights."""
    policy: Policy
    renderer: Renderer
    engine: Engine
    runner: PolicyRunner
    """Runs the policy in the run's environment."""
    overlong: Sequence[OverlongTasks] = ()
    """Training tasks that can never be started because they are too long, by member."""
    members: Mapping[str, Run] = field(default_factory=dict)
    """For a suite: the members' runs, which share policy and engine but have separate environments."""

    @property
    def code(self) -> Path | None:
        """The folder with the model's trusted Python files, or None."""
        return trusted_code(self.settings.model, self.start)

    @property
    def train_tasks(self) -> Sequence[Task]:
        """The training tasks that can be started."""
        return reduce(lambda tasks, found: found.others(tasks), self.overlong, self.dataset.split("train"))

    @property
    def left_out(self) -> Sequence[str]:
        """A line for each set of training tasks left out."""
        return [found.line("training tasks", "left out of training") for found in self.overlong if found.ids]

    @property
    def canary_ids(self) -> tuple[int, ...]:
        """A fixed prompt for checking the engine's weights against the policy's."""
        return self.renderer.open(self.train_tasks[0].messages)

    def oracle(self) -> Runner | None:
        """Return the data set's ideal policy in the same environment, or None if the data set has none."""
        dataset = self.dataset
        if not isinstance(dataset, DemonstratedDataset):
            return None
        demonstrator = cache(lambda task_id: dataset.oracle(tasks[task_id]))
        tasks = {task.id: task for task in dataset.split("test")}
        return replace(self.runner, engine=scripted(self.renderer, demonstrator))

    def examiner(self, *, test: bool, dev: bool) -> Examiner:
        """Return the evaluator of this run's policy, with the splits that are needed."""
        run = self.run
        if test and run.eval.tasks > len(self.dataset.split("test")):
            held_out = len(self.dataset.split("test"))
            self.screen.line(f"note: run.eval.tasks={run.eval.tasks}, but the test split has only {held_out}")
        tasks = first(self.dataset.split("test"), run.eval.tasks, split="test") if test else ()
        return self._examiner(tasks, first(self.dataset.split("dev"), run.eval_tasks, split="dev") if dev else ())

    def _examiner(self, tasks: Sequence[Task], dev_tasks: Sequence[Task]) -> Examiner:
        run = self.run
        for of, split in ((tasks, "test"), (dev_tasks, "dev")) if not self.members else ():
            if (found := overlong(self.runner, of)).ids:
                self.screen.line(f"note: {found.line(f'{split} tasks', 'evaluated as unanswered')}")
        return Examiner(
            members={
                name: member._examiner(of_member(tasks, name), of_member(dev_tasks, name))
                for name, member in self.members.items()
            },
            runner=self.runner,
            engine=self.engine,
            equipment=(*self.equipment.closing, self.runner.environment),
            meter=self.meter,
            oracle=self.oracle(),
            judge=self.judge,
            reward=self.reward,
            tasks=tasks,
            dev_tasks=dev_tasks,
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


def load_inputs(
    settings: Settings,
    snapshot: str,
    screen: Screen,
    world: ProcessGroup,
    *,
    equip: Callable[[Settings, TaskDataset, Meter], Equipment] | None = None,
) -> Inputs:
    """Load everything that needs no weights. equip: replaces build_equipment. Raises ConfigError and DataError."""
    run = settings.run
    torch.set_num_threads(settings.hardware.num_threads)
    common: dict[str, Any] = {
        "snapshot": yaml.safe_load(snapshot),
        "screen": screen,
        "world": world,
        "guards": Guards(settings.guards, has_checkpoints=bool(run.checkpoint_every)),
        "meter": Meter(cassette=settings.cassette, budget=settings.budget, run_dir=Path(run.dir)),
        "clock": stage_clock(settings.hardware.device) if run.profile else NoClock(),
    }
    read = partial(_read, common=common, equip=equip or build_equipment)
    if not settings.suite:
        return read(settings, settings.task.build())
    members = {}
    for name, member in settings.suite.items():
        with of_suite(name):
            members[name] = read(member.settings, MemberTasks(name, member.settings.task.build()))
    datasets = {name: cast(MemberTasks, of.dataset) for name, of in members.items()}
    return Inputs(
        settings=settings,
        dataset=SuiteTasks(members={name: (of, settings.suite[name].weight) for name, of in datasets.items()}),
        judge=SuiteJudge(routes={name: of.judge for name, of in members.items()}),
        reward=SuiteReward({name: of.reward for name, of in members.items()}),
        equipment=SuiteEquipment({name: of.equipment for name, of in members.items()}),
        members=members,
        **common,
    )


def _read(
    settings: Settings,
    dataset: TaskDataset,
    *,
    common: Mapping[str, Any],
    equip: Callable[[Settings, TaskDataset, Meter], Equipment],
) -> Inputs:
    """Return the inputs of a run with one environment, or of a suite's member."""
    meter: Meter = common["meter"]
    chosen = {name: settings.tree[name] for name in ("environment", "judge")}
    refuse_own_endpoint(chosen, engine=settings.tree["engine"], adapts=settings.model.lora.rank is not None)
    for note in dataset.notes if isinstance(dataset, MixedDataset) else ():
        common["screen"].line(f"note: {note}")
    judge: AnswerJudge = build_part(settings.judge, meter)
    reward: Reward = settings.reward.build(judge=judge)
    pays_itself = settings.environment.says("pays_itself") and isinstance(reward, Reward) and not reward.needs_grades
    if settings.environment.says("pays_itself") is False and isinstance(reward, Reward) and reward.reads_payment:
        raise ConfigError(
            f"environment={settings.environment.name} reports no value of an attempt, and the reward reads one: "
            "give it get_reward() or an attribute reward, or let a judge compare answers: reward=correctness"
        )
    tasks = (task for name in SPLITS for task in dataset.split(name))
    refuse_unjudged(judge, (task for task in tasks if task.references or not pays_itself))
    for task in (task for name in SPLITS for task in dataset.split(name)) if isinstance(reward, Reward) else ():
        reward.refuse_task(task)
    equipment = equip(settings, dataset, meter)
    return Inputs(settings=settings, dataset=dataset, judge=judge, reward=reward, equipment=equipment, **common)


def build_equipment(settings: Settings, dataset: TaskDataset, meter: Meter) -> Equipment:
    """Build retrievers and tools over the data set's corpora."""
    node = settings.counterfactual
    given = {"tasks": [t for name in SPLITS for t in dataset.split(name)]} if node.name != "none" else {}
    own = dataset.training_corpora() if isinstance(dataset, HeldOutDataset) else None
    training = None if own is None else (frozenset(task.id for task in dataset.split("train")), own)
    return Equipment(settings.tree, dataset.corpora(), meter, node.build(**given), training=training)


def prepare_start(inputs: Inputs) -> Start:
    """Return the start weights; a configured warm or cold start trains them first, which takes minutes. Call it outside
    any event loop."""
    model = inputs.settings.model
    if isinstance(model, WarmStart):
        return Start(in_turn(inputs.world, partial(model.folder, **_teaching(inputs))))
    fetch = partial(fetched_folder, model.path, model.revision, tell=inputs.screen.line)
    start = Start(in_turn(inputs.world, fetch))
    refuse_other_shape(start.folder, model.shape, trust_remote_code=model.trust_remote_code)
    if not model.cold_start.demonstrations:
        return start
    teach = partial(
        cold_started,
        start,
        model.cold_start,
        renderer=model.renderer,
        hardware=inputs.hardware,
        tell=inputs.screen.line,
        **_teaching(inputs),
    )
    return Start(in_turn(inputs.world, teach))


def _teaching(inputs: Inputs) -> dict[str, Any]:
    """Return the arguments that a warm or cold start needs from a run: demonstrations, renderer and environment."""
    settings = inputs.settings
    needed = DemonstratedDataset if isinstance(settings.model, WarmStart) else TeachingDataset
    if not isinstance(inputs.dataset, needed):
        remedy = (
            "give a model that can do without: model=path model.path=FOLDER"
            if isinstance(settings.model, WarmStart)
            else "set model.cold_start.demonstrations=0, or show it your own first: agentgrpo sft demonstrations=chat"
        )
        raise ConfigError(
            f"model={settings.tree['model']['name']} learns from demonstrations, and task={settings.task.name} has "
            f"none; {remedy}"
        )
    writing = {key: node for key, node in settings.environment.tree.items() if key not in FROZEN}
    return {
        "dataset": inputs.dataset,
        "make_renderer": partial(build_renderer, inputs, describes=False),
        "make_runner": partial(_demonstrating, inputs),
        "teaches": inputs.format,
        "environment_key": repr([writing, *(settings.tree[group] for group in ("tools", "retriever")), versions()]),
        "seed": inputs.run.seed,
        "progress": show_stages(inputs.screen),
    }


def build_run(inputs: Inputs, start: Start, *, weights: Path | None = None) -> Run:
    """Build policy, renderer, engine and environment. weights: the policy's weights instead of the start weights."""
    run = inputs.run
    folders = [start.folder, *([] if weights is None else [weights])]
    for settings in inputs.settings.each:
        refuse_own_reader(settings.environment.tree, run_dir=Path(run.dir), policies=folders)
    policy = build_policy(inputs, start, weights)
    each = inputs.members or {"": inputs}
    renderers: dict[str, tuple[Renderer, bool]] = {}
    told: dict[str, None] = {}
    """Notes without duplicates, as members may repeat them."""
    for name, of in each.items():
        with of_suite(name):
            described = describes_tools(of, policy, inputs.settings.engine)
            renderers[name] = build_renderer(of, policy.tokenizer, describes=described), described
            told |= dict.fromkeys(settle_tokens(renderers[name][0], policy))
    for note in told:
        inputs.screen.line(f"note: {note}")
    engine = build_engine(inputs, policy, [renderer for renderer, _ in renderers.values()])
    runs = {}
    for name, of in each.items():
        with of_suite(name):
            runs[name] = _in_environment(of, start, policy, engine, *renderers[name])
    if inputs.meter.has_cassette and not inputs.meter.in_use:
        mode = inputs.settings.cassette.mode
        inputs.screen.line(f"note: cassette.mode={mode}, and nothing in this run asks a service: there is no cassette")
    for note in inputs.equipment.notes:
        inputs.screen.line(f"note: {note}")
    built = _together(inputs, runs) if inputs.members else runs[""]
    figures = built.runner.figures
    done = {f"agent/{name}": figures.label(name) for name in figures.headline if name != "reward"}
    done = {f"suite/{name}/reward/mean": name for name in figures.members} or done
    inputs.screen.show({"loss": "loss"} if inputs.source else done)
    return built


def _in_environment(
    inputs: Inputs, start: Start, policy: Policy, engine: Engine, renderer: Renderer, describes: bool
) -> Run:
    """Build the run of one environment, which may be a member's."""
    environment = build_environment(inputs, renderer, inputs.equipment.for_environment, describes=describes)
    is_graded = isinstance(inputs.reward, Reward) and inputs.reward.is_graded
    runner = PolicyRunner(environment=environment, engine=engine, renderer=renderer, is_graded=is_graded)
    tasks = inputs.dataset.split("train")
    too_long = overlong(runner, tasks)
    fitting = too_long.others(tasks)
    for task in (fitting or tasks)[:1]:
        runner.rehearse(task)
    if tasks and not fitting:
        raise ConfigError(too_long.line("training tasks", "nothing is left to train on"))
    priced = replace(inputs.run, eval=replace(inputs.run.eval, prices=inputs.prices(runner.figures)))
    given = {f.name: getattr(inputs, f.name) for f in fields(Inputs)}
    given |= {"settings": replace(inputs.settings, run=priced), "members": {}, "overlong": [too_long]}
    return Run(**given, start=start, policy=policy, renderer=renderer, engine=engine, runner=runner)


def _together(inputs: Inputs, members: Mapping[str, Run]) -> Run:
    """Combine the members' runs into the run of a suite."""
    runners = {name: of.runner for name, of in members.items()}
    figures = {
        name: replace(of.runner.figures, prices=of.runner.figures.priced(of.run.eval.prices))
        for name, of in members.items()
    }
    any_of = next(iter(members.values()))
    environment = SuiteEnvironments(
        members={name: runner.environment for name, runner in runners.items()}, figures=Figures.of_suite(figures)
    )
    runner = SuiteRunner(environment=environment, engine=any_of.engine, renderer=any_of.renderer, members=runners)
    given = {f.name: getattr(inputs, f.name) for f in fields(Inputs)} | {"members": members}
    given |= {name: getattr(any_of, name) for name in ("start", "policy", "renderer", "engine")}
    return Run(**given, runner=runner, overlong=[found for of in members.values() for found in of.overlong])


def run_of(
    settings: Settings, snapshot: str, screen: Screen, world: ProcessGroup, *, weights: Path | None = None
) -> Run:
    """Build everything that these settings describe. Call it outside any event loop."""
    inputs = load_inputs(settings, snapshot, screen, world)
    inputs = replace(inputs, source=settings.demonstrations.build(dataset=inputs.dataset))
    return build_run(inputs, prepare_start(inputs), weights=weights)


def build_policy(inputs: Inputs, start: Start, weights: Path | None = None) -> Policy:
    """Load the policy: from the start weights, with adapter and frozen parts as `model` says, or from `weights`."""
    model = inputs.settings.model
    policy = open_policy(weights or start.folder, inputs.hardware, code=trusted_code(model, start))
    if weights is None and model.lora.rank is not None:
        add_adapter(policy.model, model.lora, base=str(start.folder), seed=inputs.run.seed)
    for note in freeze(policy.model, model.freeze):
        inputs.screen.line(f"note: {note}")
    return policy


def trusted_code(model: WarmStart | ModelPath, start: Start) -> Path | None:
    """Return the folder with the model's trusted Python files, or None."""
    return start.folder if isinstance(model, ModelPath) and model.trust_remote_code else None


def describes_tools(inputs: Inputs, policy: Policy, engine: PartNode) -> bool:
    """Return whether the policy must be told the available actions and their format; a warm start teaches them."""
    model = inputs.settings.model
    if isinstance(model, ModelPath) and model.describe_tools is not None:
        return model.describe_tools
    if "model" in engine.tree:  # an endpoint's model has had no warm start
        return True
    return isinstance(model, ModelPath) and policy.knows_format != inputs.format


def build_renderer(inputs: Inputs, tokenizer: FastTokenizer, *, describes: bool) -> Renderer:
    """Choose the renderer. describes: tools are described in words if the format has no place for them."""
    name, chosen = inputs.settings.model.renderer, inputs.settings.environment
    if chosen.takes("schema"):
        tools: Sequence[ToolSpec] = schema_of(chosen.tree.get("schema", MemoryOptions.schema)).specs
    elif chosen.takes("tools"):
        tools = [t.spec for t in inputs.equipment.for_environment["tools"].values()] if name == "tags" else ()
    elif chosen.says("speaks_of_tools"):
        tools = ()
    elif chosen.tree.get("native_calls"):
        if isinstance(inputs.settings.model, WarmStart):
            raise ConfigError(
                "environment.native_calls=true, but the demonstrations of this model's warm start write tags; choose a "
                "model that calls tools: model.path=FOLDER"
            )
        has = {part: chosen.tree[part]["name"] != "none" for part in ("reranker", "fetcher")}
        web = "web" in inputs.equipment.for_environment["retrievers"]
        tools = specs_of(web=web, rerank=has["reranker"], fetch=has["fetcher"])
    else:
        return choose(name, tokenizer=tokenizer)
    return choose_for_tools(name, tokenizer=tokenizer, describe_tools=describes, tools=tools)


def build_engine(inputs: Inputs, policy: Policy, renderers: Sequence[Renderer]) -> Engine:
    """Build the engine that samples from the policy's weights, or from an endpoint's own model. renderers: one per
    suite member. Raises ConfigError if the engine reads tokens and the members' renderers differ."""
    node, run, renderer = inputs.settings.engine, inputs.run, renderers[0]
    kinds = sorted({type(one).__name__ for one in renderers})
    if len(kinds) > 1 and (node.takes("renderer") or node.takes("speech")):
        raise ConfigError(
            f"engine={node.name} reads one renderer's output, but this suite's members use {' and '.join(kinds)}: "
            "choose a common one, such as model.renderer=react, environments of one format, or engine=hf"
        )
    engine: Engine = build_part(
        node,
        inputs.meter if node.takes("meter") else None,
        meter=inputs.meter,
        **({} if "model" in node.tree else {"model": policy.model}),  # a node with "model" names an endpoint's
        tokenizer=policy.tokenizer,
        run_seed=run.seed,
        unused_ids=policy.vocabulary.unused,
        weights=PolicyFiles(policy, inputs.world),
        sync_dir=Path(run.dir) / "sync",
        rank=inputs.world.rank,
        context_limit=int(policy.model.config.get_text_config().max_position_embeddings),
        own_weights=inputs.algorithm.max_staleness > 0 or inputs.is_sharded,
        renderer=renderer,
        speech=Speech(renderer, policy.tokenizer),
        oracle=ideal_of(inputs.dataset, renderer),
    )
    return engine


def build_environment(
    inputs: Inputs,
    renderer: Renderer,
    equipment: Mapping[str, Any],
    *,
    describes: bool,
    node: PartNode | None = None,
) -> EnvironmentFactory:
    """equipment: Equipment.for_environment, or the result of `over`. node: None = the configured environment, with
    metered calls; another node is used for demonstrations, unmetered."""
    environment: EnvironmentFactory = build_part(
        node or inputs.settings.environment,
        None if node else inputs.meter,
        renderer=renderer,
        thesaurus=inputs.dataset.thesaurus(),
        prices=inputs.run.eval.prices,
        call_prices=inputs.meter.budget.prices.by_kind,
        describe_tools=describes,
        run_files=files_named_in(inputs.settings.tree, but=("command", "show")),
        **equipment,
    )
    figures = environment.figures
    figures.priced(inputs.prices(figures))  # raises here, before a warm start takes minutes
    if environment.metrics and isinstance(inputs.reward, Reward):
        inputs.reward.refuse_uncounted(environment.metrics)
    return environment


def _demonstrating(
    inputs: Inputs, engine: Engine, renderer: Renderer, corpora: Mapping[str, Sequence[Passage]]
) -> Runner:
    """Build the environment over a demonstration world's own documents. Nothing written there is ever asked for, so
    parts that would call a model are replaced."""
    equipment, chosen = inputs.equipment.over(corpora), inputs.settings.environment.tree
    asks = {key for key in chosen.keys() & _FREE if chosen[key]["name"] not in IN_PROCESS.get(key, ())}
    node = PartNode("environment", {**chosen, **{key: _FREE[key] for key in asks}})
    given = {**equipment, "tools": simulated(equipment["tools"])}
    environment = build_environment(inputs, renderer, given, describes=False, node=node)
    return PolicyRunner(environment=environment, engine=engine, renderer=renderer)


@contextmanager
def of_suite(member: str) -> Iterator[None]:
    """Prefix a ConfigError or DataError raised inside with the member's name; "" = no suite."""
    try:
        yield
    except (ConfigError, DataError) as e:
        if not member:
            raise
        raise type(e)(f"suite.{member}: {e}") from e


def versions() -> dict[str, str]:
    """Return the versions that may change the last bits of results."""
    return {name: version(name) for name in VERSIONS} | {"threads": str(torch.get_num_threads())}
