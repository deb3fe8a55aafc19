"""Reports, claim by claim: what a report says (claims), whether what it cites says so too (support), and the grade that
comes of it (judge)."""
