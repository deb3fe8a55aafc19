"""Question-answer sets as others publish them, and of the user's own, mixed."""
