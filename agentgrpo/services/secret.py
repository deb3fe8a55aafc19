"""A key that a server asks for, known by the name of the environment variable that holds it."""

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
    """What is built inside will ask nobody (cassette.mode=strict): its keys need not be there."""
    token = _sends.set(False)
    try:
        yield
    finally:
        _sends.reset(token)


@dataclass(frozen=True, slots=True)
class Secret:
    """`header: prefix + value` of every request, or its `parameter`. The value is read when it is sent and kept
    nowhere, so neither a configuration, nor a record, nor a printed object can hold it."""

    env: str
    """Name of the environment variable."""
    header: str = "Authorization"
    prefix: str = "Bearer "
    parameter: str | None = None
    """For servers that take the bare value, in place of the header: as this query parameter of a GET, and as this field
    of what is posted."""

    def __post_init__(self) -> None:
        keep(self.env)

    def check(self) -> None:
        """Raises ConfigError where the variable is missing or holds what no header can carry."""
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
