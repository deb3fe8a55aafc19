# The process in which code of the policy's runs for one test: it imports, calls and looks up what the test asks for. It
# answers with plain data, or with the number of an object that stays here. Nothing that it says is code, so whatever it
# answers, it answers to a question whose purpose it does not know. suite.py has the other end of this protocol.
import importlib
import json
import os
import random
import sys
from decimal import Decimal
from fractions import Fraction

MAX_REPLY = 1 << 24
OBJECTS = []
NUMBERS = {}


def number_of(value):
    if id(value) not in NUMBERS:
        NUMBERS[id(value)] = len(OBJECTS)
        OBJECTS.append(value)  # which keeps it, and so its id
    return NUMBERS[id(value)]


def write(value):
    if value is None or value is True or value is False:
        return value
    if value is NotImplemented:
        return {"nothing": 0}
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
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
    for name, kind in (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {name: [write(one) for one in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[write(k), write(v)] for k, v in dict.items(value)]}
    return {"object": number_of(value)}


def read(given):
    if not isinstance(given, dict):
        return given
    ((kind, value),) = given.items()
    if kind == "object":
        return OBJECTS[value]
    if kind == "dict":
        return {read(k): read(v) for k, v in value}
    if kind in ("list", "tuple", "set", "frozenset"):
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(read, value))
    if kind == "complex":
        return complex(*value)
    if kind == "fraction":
        return Fraction(int(value[0], 16), int(value[1], 16))
    return {"int": lambda n: int(n, 16), "bytes": bytes.fromhex, "decimal": Decimal}[kind](value)


def public_names(of):
    return list(getattr(of, "__all__", None) or [name for name in vars(of) if name[0] != "_"])


def do(request):
    what, args = request["do"], [read(one) for one in request["args"]]
    named = {key: read(one) for key, one in request["named"].items()}
    if what == "import":
        value = importlib.import_module(*args)
        return {"value": {"object": number_of(value)}}
    if what == "names":
        value = public_names(*args)
    elif what == "get":
        value = getattr(*args)
    elif what == "set":
        value = setattr(*args)
    elif what == "is_instance":
        value = isinstance(*args)
    elif what == "call":
        value = args[0](*args[1:], **named)
    else:
        method = getattr(type(args[0]), what, None)
        if method is None:
            raise TypeError(type(args[0]).__name__ + " has no " + what)
        value = method(*args)
    # What a call has changed of its arguments, the test sees too.
    return {"value": write(value), "args": [write(one) for one in args]}


def error_of(e):
    kinds = [kind.__name__ for kind in type(e).__mro__ if kind.__module__ == "builtins"]
    try:
        text = str(e)
    except BaseException:
        text = ""
    return {"error": kinds[0], "text": (type(e).__name__ + ": " + text)[:300]}


def main(reading, writing):
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    random.seed(0)
    requests, replies = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
    while True:
        size = int.from_bytes(requests.read(4), "big")
        if not size:
            return
        try:
            reply = json.dumps(do(json.loads(requests.read(size))))
            if len(reply) > MAX_REPLY:
                raise ValueError("the result is too large")
        except BaseException as e:
            reply = json.dumps(error_of(e))
        replies.write(len(reply).to_bytes(4, "big") + reply.encode("ascii"))
        replies.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
