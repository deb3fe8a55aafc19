"""The calculator: exact, and short whatever it is given."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Outcome
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.calculator import Calculator
from tests.thorough import examples

ALL = Calculator()
WORLD = Calculator(operators="+-*")


def answers(calculator: Calculator, *expressions: str) -> list[str]:
    results = [calculator.calculate(e) for e in expressions]
    assert all(r == ToolResult.ok(r.text) for r in results), results
    return [r.text for r in results]


def test_results_are_exact() -> None:
    assert answers(ALL, "29*34-7", "0.1+0.2", "10/4", "1/3*3", ".5+.5", "7.", " 2 *\t-3\n", "007") == (
        ["979", "0.3", "2.5", "1", "1", "7", "-6", "7"]
    )
    assert answers(ALL, "1/3", "-2/3", "100/7", "2**-2", "0.1**20", "1/(3*10**20)") == [
        "0.333333333333333",
        "-0.666666666666667",
        "14.2857142857143",
        "0.25",
        "0.00000000000000000001",
        "0.00000000000000000000333333333333333",
    ]
    assert answers(ALL, "12345678901234567890*98765432109876543210") == ["1219326311370217952237463801111263526900"]


def test_precedence_is_pythons() -> None:
    assert answers(ALL, "-2**2", "2**3**2", "2**-1", "-7//2", "-7%3", "2*-3", "--3", "+-+3", "8/2/2", "2-3-4") == (
        ["-4", "512", "0.5", "-4", "2", "-6", "3", "-3", "2", "-5"]
    )
    assert answers(ALL, "(1+2)*3", "5.5%2", "7.5//2", "0**0", "(-1)**99999999999", "2**(1+2)") == (
        ["9", "1.5", "3", "1", "-1", "8"]
    )


def test_what_is_no_expression_is_the_policys_fault() -> None:
    expressions = {
        "": "the expression is empty",
        "x+1": "cannot read 'x+1'; an expression has numbers and operators only",
        "1e5": "cannot read 'e5'; an expression has numbers and operators only",
        "2^3": "cannot read '^3'; an expression has numbers and operators only",
        "__import__('os')": "cannot read \"__import__('os')\"; an expression has numbers and operators only",
        "\u0661+1": "cannot read '\u0661+1'; an expression has numbers and operators only",
        "2+": "the expression ends too early",
        "(1": "a ) is missing",
        "1)": "cannot read ')' after a number",
        "1 2": "cannot read '2' after a number",
        "1.2.3": "cannot read '.3' after a number",
        "*3": "a number is missing before '*'",
        "()": "a number is missing before ')'",
        "(" * 51 + "1" + ")" * 51: "nested deeper than 50",
        "2**" * 51 + "2": "nested deeper than 50",
        "1" * 1001: "1001 characters; at most 1000 are read",
    }
    assert {e: ALL.calculate(e) for e in expressions} == {e: ToolResult.refused(w) for e, w in expressions.items()}


def test_what_has_no_result_is_the_tools_word() -> None:
    expressions = {
        "1/0": "division by zero",
        "1//(2-2)": "division by zero",
        "5%0": "division by zero",
        "0**-1": "division by zero",
        "2**0.5": "an exponent must be a whole number",
        "9**9**9": "a number of more than 1000 digits",
        "10**1000": "a number of more than 1000 digits",
        "2**-3000": "a number of more than 1000 digits",
        "10**999*10": "a number of more than 1000 digits",
    }
    assert {e: ALL.calculate(e) for e in expressions} == {e: ToolResult.failed(w) for e, w in expressions.items()}


def test_only_some_operators() -> None:
    assert answers(WORLD, "29*34-7", "-3+5") == ["979", "2"]
    refused = ["7//2", "6/2", "2**3", "7%2", "(1+2)*3"]
    assert [WORLD.calculate(e) for e in refused] == [ToolResult.failed("only + - *")] * 5
    assert WORLD.calculate("a//2").outcome is Outcome.INVALID_ARGS
    assert Calculator(operators="+ - * / // % ** ( )").spec == ALL.spec
    assert WORLD.spec.description == "Calculates exactly. Operators: + - *"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"operators": "+ ^"}, "no operator ^"),
        ({"operators": "+ ("}, "parentheses come in pairs"),
        ({"max_length": 0}, "max_length=0"),
        ({"max_digits": 5000}, "max_digits=5000"),
    ],
)
def test_mistakes_of_the_configuration(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Calculator(**keys)  # type: ignore[arg-type]
    assert message in str(error.value)


numbers = st.one_of(
    st.integers(0, 999).map(str), st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda n: f"{n[0]}.{n[1]:02d}")
)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        inner.map(lambda e: f"({e})"),
        inner.map(lambda e: f"-{e}"),
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", " + ", " * "]), inner).map("".join),
        st.tuples(inner, st.integers(-3, 3)).map(lambda p: f"({p[0]})**{p[1]}"),
        st.tuples(inner, st.integers(0, 3)).map(lambda p: f"{p[0]}**{p[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(500), deadline=None)
@given(expressions)
def test_it_agrees_with_python(expression: str) -> None:
    """Python's own parser and operators, over fractions."""
    import re

    program = re.sub(r"[0-9]+(?:\.[0-9]+)?", lambda n: f"F('{n[0]}')", expression)
    try:
        expected = eval(program, {"__builtins__": {}, "F": Fraction})
    except ZeroDivisionError:
        assert ALL.calculate(expression) == ToolResult.failed("division by zero")
        return
    except (OverflowError, MemoryError):
        return
    result = ALL.calculate(expression)
    if isinstance(expected, float | complex):  # a power of a fraction
        assert result == ToolResult.failed("an exponent must be a whole number")
    elif result != ToolResult.failed("a number of more than 1000 digits"):
        assert result.outcome is Outcome.SUCCESS
        if "." not in result.text or Fraction(result.text) == expected:
            assert Fraction(result.text) == expected
        else:
            assert abs(Fraction(result.text) - expected) <= abs(expected) * Fraction(1, 10**14)


@settings(max_examples=examples(500), deadline=None)
@given(st.one_of(st.text(), st.text("0123456789.+-*/%() ", max_size=60)))
def test_any_text_has_a_typed_result(text: str) -> None:
    result = ALL.calculate(text)
    assert result.outcome in (Outcome.SUCCESS, Outcome.INVALID_ARGS, Outcome.RUNTIME_ERROR)
    assert (result.outcome is Outcome.SUCCESS) == (not result.text.startswith("error: "))
    assert len(result.text) < 1100


def test_nothing_takes_long() -> None:
    draw = random.Random(0)
    hostile = ["9**" * 40 + "9", "(9**999)" * 30, "9" * 1000, "1/3" + "*1/7" * 240, "-" * 999 + "1", "7**999%13"]
    hostile += ["(" * 49 + "9**90" + ")**9" * 49, "/".join(["9" * 90] * 10), "0." + "1" * 900 + "**9"]
    hostile += [
        "".join(draw.choice(["9**", "99", "*", "/", "(", ")", "-", "%"]) for _ in range(400)) for _ in range(200)
    ]
    began = time.process_time()
    for expression in hostile:
        ALL.calculate(expression)
    assert time.process_time() - began < 2.0
