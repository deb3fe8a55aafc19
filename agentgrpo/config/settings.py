"""Settings that belong to no single part: plain typed data from the YAML groups `run` and `rollout` and the nodes
`model.lora` and `model.cold_start`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from agentgrpo.config.values import Count, CountOrZero, Positive, PositiveOrZero, Share, check
from agentgrpo.core.errors import ConfigError

AtLeastTwo = Annotated[int, Ge(2)]


Criterion = Literal["quality", "thrift", "cost", "pareto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """The `run.eval` node: the comparison of policies on held-out tasks."""

    tasks: AtLeastTwo = 500
    """Test tasks, counted from the start of the split."""
    samples_per_task: Count = 1
    """Episodes per task at `temperature` (pass@k needs several)."""
    temperature: PositiveOrZero = 1.0
    criterion: Criterion = "quality"
    """Condition for a PASS (run.evaluate.verdict): quality = higher quality; thrift = fewer calls at equal quality;
    cost = lower cost of calls at equal quality; pareto = quality or calls better, the other not worse."""
    margin: PositiveOrZero = 0.02
    """Largest loss of correctness that counts as "not lower" (non-inferiority)."""
    min_discrimination: float = 0.05
    """Minimum lead of the grades that the judge gives to the policy's answers over those for answers to other
    questions."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of one call by name, for the metric `cost` of all calls, paid or replayed. A name that is missing here gets
    its price from budget.prices, if that has any, else from the agent (environments.base.Figures.prices). Prices do not
    depend on the reward preset, so that runs are comparable."""
    baselines: bool = False
    """Train two more policies from the start weights, each for as many CPU seconds as the training, and evaluate them
    on the same tasks: one on the task set's demonstrations, one by rejection sampling. This makes three runs instead of
    one, each with the whole of budget.per_run."""

    def __post_init__(self) -> None:
        check("run.eval", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The `run` group: start, monitoring, checkpoints and end of a run."""

    dir: str
    """Run directory."""
    seed: int = 0
    max_steps: Count = 150
    """Optimizer updates; skipped steps count."""
    max_cpu_s: Positive | None = None
    """Training ends with the first step at which this many CPU seconds are used (by the first process and the programs
    that it started), or at max_steps; null = no limit. With a limit, two equal runs may end at different steps."""
    checkpoint_every: CountOrZero = 25
    """Steps between checkpoints; 0 = none (then the run cannot be resumed)."""
    keep_last: Count = 2
    """Newest checkpoints kept, at least 1."""
    keep_best: bool = True
    """Also keep the checkpoint with the best dev reward."""
    eval_every: CountOrZero = 50
    """Steps between evaluations on the dev split; 0 = none."""
    eval_tasks: AtLeastTwo = 100
    """Dev tasks per such evaluation."""
    eval: EvalSettings = field(default_factory=EvalSettings)
    final_eval: bool = True
    """Evaluate start and end weights on the test split when training is done."""
    step_timeout_s: float | None = 3600.0
    """A step whose episodes take longer is abandoned and counted; null = no limit."""
    watchdog_s: float | None = 600.0
    """The state of a step that takes longer is reported, and again each time as long has passed. null = never."""
    max_loop_lag_s: float | None = 1.0
    """A tool, judge or retriever that holds up a rollout's event loop for longer is reported once. null = never."""
    max_consecutive_skipped_steps: Count = 3
    max_rollbacks: CountOrZero = 3
    """Number of times that guards may send a run back to its last good checkpoint; the next time halts it."""
    max_error_fraction: PositiveOrZero = 0.5
    """Share of a step's episodes that may fail for infrastructure reasons before the run stops."""
    grace_s: PositiveOrZero = 20.0
    """Seconds after SIGTERM or Ctrl-C within which the run saves a checkpoint and ends."""
    log_with: tuple[str, ...] = ("tensorboard",)
    """accelerate trackers, if installed: tensorboard, wandb, mlflow, ..."""
    screen: str = "auto"
    """auto | live | plain | quiet."""
    record_tokens: bool = True
    """Write token ids, mask and logprobs into the trajectories."""
    profile: bool = False
    """Measure the wall time of each stage of a step: profile.jsonl, time/profile/* on the trackers, and a table at the
    end. It changes no result; on a GPU it waits for the device at every stage border, which costs a little."""

    def __post_init__(self) -> None:
        check("run", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The `rollout` group: number of episodes, and sampling."""

    tasks_per_step: Count = 16
    group_size: AtLeastTwo = 8
    temperature: PositiveOrZero = 1.0
    top_p: float = 1.0
    top_k: CountOrZero = 0
    min_p: float = 0.0
    max_tokens: Count = 512
    """Sampled tokens per turn."""
    max_concurrent_episodes: Count = 256
    episode_retries: CountOrZero = 1
    """Fresh attempts, with the same seed, at an episode whose infrastructure failed."""
    episode_timeout_s: float | None = None
    """Time limit of one episode; beyond it the episode fails as infrastructure. null = no limit."""
    stratify_by: str | None = None
    """Metadata key whose values get equal shares of every batch, as far as possible."""
    refill_rounds: CountOrZero = 0
    """Dynamic sampling: maximum further rounds of a step, each with new tasks for zero-variance and failed groups."""
    curriculum: Literal["none", "difficulty"] = "none"
    """difficulty: tasks are drawn by their correctness so far, instead of all in turn."""
    curriculum_target: Share = 0.5
    """Mean correctness of the tasks that are drawn most often."""
    curriculum_memory: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Weight of a task's earlier correctness when it is measured again; 0 = only the last group counts."""

    def __post_init__(self) -> None:
        check("rollout", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A node of the group `suite`, beside the member's own groups; see config.suite."""

    weight: PositiveOrZero = 1.0
    """Share of the training tasks, relative to the other members; 0 = the member is only evaluated."""
    reward_scale: Positive = 1.0
    """Factor of its rewards, beside reward.reward_scale. It has no effect if advantages are divided by their spread."""
    group_size: AtLeastTwo | None = None
    """Episodes per task; null = rollout.group_size."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Like run.eval.prices, which a run with a suite leaves empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The `model.lora` node: an adapter that is trained instead of the model's own weights (training.adapters).

    There is no dropout: the trainer must score what the engine samples."""

    rank: Count | None = None
    """Rank of each change; null = no adapter."""
    alpha: Positive = 32.0
    """Each change is multiplied by alpha / rank."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the changed linear layers, such as [q_proj, v_proj]; all-linear = all except the output layer."""

    def __post_init__(self) -> None:
        check("model.lora", self)
        if not self.targets or (isinstance(self.targets, str) and self.targets != "all-linear"):
            raise ConfigError(
                f"model.lora.targets={self.targets!r}; allowed is all-linear, or a list of module names such as "
                "[q_proj,v_proj]"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSettings:
    """The `model.cold_start` node: before anything else, a published model learns the format of its task set's episodes
    from demonstrations (run.cold_start). The trained model is kept in the cache."""

    demonstrations: CountOrZero = 0
    """Episodes; 0 = no cold start."""
    epochs: Count = 1
    lr: Positive = 1e-4
    """Learning rate of AdamW, after 5 steps of warm-up; it falls linearly over the last 60 % of the steps."""
    tokens_per_batch: Count = 512
    freeze: tuple[str, ...] = ()
    """Parameters frozen meanwhile: embeddings, head, and patterns over parameter names."""

    def __post_init__(self) -> None:
        check("model.cold_start", self)
