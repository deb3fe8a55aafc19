"""A server's key, given by the name of the environment variable that holds it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.secrets import is_variable, keep

_VISIBLE = re.compile(r"[!-~]+")

_sends: ContextVar[bool] = ContextVar("sends", default=True)


@contextmanager
def nothing_is_sent() -> Iterator[None]:
    """Allow missing keys for parts that are built inside the block: they will send nothing (cassette.mode=strict)."""
    token = _sends.set(False)
    try:
        yield
    finally:
        _sends.reset(token)


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that every request has as `header: prefix + value`, or as `parameter`. The value is read on sending and
    kept nowhere, so no configuration, record or printed object can hold it."""

    env: str
    """Name of the environment variable."""
    header: str = "Authorization"
    prefix: str = "Bearer "
    parameter: str | None = None
    """For servers that take the bare value instead of the header: name of the query parameter of a GET and of the field
    of a POST."""

    def __post_init__(self) -> None:
        keep(self.env)

    def check(self) -> None:
        """Raise ConfigError if the variable is not set, or if its value cannot be sent in a header."""
        if not _sends.get():
            return
        value = os.environ.get(self.env, "")
        if not _VISIBLE.fullmatch(value):
            problem = "is not set" if not value else "holds spaces, line breaks or other signs that no header can carry"
            name = self.env if is_variable(self.env) else "that api_key_env should name (it may be the key itself)"
            raise ConfigError(f"the environment variable {name} {problem}; set it to the server's key")

    def headers(self) -> dict[str, str]:
        return {} if self.parameter else {self.header: self.prefix + os.environ.get(self.env, "")}

    def parameters(self) -> dict[str, str]:
        return {self.parameter: os.environ.get(self.env, "")} if self.parameter else {}
