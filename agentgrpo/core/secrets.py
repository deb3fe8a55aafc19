"""Secrets: how to recognise a secret in a text, and how to keep known secrets out of everything that others read.

    http://me:PASSWORD@host   ?api_key=KEY   --token KEY   Authorization: Bearer KEY   api_key=KEY   sk-...

A configuration holds no secret: it names environment variables (`config.admission.refuse_secrets`). `masked` removes
the values of such variables, and secrets that were typed against this rule, from every text that leaves this process:
the files of a run, the data of trackers, the screen.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, TextIO
from urllib.parse import quote, quote_plus, unquote

from agentgrpo.core.errors import ConfigError

# --- Recognising a secret.

PASSWORD, KEY = "a password", "a key"
_PASSWORDS = {"password", "passwd", "passphrase", "pwd", "pass", "pw"}
_CLEAR = {
    "token",
    "secret",
    "auth",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "cookie",
    "jwt",
    *_PASSWORDS,
}
_NAMES = {"key", "sig", "signature", *_CLEAR}
"""Last words of the names of options, headers, environment variables and URL parameters that hold a secret. For
settings only _CLEAR and _KEYS count, because questions, answers and documents have keys too."""
_OF_SHELL = ("PWD", "OLDPWD")
"""Variables named like a password, in which a shell keeps directories."""
_KEYS = re.compile(r"(?:api|access|secret|private|auth|signing)_?key|\w*(?:token|password|secret)", re.IGNORECASE)
_COLUMN_NAMES = {"question_key", "answers_key", "id_key"}
"""Settings and flags that name a column of the data, not a secret."""
_MISSPELT = ("api_key", "access_token", "auth_token", "token", "password", "secret", "credentials")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_INTERPOLATION = re.compile(r"\$\{[^{}]*\}")
_DEFAULT = re.compile(r"\$\{\s*oc\.env\s*:[^,{}]*,([^{}]*)\}")
VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*([^\s,{}]+)")
"""Matches an interpolation; its group is the environment variable that a setting takes its value from."""
_URL = re.compile(r"(?:([a-z][a-z0-9+.-]*):|(?<![\w:/]))//([^\s'\"<>`]+)", re.IGNORECASE)
_NO_SCHEME = re.compile(r"(?!mailto:)[^\s/:@]+:([^\s/@]+)@[\w.-]+(?::\d+)?(?:/\S*)?")
"""user:password@host/path."""
_BROKEN = re.compile(r"[^/?#@]*:(?!\d*(?:[/?#]|$))")
"""Matches the start of user:password, not of host:port, where the password may hold / or #."""
_PARAMETER = re.compile(r"[?&;#]([\w.\[\]-]+)=([^&;#\s'\"]+)")
_BEARER = r"(?:(?:Bearer|Basic|Token|Digest)\s+)?"
_PAIR = re.compile(rf"([\w.-]+)[\"']?\s*[=:]\s*[\"']?{_BEARER}([^\s\"'&;,#?}}\]]+)", re.IGNORECASE)
_OPTION = re.compile(rf"(?<!\S)-{{1,2}}([A-Za-z][\w.-]*)\s+[\"']?{_BEARER}([^\s\"'-][^\s\"']*)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<!\S)(?:-u|--user|--login|--userpwd)[ =]*[\"']?[^\s:\"']*:([^\s\"']+)")
_BEARING = re.compile(r"\b(?:Bearer|Basic)\s+([\w.~+/=-]{8,})", re.IGNORECASE)
_ISSUED = re.compile(
    r"(?<![\w-])(?:sk-|sk_|pk_|rk_|hf_|gh[opsu]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|tvly-|nvapi-|gsk_|pplx-|"
    r"r8_|lsv2_|jina_|npm_|pypi-|ya29\.|eyJ)(?=[\w.-]*\d)[\w.-]{16,}"
)
"""Keys, recognised by the prefixes that services give them."""

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Hash of a commit or a file."""


def says_secret(name: str, *, is_setting: bool = False) -> str | None:
    """Return the kind of secret that a value of this name is, PASSWORD or KEY; None = no secret. is_setting: the name
    is that of a setting, where question_key names a column."""
    words = [word.lower() for word in _WORD.findall(name)] or [""]
    last, joined = words[-1], "_".join(words)
    if last in _PASSWORDS or last.endswith(("password", "passwd")):
        return PASSWORD
    is_key = last in _CLEAR or _KEYS.fullmatch("_".join(words[-2:])) is not None
    if "_".join(words[-2:]) in _COLUMN_NAMES:
        return None
    if is_setting:
        return KEY if is_key or get_close_matches(joined, _MISSPELT, n=1, cutoff=0.82) else None
    return KEY if is_key or last in _NAMES or last.endswith("apikey") else None


def looks_issued(text: str, *, is_bare: bool = False) -> bool:
    """Whether `text` looks like a key: it begins like the keys of a service or, if is_bare, letters and digits
    alternate in it."""
    if _ISSUED.search(text):
        return True
    pieces = [p for p in re.split(r"[^A-Za-z0-9]+", text) if len(p) >= 16] if is_bare else []
    return any(len([*groupby(p, str.isdigit)]) >= 4 and not _HASH.fullmatch(p) for p in pieces)


def literal(text: str) -> str:
    """Return `text` without its interpolations, but with the default values of oc.env interpolations."""
    return _INTERPOLATION.sub("", _DEFAULT.sub(r"\1", text))


def found_in(text: str, *, is_command: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (PASSWORD or KEY, the secret) for every secret in a text. is_command: the text is a program's command line,
    where options have values."""
    text = literal(text)
    for scheme, rest in _URL.findall(text):
        yield from _in_url(scheme.lower(), rest)
    if match := _NO_SCHEME.fullmatch(text.strip()):
        yield PASSWORD, match[1]
    is_word = not re.search(r"\s", text.strip())
    for pattern in (*((_PARAMETER,) if is_word else ()), *((_PAIR, _OPTION) if is_command else ())):
        for name, value in pattern.findall(text):
            if (kind := says_secret(name)) and _is_value(value):
                yield kind, value
    if is_command:
        yield from ((PASSWORD, value) for value in _LOGIN.findall(text))
        words = (word.rpartition("=")[2] for word in text.split() if "/" not in word)
        yield from ((KEY, word) for word in words if looks_issued(word, is_bare=True))
    yield from ((KEY, value) for value in _BEARING.findall(text) if looks_issued(value, is_bare=True))
    yield from ((KEY, match[0]) for match in _ISSUED.finditer(text))


