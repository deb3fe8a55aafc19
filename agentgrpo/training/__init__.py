"""Training: the policy, its adapter and reference, the optimizer, the training step and the supervised warm start."""

from agentgrpo.training.optimizer import AdamW
from agentgrpo.training.policy import Policy, init_policy, load_policy
from agentgrpo.training.reference import Reference, frozen_reference
from agentgrpo.training.supervised import (
    SupervisedMetrics,
    SupervisedStep,
    WeightedSample,
    train_supervised,
)
from agentgrpo.training.trainer import Trainer
from agentgrpo.training.update_metrics import UpdateMetrics

__all__ = [
    "AdamW",
    "Policy",
    "Reference",
    "SupervisedMetrics",
    "SupervisedStep",
    "Trainer",
    "UpdateMetrics",
    "WeightedSample",
    "frozen_reference",
    "init_policy",
    "load_policy",
    "train_supervised",
]
