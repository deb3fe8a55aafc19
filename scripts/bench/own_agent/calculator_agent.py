"""A typical calculator agent, written with OpenAI's SDK."""

import ast
import json
import operator
from fractions import Fraction

from openai import AsyncOpenAI

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR = {"name": "calculator", "description": "Calculates exactly.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": CALCULATOR}]


def calculate(node):
    match node:
        case ast.Expression(body=body):
            return calculate(body)
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](calculate(left), calculate(right))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](calculate(operand))
    raise ValueError("numbers and operators only")


def reply(arguments):
    try:
        value = calculate(ast.parse(json.loads(arguments)["expression"], mode="eval"))
    except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError) as e:
        return f"Error: {e}"
    return str(value.numerator if value.denominator == 1 else float(value))


async def run(task, base_url):
    messages = [{"role": "system", "content": "Solve the problem."}, {"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for turn in range(4):
            asked = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = asked.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return {"answer": message.content or "", "calls": turn}
            for call in message.tool_calls:
                result = reply(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return {"answer": "", "calls": turn}
