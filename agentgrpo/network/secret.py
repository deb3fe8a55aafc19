"""A key that a server asks for, known by the name of the environment variable that holds it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from agentgrpo.errors import ConfigError

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Secret:
    """`header: prefix + value` of every request. The value is read when it is sent and kept nowhere, so neither a
    configuration, nor a record, nor a printed object can hold it."""

    env: str
    """Name of the environment variable."""
    header: str = "Authorization"
    prefix: str = "Bearer "

    def check(self) -> None:
        """Raises ConfigError where the variable is missing or holds what no header can carry."""
        value = os.environ.get(self.env, "")
        if not _VISIBLE.fullmatch(value):
            problem = "is not set" if not value else "holds spaces, line breaks or other signs that no header can carry"
            raise ConfigError(f"the environment variable {self.env} {problem}; set it to the server's key")

    def headers(self) -> dict[str, str]:
        return {self.header: self.prefix + os.environ.get(self.env, "")}

    def hidden_in(self, text: str) -> str:
        """`text` with the variable's name in place of its value: servers like to quote the key that they refuse."""
        value = os.environ.get(self.env, "")
        return text.replace(value, f"${self.env}") if value else text
