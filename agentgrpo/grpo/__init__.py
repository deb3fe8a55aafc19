"""GRPO as data and pure functions: advantages, losses, KL estimators, the algorithm that names them, packing."""

from agentgrpo.grpo.advantages import ADVANTAGES
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.grpo.kl import KL_ESTIMATORS
from agentgrpo.grpo.losses import AGGREGATIONS, LOSSES, TokenLoss
from agentgrpo.grpo.packing import PackedBatch, Row, pack

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "LOSSES",
    "Algorithm",
    "PackedBatch",
    "Row",
    "TokenLoss",
    "pack",
]
