"""Rollouts: tasks -> scored groups of episodes. Asynchronous; does not import torch."""