def _in_url(scheme: str, rest: str) -> Iterator[tuple[str, str]]:
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login = authority.rpartition("@")[0]
    if not login and "@" in rest and _BROKEN.match(rest):
        login = rest.rpartition("@")[0]
    user, colon, password = login.partition(":")
    is_web = scheme in ("http", "https", "ws", "wss")
    if secret := password or (user if is_web and not colon else ""):
        yield PASSWORD, secret
        yield PASSWORD, base64.b64encode(unquote(login).encode()).decode()  # as Basic sends it
    after = rest.removeprefix(login).removeprefix("@")
    for piece in re.split(r"[/?&;#]", after)[1:]:
        name, equals, value = piece.partition("=")
        if looks_issued(value or name, is_bare=True) or (equals and says_secret(name) and _is_value(value)):
            yield KEY, value or name


def _is_value(text: str) -> bool:
    """Whether `text` may be a secret: it is no number of a few digits, no word of YAML and no path."""
    short = text.isdigit() and len(text) < 6
    return not (
        short or text.lower() in ("", "true", "false", "null", "none") or text.startswith(("/", "./", "<", "$"))
    )


def found_under(name: str, value: object, *, is_command: bool = False) -> Iterator[tuple[str, str]]:
    """Like `found_in`, for the value of a setting. name: the last part of the setting's key."""
    if isinstance(value, bool | float) or value is None:
        return
    text = literal(str(value))
    secret, kind = re.sub(rf"^{_BEARER}", "", text.strip(), flags=re.IGNORECASE), says_secret(name, is_setting=True)
    if kind and _is_value(secret) and (kind == PASSWORD or not re.search(r"\s", secret)):
        yield kind, secret
    if _WORD.findall(name)[-1:] in (["key"], ["Key"]) and looks_issued(text, is_bare=True):
        yield KEY, text
    yield from found_in(text, is_command=is_command)


# --- Variables of the environment.


def is_variable(name: str) -> bool:
    """Whether `name` must be a variable's name, not a key itself: the variable is set, or the name is in capitals."""
    return name in os.environ or re.fullmatch(r"[A-Z]+\d{0,2}(?:_+[A-Z]*\d{0,2})*", name) is not None


HARMLESS = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""Variables that every program gets."""


def handed(names: Sequence[str]) -> dict[str, str]:
    """Return the environment of a program: the variables of HARMLESS and `names` that are set."""
    return {name: os.environ[name] for name in (*HARMLESS, *names) if name in os.environ}


def refuse_unset(names: Sequence[str]) -> None:
    """Raise ConfigError if a variable to be handed to a program is not set."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(f"env: the environment variable {name} is not set; set it, or leave it out")


