"""Exact arithmetic: this module's own parser reads an expression of numbers, operators and parentheses; nothing is
executed.

    expr  = term  (("+" | "-") term)*
    term  = unary (("*" | "/" | "//" | "%") unary)*
    unary = ("+" | "-")* power
    power = (number | "(" expr ")") ["**" unary]

Precedence and rounding of // and % are Python's; numbers are fractions, so 0.1 + 0.2 is 0.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.tools.base import ToolResult, Workspace

ROUNDED_DIGITS = 15
"""Significant digits of a result whose decimal expansion does not end."""
MAX_DEPTH = 50
"""Maximum nesting of parentheses and of powers."""
_OPERATORS = ("**", "//", "+", "-", "*", "/", "%", "(", ")")
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<operator>\*\*|//|[-+*/%()])|(?P<end>\Z))"
)


class ExpressionError(Exception):
    """The text is not an expression."""


class Impossible(Exception):
    """The expression has no result within the tool's limits."""


class Calculator:
    """The tool `calculator`. Text that is not an expression (letters, for example) -> invalid_args; an operator that is
    not offered, a division by zero or a number beyond max_digits -> runtime_error."""

    def __init__(
        self, *, operators: str = "+ - * / // % ** ( )", max_length: int = 1000, max_digits: int = 1000
    ) -> None:
        """operators: the operators offered, with or without blanks between them. max_length: characters of an
        expression. max_digits: digits of any intermediate number, before and after the point together. Raises
        ConfigError."""
        self._operators = _operators(operators)
        if not 1 <= max_length <= 4000 or not 1 <= max_digits <= 4000:
            raise ConfigError(
                f"calculator: max_length={max_length}, max_digits={max_digits}; 1 to 4000 are allowed, so that no "
                "expression takes long"
            )
        self._max_length, self._max_digits = max_length, max_digits
        offered = " ".join(self._operators)
        about = f"An arithmetic expression of numbers and {offered}" if offered else "A number"
        self.spec = ToolSpec(
            name="calculator",
            description=f"Calculates exactly. Operators: {offered or 'none'}",
            parameters={
                "type": "object",
                "properties": {"expression": {"type": "string", "description": f"{about}, such as 12.5"}},
                "required": ["expression"],
                "additionalProperties": False,
            },
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        return self.calculate(arguments["expression"])

    async def close(self) -> None:
        pass

    def calculate(self, expression: str) -> ToolResult:
        try:
            if len(expression) > self._max_length:
                raise ExpressionError(f"{len(expression)} characters; at most {self._max_length} are read")
            tokens = _tokens(expression)
            if any(t not in self._operators for t in tokens if t in _OPERATORS):
                raise Impossible(f"only {' '.join(self._operators)}" if self._operators else "only numbers")
            value = _Parser(tokens, self._max_digits).parse()
            return ToolResult.ok(_written(value, self._max_digits))
        except ExpressionError as e:
            return ToolResult.refused(str(e))
        except Impossible as e:
            return ToolResult.failed(str(e))


def _operators(text: str) -> tuple[str, ...]:
    found = re.findall(r"\*\*|//|[-+*/%()]|\S", text)
    if unknown := [o for o in found if o not in _OPERATORS]:
        raise ConfigError(f"calculator: operators={text!r}: no operator {unknown[0]}; there are {' '.join(_OPERATORS)}")
    if ("(" in found) != (")" in found):
        raise ConfigError(f"calculator: operators={text!r}: parentheses come in pairs")
    return tuple(dict.fromkeys(found))


def _tokens(expression: str) -> list[str]:
    """Numbers and operators in order; "" marks the end."""
    tokens: list[str] = []
    at = 0
    while not tokens or tokens[-1]:
        found = _TOKEN.match(expression, at)
        if found is None:
            rest = expression[at:].lstrip()
            raise ExpressionError(f"cannot read {rest[:20]!r}; an expression has numbers and operators only")
        tokens.append(found["number"] or found["operator"] or "")
        at = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str], max_digits: int) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._max_digits = max_digits
        self._max_bits = math.ceil(max_digits * math.log2(10))

    def parse(self) -> Fraction:
        value = self._expr()
        if self._tokens[self._at]:
            raise ExpressionError(f"cannot read {self._tokens[self._at]!r} after a number")
        return value

    def _next(self, *wanted: str) -> str:
        """Consume and return the next token if it is one of `wanted`; else return ""."""
        token = self._tokens[self._at]
        if token not in wanted:
            return ""
        self._at += 1
        return token

    def _expr(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        value = self._term()
        while operator := self._next("+", "-"):
            value = self._bounded(value + self._term() if operator == "+" else value - self._term())
        self._depth -= 1
        return value

    def _term(self) -> Fraction:
        value = self._unary()
        while operator := self._next("*", "/", "//", "%"):
            right = self._unary()
            if operator == "*":
                value = self._bounded(value * right)
            elif right == 0:
                raise Impossible("division by zero")
            elif operator == "/":
                value = self._bounded(value / right)
            elif operator == "//":
                value = self._bounded(Fraction(value // right))
            else:
                value = self._bounded(value % right)
        return value

    def _unary(self) -> Fraction:
        sign = 1
        while operator := self._next("+", "-"):
            sign = -sign if operator == "-" else sign
        return sign * self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._next("**"):
            return base
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        exponent = self._unary()
        self._depth -= 1
        if exponent.denominator != 1:
            raise Impossible("an exponent must be a whole number")
        if base == 0 and exponent < 0:
            raise Impossible("division by zero")
        if abs(base) in (0, 1):
            return base ** (2 + int(exponent % 2)) if exponent else Fraction(1)
        bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
        if abs(exponent) * max(bits, 1) > self._max_bits:
            raise self._too_long()
        return self._bounded(base ** int(exponent))

    def _atom(self) -> Fraction:
        token = self._tokens[self._at]
        if not token:
            raise ExpressionError("the expression ends too early" if self._at else "the expression is empty")
        self._at += 1
        if token == "(":
            value = self._expr()
            if not self._next(")"):
                raise ExpressionError("a ) is missing")
            return value
        if token in _OPERATORS:
            raise ExpressionError(f"a number is missing before {token!r}")
        return self._bounded(Fraction(token if token[-1] != "." else token[:-1]))

    def _bounded(self, value: Fraction) -> Fraction:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > self._max_bits:
            raise self._too_long()
        return value

    def _too_long(self) -> Impossible:
        return Impossible(f"a number of more than {self._max_digits} digits")


def _written(value: Fraction, max_digits: int) -> str:
    """The exact decimal if its expansion ends, else rounded to ROUNDED_DIGITS significant digits."""
    if value.denominator == 1:
        text = str(value.numerator)
    else:
        decimals = _decimals(value.denominator)
        if decimals is None:
            rounded = Context(prec=ROUNDED_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
        else:
            rounded = Decimal(value.numerator * 10**decimals // value.denominator).scaleb(-decimals, _WIDE)
        text = format(rounded, "f")
    if sum(c.isdigit() for c in text) > max_digits:
        raise Impossible(f"a number of more than {max_digits} digits")
    return text


_WIDE = Context(prec=20_000)


def _decimals(denominator: int) -> int | None:
    """How many decimals a fraction in lowest terms has; None for endless ones."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None
