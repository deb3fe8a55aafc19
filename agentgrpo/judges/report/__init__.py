"""Reports, graded claim by claim: split a report into claims (claims), check the passages that each claim cites
(support), and compute the grade (judge)."""
