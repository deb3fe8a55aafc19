"""Task sets: what a policy is asked, and the corpora it may search."""
