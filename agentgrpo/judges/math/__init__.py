"""Mathematical answers, compared by the library math-verify in processes of their own."""
