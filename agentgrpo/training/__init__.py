"""Training: the policy, its adapter and reference, the optimizer, the training step and the supervised warm start."""
