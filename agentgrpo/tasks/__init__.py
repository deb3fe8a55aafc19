"""Task sets: the questions put to a policy, and the corpora it may search."""