_named: set[str] = set()
_typed: set[str] = set()


def keep(*names: str) -> None:
    """Treat the values of these environment variables as secrets from now on, whatever the variables are called."""
    _named.update(names)


def keep_typed(words: Sequence[str]) -> None:
    """Treat the secrets in the words of a command line as secrets everywhere from now on."""
    for word in words:
        key, _, value = word.partition("=")
        last = key.rpartition(".")[2]
        _typed.update(secret for _, secret in found_under(last, value.strip("'\"")))
        _typed.update(secret for _, secret in found_in(word.removeprefix(f"{key}="), is_command="://" not in word))
        if last.endswith("_env") and _is_value(value) and not is_variable(value):
            _typed.add(value)
        if "://" in word:
            keep(*VARIABLE.findall(word))
    _typed.update(secret for _, secret in found_in(" ".join(words), is_command=True))


@lru_cache(maxsize=1024)
def _in_variable(name: str, value: str) -> tuple[str, ...]:
    """Return the secrets of a variable that no configuration names: its whole value, by its name, or parts of it."""
    is_word = value.isalpha() and len({value, value.lower(), value.upper()}) < 3
    is_whole = says_secret(name) and name not in _OF_SHELL and len(value) >= 8 and not is_word
    whole = (value,) if is_whole else ()
    return (*whole, *(secret for _, secret in found_in(value) if len(secret) >= 8))


def _is_telling(value: str) -> bool:
    """Whether a secret is long enough to be masked: a shorter one would be found everywhere."""
    return len(value) >= 8 or (len(value) >= 5 and not value.isalpha() and not value.isdigit())


# --- Masking.


def masked(text: str, *names: str) -> str:
    """Replace the values of secret variables in `text` by $NAME, and typed secrets by ***, also in the spellings of
    URLs, JSON and logins. names: further variables whose values are secrets in this text."""
    for spelling, shown in _spellings(names):
        text = text.replace(spelling, shown)
    return text


def masked_bytes(data: bytes) -> bytes:
    """Like `masked`, for the content of a file."""
    for spelling, shown in _spellings(()):
        data = data.replace(spelling.encode("utf-8", "surrogatepass"), shown.encode())
    return data


def _spellings(names: Iterable[str]) -> list[tuple[str, str]]:
    secrets = {value: f"${name}" for name, text in os.environ.items() for value in _in_variable(name, text)}
    for name in (*_named, *names):
        if _is_telling(value := os.environ.get(name, "")):
            secrets |= dict.fromkeys((value, *(s for _, s in found_in(value) if _is_telling(s))), f"${name}")
    secrets |= {value: "***" for value in _typed if len(value) > 2}
    spelt = {spelling: shown for value, shown in secrets.items() for spelling in _spelt(value)}
    return sorted(spelt.items(), key=lambda item: -len(item[0]))


@lru_cache(maxsize=1024)
def _spelt(value: str) -> frozenset[str]:
    plain = {value, unquote(value)}
    coded = {code(v) for v in plain for code in (quote, partial(quote, safe=""), quote_plus, _in_json)}
    return frozenset(filter(None, {*plain, *coded, *map(_in_json, coded)}))  # a call's arguments are JSON in JSON


def _in_json(value: str) -> str:
    return json.dumps(value)[1:-1]


def discreet(text: str) -> str:
    """Like `masked`, and replace everything that looks like a secret by ***. For text by others, about files that are
    not checked yet."""
    text = masked(text)
    for _, secret in found_in(text):
        text = text.replace(secret, "***") if len(secret) > 2 else text
    return text


class _Masking:
    """A text stream that masks everything it passes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(masked(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded(words: Sequence[str] = ()) -> Iterator[None]:
    """Run a command line of these words. Its secrets, and those of the configuration, stay secrets until the block
    ends. Everything printed inside the block is masked."""
    is_inner = isinstance(sys.stdout, _Masking)
    screen, named, typed = (sys.stdout, sys.stderr), {*_named}, {*_typed}
    keep_typed(words)
    try:
        if not is_inner:
            sys.stdout, sys.stderr = map(_Masking, screen)
        yield
    finally:
        sys.stdout, sys.stderr = screen
        for kept, before in ((_named, named), (_typed, typed)):
            kept.intersection_update(kept if is_inner else before)
