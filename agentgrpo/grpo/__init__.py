"""GRPO as data and pure functions: advantages, losses, KL estimators, the algorithm that names them, packing."""
