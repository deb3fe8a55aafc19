"""The tool of all these agents."""

import re


def compute(expression: str) -> str:
    """A sum, such as 1+2, or what is wrong with it."""
    numbers = re.findall(r"-?\d+", expression)
    return str(sum(map(int, numbers))) if numbers else "error: no numbers"
