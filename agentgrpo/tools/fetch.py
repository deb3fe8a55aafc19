"""The tool that reads a page of the open web. The module agentgrpo.services decides which addresses it may reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome
from agentgrpo.services.addresses import Forbidden, Reachable
from agentgrpo.services.page_parts import open_part
from agentgrpo.services.pages import PageClient, PageError, read
from agentgrpo.tools.base import ToolResult, Workspace


class Fetch:
    """`fetch {"url": ..., "part": 2, "find": "words"}`: returns at most max_chars characters of the page's text: the
    first part, the part of that number, or the first part from there on that contains these words.

    URLs written by the model reach public addresses only, on `ports`. allow_hosts: names whose addresses may be
    private. allow_networks: private networks that may be reached. A page that cannot be fetched is an ordinary result,
    because the policy chose the page; only a machine without a network raises ToolError."""

    spec = ToolSpec(
        name="fetch",
        description="Fetches a web page and returns its text, of a long page one part.",
        parameters={
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "An http:// or https:// URL."},
                "part": {"type": "integer", "minimum": 1, "description": "Which part of a long page; 1 if left out."},
                "find": {"type": "string", "description": "Shows the part where these words are."},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
    )

    def __init__(
        self,
        *,
        allow_hosts: tuple[str, ...] = (),
        allow_networks: tuple[str, ...] = (),
        ports: tuple[int, ...] = (80, 443),
        timeout_s: float = 20.0,
        max_bytes: int = 2 * 2**20,
        max_chars: int = 20_000,
        max_redirects: int = 5,
        max_concurrent: int = 8,
        user_agent: str = "agentgrpo",
        pages: PageClient | None = None,
    ) -> None:
        if max_chars < 1:
            raise ConfigError(f"max_chars={max_chars}; at least 1 is allowed")
        self.at_once = max_concurrent
        self.identity = f"fetch of {max_chars} characters"
        self._max_chars = max_chars
        self._pages = pages or PageClient(
            reachable=Reachable(hosts=allow_hosts, networks=allow_networks),
            ports=ports,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            max_redirects=max_redirects,
            max_concurrent=max_concurrent,
            user_agent=user_agent,
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        try:
            page = await self._pages.get(arguments["url"])
            text = await read(page)
        except Forbidden as e:
            return ToolResult.refused(str(e))
        except PageError as e:
            if e.kind == "dead_network":
                raise ToolError(f"fetch: {e}", kind=e.kind) from e
            if e.kind == "timeout":
                return ToolResult(outcome=Outcome.TIMEOUT, text=f"error: {e}")
            return replace(ToolResult.failed(str(e)), detail=e.kind)
        wanted, words = arguments.get("part", 1), arguments.get("find", "")
        part = open_part(text, max_chars=self._max_chars, part=wanted, find=words)
        if part is None:
            return ToolResult.failed("the page does not have that part or those words")
        lines = [part.text, f"[{part.note}]"] if part.note else [part.text]
        return ToolResult(outcome=Outcome.SUCCESS, text="\n".join(lines), detail=page.url)

    async def close(self) -> None:
        await self._pages.close()
