"""Mathematical answers, compared by the library math-verify in worker processes."""
