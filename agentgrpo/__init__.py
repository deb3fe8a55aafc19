"""agentgrpo: train LLM agents that search, call tools and remember, with GRPO.

The parts of the loop are exported here: scripts/examples/rl_loop.py is a whole run of them, without configuration.
`train`, `resume` and `evaluate` are the command line from Python.
"""

from agentgrpo.core.compute_threads import wait_asleep
from agentgrpo.core.reproducible import ask_for_exact_products

TYPE_CHECKING = False
if TYPE_CHECKING:  # stands in for typing.TYPE_CHECKING: importing typing would double this module's import time
    from agentgrpo.api import evaluate, resume, train
    from agentgrpo.core.types import Episode, EpisodeGroup, Exit, Message, ScoredGroup, Task
    from agentgrpo.engines.base import SamplingParams
    from agentgrpo.engines.hf import HFEngine
    from agentgrpo.environments.base import Observation, Turn
    from agentgrpo.environments.own import OwnEnvironments
    from agentgrpo.environments.tools.environment import ToolEnvironments
    from agentgrpo.grpo.algorithm import Algorithm
    from agentgrpo.grpo.losses import LossInputs
    from agentgrpo.grpo.samples import group_advantages, to_samples
    from agentgrpo.renderers.react import ReactRenderer
    from agentgrpo.renderers.train_tokenizer import train_tokenizer
    from agentgrpo.rollout.groups import run_groups
    from agentgrpo.rollout.loop import PolicyRunner
    from agentgrpo.rollout.scoring import score_with
    from agentgrpo.training.optimizer import AdamW
    from agentgrpo.training.policy import Policy, init_policy, load_policy
    from agentgrpo.training.trainer import Trainer

__version__ = "0.1.0"
_HOMES = {
    "api": ("evaluate", "resume", "train"),
    "core.types": ("Episode", "EpisodeGroup", "Exit", "Message", "ScoredGroup", "Task"),
    "engines.base": ("SamplingParams",),
    "engines.hf": ("HFEngine",),
    "environments.base": ("Observation", "Turn"),
    "environments.own": ("OwnEnvironments",),
    "environments.tools.environment": ("ToolEnvironments",),
    "grpo.algorithm": ("Algorithm",),
    "grpo.losses": ("LossInputs",),
    "grpo.samples": ("group_advantages", "to_samples"),
    "renderers.react": ("ReactRenderer",),
    "renderers.train_tokenizer": ("train_tokenizer",),
    "rollout.groups": ("run_groups",),
    "rollout.loop": ("PolicyRunner",),
    "rollout.scoring": ("score_with",),
    "training.optimizer": ("AdamW",),
    "training.policy": ("Policy", "init_policy", "load_policy"),
    "training.trainer": ("Trainer",),
}
"""Module -> the names that are exported from it."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [
    "AdamW",
    "Algorithm",
    "Episode",
    "EpisodeGroup",
    "Exit",
    "HFEngine",
    "LossInputs",
    "Message",
    "Observation",
    "OwnEnvironments",
    "Policy",
    "PolicyRunner",
    "ReactRenderer",
    "SamplingParams",
    "ScoredGroup",
    "Task",
    "ToolEnvironments",
    "Trainer",
    "Turn",
    "__version__",
    "evaluate",
    "group_advantages",
    "init_policy",
    "load_policy",
    "resume",
    "run_groups",
    "score_with",
    "to_samples",
    "train",
    "train_tokenizer",
]

ask_for_exact_products()  # before loading libraries that read the setting
wait_asleep()


def __getattr__(name: str) -> object:
    """Import a part on first use, so that the command line handles Ctrl-C before the heavy imports."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agentgrpo' has no attribute '{name}'; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"agentgrpo.{_HOME_OF[name]}"), name)
