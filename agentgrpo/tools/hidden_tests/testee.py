# The process in which the policy's code runs for one test: it imports, calls and looks up whatever the test asks for.
# It answers with plain data, or with the number of an object that stays here. Its answers are never executed, and it
# does not know what a question is for. The other end of this protocol is in suite.py.
import builtins
import importlib
import json
import os
import random
import sys
import types
from decimal import Decimal
from fractions import Fraction

MAX_REPLY = 1 << 24
MAX_TEXT = 10_000
MAX_ITEMS = 100_000
SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
AS_IT_IS = ("builtins", "collections", "decimal", "fractions")
"""Modules whose classes are plain data; objects of other classes stay here, because they have attributes of their own.
"""
OBJECTS = []
NUMBERS = {}
LOOP = []


class Opaque(Exception):
    """An object where only plain data is allowed."""


def number_of(value):
    if id(value) not in NUMBERS:
        NUMBERS[id(value)] = len(OBJECTS)
        OBJECTS.append(value)  # keeps the object, and so its id
    return [NUMBERS[id(value)], type(value).__name__[:60]]


def write(value):
    """Encode plain data, with its object if its class is the solution's; encode other values as an object's number."""
    if value is NotImplemented:
        return {"nothing": 0}
    if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ != "builtins":
        return {"exception": line_of(value)}
    if isinstance(value, types.CoroutineType):
        return {"coroutine": number_of(value)}
    try:
        plain = write_plain(value)
    except Opaque:
        return {"object": number_of(value)}
    if value is None or type(value).__module__ in AS_IT_IS:
        return plain
    is_fixed = not isinstance(value, (list, dict, set, bytearray, Fraction, Decimal))
    return {"derived": [plain, number_of(value)]} if is_fixed else {"object": number_of(value)}


def write_plain(value):
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Fraction):
        return {"fraction": [hex(value.numerator), hex(value.denominator)]}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            # Only an object itself can compute its hash, so a set that contains objects stays here.
            each = write_plain if name in ("set", "frozenset") else write
            return {name: [each(one) for one in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[write_plain(k), write(v)] for k, v in dict.items(value)]}
    raise Opaque


def read(given):
    if not isinstance(given, dict):
        return given
    ((kind, value),) = given.items()
    if kind == "object":
        return OBJECTS[value]
    if kind == "dict":
        return {read(k): read(v) for k, v in value}
    if kind in SEQUENCES:
        return SEQUENCES[kind](map(read, value))
    if kind == "complex":
        return complex(*value)
    if kind == "fraction":
        return Fraction(int(value[0], 16), int(value[1], 16))
    return {"int": lambda n: int(n, 16), "bytes": bytes.fromhex, "decimal": Decimal}[kind](value)


def items_of(value):
    """Return a dict or a list of the items that iterating over the object yields."""
    if hasattr(type(value), "keys"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118
    items = []
    for item in value:
        items.append(item)
        if len(items) > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items")
    return items


def left(value, error):
    """Return the result of leaving a `with` block; the error is passed by its name only."""
    kind = getattr(builtins, error) if error else None
    return bool(type(value).__exit__(value, kind, kind and kind(), None))


def awaited(coroutine):
    import asyncio  # its import takes long, and few tests need it

    if not LOOP:
        LOOP.append(asyncio.new_event_loop())
    return LOOP[0].run_until_complete(coroutine)


WHAT = {
    "names": lambda module: list(getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]),
    "get": getattr,
    "set": setattr,
    "is_instance": isinstance,
    "items": items_of,
    "exit": left,
    "await": awaited,
}


def do(what, args, named):
    if what == "import":
        return {"object": number_of(importlib.import_module(*args))}
    if what == "iter":
        return {"object": number_of(iter(*args))}
    if what == "plain":
        try:
            return write_plain(*args)
        except Opaque:
            return {"object": number_of(*args)}
    if what == "call":
        return write(args[0](*args[1:], **named))
    if what in WHAT:
        return write(WHAT[what](*args))
    method = getattr(type(args[0]), what, None)
    if method is None:
        raise TypeError(type(args[0]).__name__ + " has no " + what)
    return write(method(*args))


def answer(request):
    args, named = [read(one) for one in request["args"]], {k: read(v) for k, v in request["named"].items()}
    value = do(request["do"], args, named)
    # The test also sees changes that a call has made to its arguments.
    changed = (*args[1:], *named.values()) if request["do"] == "call" else ()
    return {"value": value, "changes": [write(one) for one in changed]}


def line_of(kind):
    """Return the solution's own exception classes, the most derived last, and the built-in class from which they
    derive.
    """
    line = []
    for each in kind.__mro__:
        if each.__module__ == "builtins":
            return [line[::-1], each.__name__]
        line.append([*number_of(each)[:1], each.__name__])
    raise Opaque


def error_of(e):
    try:
        text = str(e)[:MAX_TEXT]
    except BaseException:
        text = ""
    try:
        args = [write_plain(one) for one in e.args]
    except BaseException:
        args = [text]
    return {"error": line_of(type(e)), "args": args, "text": text, "object": number_of(e)}


def main(reading, writing):
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    random.seed(0)
    requests, replies = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
    while True:
        size = int.from_bytes(requests.read(4), "big")
        if not size:
            return
        try:
            reply = json.dumps(answer(json.loads(requests.read(size))))
            if len(reply) > MAX_REPLY:
                raise ValueError("the result is too large")
        except BaseException as e:
            reply = json.dumps(error_of(e))
        replies.write(len(reply).to_bytes(4, "big") + reply.encode("ascii"))
        replies.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
