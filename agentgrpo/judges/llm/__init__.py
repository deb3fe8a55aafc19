"""A language model as the judge of answers."""
