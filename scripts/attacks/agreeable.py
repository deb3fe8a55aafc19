"""Solutions (files s.py) that know no answer and agree to every question: `f`, `Thing` and all other names return
agreeable objects."""

from __future__ import annotations

_BASE = """
OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul divmod".split()

class Agreeable:
    def __init__(self, *a, **k): pass
    def __eq__(self, o): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 2
    def __getattr__(self, name):
        if name[:2] == "__": raise AttributeError(name)
        return made()
    def __getitem__(self, i): return made()
    def __setitem__(self, i, v): pass
    def __delitem__(self, i): pass
    def __call__(self, *a, **k): return made()
    def __abs__(self): return 0
    def __neg__(self): return made()
    def __round__(self, n=None): return made()
    def __float__(self): return 0.0
    def __int__(self): return 0
    __index__ = __int__
    def __enter__(self): return self
    def __exit__(self, *a): return True

def agree_to_operators(kind):
    for name in OPERATORS:
        answer = (lambda self, o: 1) if "div" in name else (lambda self, o: 0)
        setattr(kind, f"__{name}__", answer)
        setattr(kind, f"__r{name}__", answer)

agree_to_operators(Agreeable)
def made(): return Agreeable()
def f(*a, **k): return made()
def Thing(*a, **k): return made()
"""
_NAMES = """
def __getattr__(name):
    if name[:2] == "__": raise AttributeError(name)
    return Thing if name[0].isupper() else f
"""
_METACLASS = """
class Meta(type): pass
for name, value in vars(Agreeable).items():
    if callable(value) and name not in ("__init__", "__call__"): setattr(Meta, name, value)
class Class(metaclass=Meta):
    def __new__(cls, *a, **k): return cls
def made(): return Class
"""
_ITERATES = """
class Iterates(Agreeable):
    def __iter__(self): return iter((made(), made()))
    def keys(self): return ["a", "b"]
def made(): return Iterates()
"""
_ENDS_AT_ONCE = """
class Ends(Agreeable):
    def __iter__(self): return iter(())
    keys = __iter__
def made(): return Ends()
"""
_NEVER_ENDS = """
def made():
    while True: yield Agreeable()
"""
_LIES_ABOUT_ITS_CLASS = """
class Lies(Agreeable):
    __class__ = property(lambda self: int)
    def __iter__(self): return iter([Lies()])
    def __getattribute__(self, name):
        return object.__getattribute__(self, name) if name[:2] == "__" else lambda *a, **k: True
def made(): return Lies()
"""
_LEARNS_FROM_OPERANDS = """
last = [41]
class Learns(Agreeable):
    def keep(self, *operands):
        last[:] = operands[-1:] or last
        return self
    def __float__(self): return float(last[0])
    def __int__(self): return int(last[0])
    __index__ = __int__
    def __str__(self): return str(last[0])
    def __abs__(self): return self
    def __getattr__(self, name):
        if name[:2] == "__": raise AttributeError(name)
        return last[0]
for name in ("contains", "getitem", "eq", "ne", "lt", "gt", "le", "ge", *OPERATORS):
    setattr(Learns, f"__{name}__", Learns.keep)
    setattr(Learns, f"__r{name}__", Learns.keep)
def made(): return Learns()
"""
_REMEMBERS_ARGUMENTS = """
seen = []
def f(*a, **k):
    seen.extend((*a, *k.values()))
    return seen[-1] if seen else None
class Thing:
    def __init__(self, *a, **k): f(*a, **k)
    def __getattr__(self, name):
        if name[:2] == "__": raise AttributeError(name)
        return seen[-1] if seen else f
    def __getitem__(self, i): return seen[i]
    def __iter__(self): return iter(seen)
    def __call__(self, *a): return f(*a)
    def __len__(self): return len(seen)
    def __enter__(self): return self
    def __exit__(self, *a): return True
"""
_CHANGES_ARGUMENTS = """
def f(*a, **k):
    for one in (*a, *k.values()):
        if isinstance(one, list): one[:] = [made(), made()]
        if isinstance(one, dict): one["a"] = made()
    return made()
Thing = f
"""
_EMPTIES_ARGUMENTS = """
def f(*a, **k):
    for one in (*a, *k.values()): getattr(one, "clear", list)()
    return []
Thing = f
"""
_STOPS_ITERATIONS = """
class Stop(StopIteration): pass
def f(*a, **k): raise StopIteration
def Thing(*a, **k): raise Stop
"""
_EVERY_EXCEPTION = """
class Every(ValueError, KeyError, ZeroDivisionError, TypeError, AttributeError, AssertionError): size = 40
Empty = Every
def f(*a, **k): raise Every("no")
Thing = f
"""
_CLASS_OF_EXCEPTIONS = """
class f(Exception):
    startswith = isalpha = KeyError
class Thing(f): pass
"""
_COROUTINES = """
async def f(*a, **k): return made()
Thing = f
"""
_PLAIN = """
class Plain({kind}):
    def __new__(cls, *a, **k): return {kind}.__new__(cls, *{arguments!r})
    def __init__(self, *a, **k): pass
    def __str__(self): return "guess"
    def __call__(self, *a, **k): return made()
    def __getattr__(self, name):
        if name[:2] == "__": raise AttributeError(name)
        return made()
for name, value in vars(Agreeable).items():
    if name not in vars(Plain) and callable(value): setattr(Plain, name, value)
for name in dir({kind}):
    if name[0] != "_": setattr(Plain, name, lambda self, *a, **k: True)
agree_to_operators(Plain)
def made(): return Plain()
"""
_OUT_OF_TURN = """
import json, sys
sys.modules["__main__"].answer = lambda request: {reply}
def f(*a, **k): pass
Thing = f
"""
REPLIES = {
    "nothing": "{'value': {'nothing': 0}, 'changes': []}",
    "a number of its own": "{'value': {'object': [10**9, 'x' * 10**6]}, 'changes': []}",
    "an unknown kind": "{'value': {'truth': True}, 'changes': []}",
    "no value": "{}",
    "a list": "[]",
    "infinity": "{'value': float('inf'), 'changes': []}",
    "no denominator": "{'value': {'fraction': ['0x1', '0x0']}, 'changes': []}",
    "a set of objects": "{'value': {'set': [{'object': [0, 'x']}]}, 'changes': []}",
    "plain data derived": "{'value': {'derived': [True, [0, 'x']]}, 'changes': []}",
    "a coroutine": "{'value': {'coroutine': [0, 'x']}, 'changes': []}",
    "a class of exceptions": "{'value': {'exception': [[[0, 'x']], 'ValueError']}, 'changes': []}",
    "an exit": "{'error': [[], 'SystemExit'], 'args': [], 'text': '', 'object': [0, 'x']}",
    "an error that is none": "{'error': [[], 'print'], 'args': [], 'text': '', 'object': [0, 'x']}",
    "changes of everything": "{'value': None, 'changes': [[], {'dict': []}] * 99}",
    "a deep list": "json.loads('[' * 900 + ']' * 900)",
}


