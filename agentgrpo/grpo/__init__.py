"""GRPO as data and pure functions: advantages, losses, KL estimators, the algorithm that names them, packing."""

from agentgrpo.grpo.advantages import ADVANTAGES, GroupRewards
from agentgrpo.grpo.aggregation import AGGREGATIONS
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.correction import CORRECTIONS
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import LOSSES, LossInputs, TokenLoss
from agentgrpo.grpo.packing import PackedBatch, Row, pack

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "LOSSES",
    "Algorithm",
    "GroupRewards",
    "LossInputs",
    "PackedBatch",
    "Row",
    "TokenLoss",
    "pack",
]
