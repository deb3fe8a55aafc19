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


NOT_STATED = (
    *("not 4", "The answer is not 4.", "It isn't 4", "anything but 4", "4 is wrong", "4, no", "Wrong: 4", "hardly 4"),
    *("The answer is 4. That is wrong.", "It is not:\n4", "Not\n4", "nicht 4", "#### not 4", "not four but 4"),
    *("x =/= 4", "x <> 4", "=\u0338 4", "\u00ac 4", r"\neg 4", r"\boxed{\neq 4}", "! 4", "4\u0338"),
    *(r"The answer is not \boxed{4}", r"\boxed{4} is wrong", "It is not $4$.", "$4$ is not it"),
    *("4 or 5", "5 or 4", "either 3 or 4", "between 3 and 4", "one of 1, 2, 3, 4", "1, 2, 3 or 4", "3, or else 4"),
    *("candidates: 3, 4", "any of the numbers 2 3 4", "a number from 1 to 4", "maybe 4", "Is it 4?", "1\n2\n3\n4"),
    *("at most 4", "more than 4", "< 4", "≤ 4", r"$\leq 4$", "up to 4", "4 if it rains, else 5"),
)
STATED = (
    ("4", "There is no remainder. The answer is 4."),
    ("4", "Since 5 is not prime, the answer is $4$."),
    ("4", r"We cannot use 5, so \boxed{4}."),
    ("4", "5 is not it\nThe answer is 4"),
    ("4", "Is it 5? No. It is 4."),
    ("4", "x is either odd or even. The result is 4."),
    ("4", "In 2021, 3 people had 4 apples."),
    ("4", "The answer is:\n4"),
    (r"\{4,5\}", "4 or 5"),
    (r"\{4,5\}", r"\boxed{4} or \boxed{5}"),
    (r"x\neq 4", "x != 4"),
    (r"x\le 4", r"$x \leq 4$"),
)


@pytest.mark.parametrize("answer", NOT_STATED)
def test_what_is_denied_or_left_open_is_not_the_answer(answer: str) -> None:
    assert compare(["4"], answer, 10.0) == "wrong"


@pytest.mark.parametrize(("reference", "answer"), STATED)
def test_a_denial_of_something_else_takes_nothing_back(reference: str, answer: str) -> None:
    assert compare([reference], answer, 10.0) == "right"


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
