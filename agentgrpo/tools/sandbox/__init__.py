"""Run programs written by a model."""