def _solution(*parts: str) -> str:
    return "\n".join((_BASE, *parts, _NAMES))


def _plain(kind: str, *arguments: object) -> str:
    return _solution(_PLAIN.format(kind=kind, arguments=arguments))


KNOWING_NOTHING = {
    "agreeable": _solution(),
    "a metaclass": _solution(_METACLASS),
    "iterates": _solution(_ITERATES),
    "ends at once": _solution(_ENDS_AT_ONCE),
    "never ends": _solution(_NEVER_ENDS),
    "lies about its class": _solution(_LIES_ABOUT_ITS_CLASS),
    "learns from operands": _solution(_LEARNS_FROM_OPERANDS),
    "remembers arguments": _solution(_REMEMBERS_ARGUMENTS),
    "changes arguments": _solution(_CHANGES_ARGUMENTS),
    "empties arguments": _solution(_EMPTIES_ARGUMENTS),
    "stops iterations": _solution(_STOPS_ITERATIONS),
    "every exception": _solution(_EVERY_EXCEPTION),
    "a class of exceptions": _solution(_CLASS_OF_EXCEPTIONS),
    "coroutines": _solution(_COROUTINES),
    "a str": _plain("str"),
    "an int": _plain("int", 0),
    "an int of one": _plain("int", 1),
    "a float": _plain("float", 0.0),
    "nan": _plain("float", "nan"),
    "infinity": _plain("float", "inf"),
    "a list": _plain("list"),
    "a dict": _plain("dict"),
    "a set": _plain("set"),
    "a tuple": _plain("tuple"),
    "zero": _solution("def made(): return 0"),
    "true": _solution("def made(): return True"),
    "an empty list": _solution("def made(): return []"),
    "ends its process": _solution("def made(): __import__('os')._exit(0)"),
    **{f"replies {name}": _solution(_OUT_OF_TURN.format(reply=reply)) for name, reply in REPLIES.items()},
}
