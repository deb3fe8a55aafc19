"""Running programs that a model has written."""
