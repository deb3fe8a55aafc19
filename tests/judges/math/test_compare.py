"""Answers as they are written, against references as data sets have them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytest.importorskip("math_verify")

from agentgrpo.judges.math.compare import compare

RIGHT = (
    (r"\frac{1}{2}", r"So it is \boxed{\frac{1}{2}}."),
    (r"\frac{1}{2}", "1/2"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", "½"),
    (r"1\frac{1}{2}", "3/2"),
    ("72", "So she has $72$ dollars."),
    ("72", "The answer is 72."),
    ("48 / 2 = 24, and 48 + 24 = 72\n#### 72", "72"),
    ("1000", "1,000"),
    ("1200", "1.2e3"),
    ("1200", r"\boxed{1.2\times 10^3}"),
    ("50%", "0.5"),
    ("0.5", r"\boxed{50\%}"),
    ("5", r"\boxed{\$5}"),
    ("3", r"\boxed{3\text{ cm}}"),
    ("-3", "\u22123"),
    (r"\{1,2\}", "{2, 1}"),
    (r"\pm 2", r"\{-2, 2\}"),
    ("[0,1)", r"\boxed{[0, 1)}"),
    (r"(-\infty,3]\cup[5,\infty)", "(-∞, 3] ∪ [5, ∞)"),
    ("(1,2)", "(1, 2)"),
    ("x^2+2x+1", "(x+1)**2"),
    (r"2\sqrt{2}", "sqrt(8)"),
    (r"2\pi", "2*pi"),
    ("x=5", "5"),
    (r"x\le 3", "3 ≥ x"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}"),
    (r"\binom{5}{2}", "10"),
    ("C", "(C)"),
    ("blue", r"\text{blue}"),
)
WRONG = (
    ("72", "73"),
    ("72", ""),
    ("72", "I do not know"),
    ("5", "5 or 6"),
    ("5", r"\boxed{5} or \boxed{6}"),
    (r"\frac{1}{3}", "0.333"),
    (r"\pi", "3.14"),
    ("50%", "5%"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("[0,1)", "(0,1]"),
    ("[0,1)", "[0,1]"),
    ("(1,2)", "(2, 1)"),
    ("x^2+2x+1", "x^2+1"),
    (r"x\le 3", "x < 3"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
)


@pytest.mark.parametrize(("reference", "answer"), RIGHT)
def test_the_same_in_other_words_is_right(reference: str, answer: str) -> None:
    assert compare([reference], answer, 10.0) == "right"


@pytest.mark.parametrize(("reference", "answer"), WRONG)
def test_something_else_is_wrong(reference: str, answer: str) -> None:
    assert compare([reference], answer, 10.0) == "wrong"


def test_one_of_several_references_is_enough() -> None:
    assert compare(["7", "8"], "8", 10.0) == "right"


def test_a_reference_that_is_no_mathematics_is_the_datas_fault() -> None:
    assert compare(["the red house"], "8", 10.0) == "no_gold"


def test_what_computes_without_end_is_ended() -> None:
    """In a process of its own, as it runs for a judge: what hears of no error is killed."""
    program = """
from agentgrpo.judges.math.compare import compare
print(compare(["5"], "$" + "x^{" * 1000 + "}" * 1000 + "$", 0.05))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) in ((0, "late\n"), (-signal.SIGPROF, "")), done.stderr
