"""The tools of an MCP server as ordinary tools: `tools.mcp.command="python my_server.py"`, or a URL."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.core.concurrency import uncounted
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.secrets import masked, refuse_unset
from agentgrpo.services.client import host_of
from agentgrpo.services.client import shown as shown_url
from agentgrpo.services.secret import Secret
from agentgrpo.tools.base import ToolResult, Workspace
from agentgrpo.tools.workspace import Workspaces

if TYPE_CHECKING:
    from agentgrpo.tools.mcp.connections import Connection
    from agentgrpo.tools.mcp.server import Lease, SharedServer

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
_MAX_SPEC = 20_000
"""Maximum characters of one tool's description and parameters, which are part of every prompt."""


class Mcp:
    """Every attempt at an episode gets its own session with the server. With a command, each session is a separate
    process, so attempts cannot see each other's state; with a url, it is a session of the protocol, and the isolation
    is the server's. Sessions are started ahead, closed when the attempt is over, and never reused. shared: one session
    for all attempts, for a server whose calls leave no state that other calls could see.

    A result marked as an error -> runtime_error; arguments that the server refuses -> invalid_args. A server that
    hangs, crashes or sends invalid messages raises ToolError. The attempt then fails, because the server's state for it
    is lost; a shared server is restarted."""

    def __init__(
        self,
        *,
        command: str | tuple[str, ...] | None = None,
        url: str | None = None,
        env: tuple[str, ...] = (),
        api_key_env: str | None = None,
        allow: tuple[str, ...] | None = None,
        deny: tuple[str, ...] = (),
        prefix: str = "",
        shared: bool = False,
        max_sessions: int = 16,
        timeout_s: float = 20.0,
        start_timeout_s: float = 30.0,
        max_restarts: int = 5,
        max_message_bytes: int = 4 * 2**20,
    ) -> None:
        """Give either command, the program to start (a text is split as a shell does), or url, the address of a running
        server. In the command, {session} stands for a directory that belongs to one session and is removed with it.

        env: names of environment variables that the program gets. api_key_env: name of the variable that holds the
        url's key. allow, deny: names of tools, as the server calls them; None = all. prefix: put before each name that
        the policy sees. max_sessions: concurrent sessions that are not shared; further episodes wait. max_restarts:
        restarts in a row of a failing server. Raises ConfigError, also if the server cannot be reached."""
        if importlib.util.find_spec("mcp") is None:
            raise ConfigError("tools of an MCP server need the package mcp; install it: pip install 'agentgrpo[mcp]'")
        if not (timeout_s > 0 and start_timeout_s > 0 and max_restarts >= 0 and max_message_bytes > 0):
            raise ConfigError(
                f"timeout_s={timeout_s}, start_timeout_s={start_timeout_s}, max_restarts={max_restarts}, "
                f"max_message_bytes={max_message_bytes}; allowed are more than 0 s, 0 restarts or more, 1 byte or more"
            )
        if max_sessions < 1:
            raise ConfigError(f"max_sessions={max_sessions}; 1 or more are allowed")
        from agentgrpo.tools.mcp.server import McpServer, Patience, PooledServer, SharedServer

        self._handed = (*env, *([] if api_key_env is None else [api_key_env]))
        self._folders = Workspaces()
        connect, shown = _way(command, url, env, api_key_env, max_message_bytes, self._folders)
        patience = Patience(timeout_s=timeout_s, start_timeout_s=start_timeout_s, max_restarts=max_restarts)
        self._shared = SharedServer(connect, shown=shown, patience=patience) if shared else None
        # Over HTTP, only the handshake of protocol versions up to 2025-11 creates sessions; later versions have none.
        mode = "legacy" if url else "auto"
        self._pooled = (
            PooledServer(connect, shown=shown, patience=patience, mode=mode, max_sessions=max_sessions)
            if self._shared is None
            else None
        )
        server = self._shared or self._pooled
        assert server is not None
        self._server: McpServer = server
        # Stops the server even if `close` is never called, after a configuration error elsewhere or a crash.
        weakref.finalize(self, self._server.stop)
        try:
            listed = {tool.name: tool for tool in self._server.start()}
        except ConfigError as e:
            hint = "; where it makes no sessions, let all episodes share one: shared=true"
            raise ConfigError(f"{e}{hint if url and not shared else ''}") from e
        try:
            names = _chosen(sorted(listed), allow, deny, shown)
            self.tools: Sequence[McpTool] = [
                McpTool(self, name, _spec(shown, prefix, name, listed[name].description, listed[name].input_schema))
                for name in names
            ]
        except ConfigError:
            self._server.stop()
            raise

    async def prepare(self, workspace: Workspace) -> None:
        """Wait until the attempt has its session; the wait does not count as the episode's time. Raises ToolError."""
        with uncounted():
            await self._session(workspace)

    async def _session(self, workspace: Workspace) -> SharedServer | Lease:
        """The session or shared server that serves the attempt."""
        server = self._pooled
        if server is None:
            assert self._shared is not None
            return self._shared
        can_wait = not workspace.keeps_any
        return await workspace.resource(self, lambda: server.leased(can_wait=can_wait))

    async def ask(self, name: str, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        """Call the tool that the server calls `name`. Secrets of the server are masked in the result. Raises
        ToolError."""
        try:
            json.dumps(arguments, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:  # it cannot be sent, so the server would never see the call
            return ToolResult.refused("a text is not valid Unicode: it has half a surrogate pair")
        result = await (await self._session(workspace)).call(name, dict(arguments))
        return replace(result, text=masked(result.text, *self._handed))

    async def close(self) -> None:
        await self._server.close()
        await self._folders.close()


class McpTool:
    """One tool of a server; the server calls it `name`."""

    def __init__(self, server: Mcp, name: str, spec: ToolSpec) -> None:
        self.spec = spec
        self._server = server
        self._name = name

    async def prepare(self, workspace: Workspace) -> None:
        await self._server.prepare(workspace)

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        return await self._server.ask(self._name, arguments, workspace)

    async def close(self) -> None:
        """The toolset closes the server."""


def _way(
    command: str | Sequence[str] | None,
    url: str | None,
    env: Sequence[str],
    api_key_env: str | None,
    max_message_bytes: int,
    folders: Workspaces,
) -> tuple[Callable[[], Connection], str]:
    """Return how to connect to the server, and its name in messages: without arguments, which may hold keys."""
    from agentgrpo.tools.mcp.connections import Endpoint, ServerProgram

    words = shlex.split(command) if isinstance(command, str) else list(command or ())
    if bool(words) == bool(url):
        raise ConfigError(
            f"tools of an MCP server: command={command!r}, url={url!r}; give one of them: "
            "tools.mcp.command='python my_server.py' or tools.mcp.url=http://localhost:8000/mcp"
        )
    if url:
        if env:
            raise ConfigError(f"env={list(env)} is for a command; the key of a url is api_key_env")
        host_of(url)
        key = None if api_key_env is None else Secret(api_key_env)
        if key is not None:
            key.check()
        return lambda: Endpoint(url, key, max_message_bytes=max_message_bytes), f"MCP server {shown_url(url)}"
    if api_key_env is not None:
        raise ConfigError(f"api_key_env={api_key_env} is for a url; a command gets the variables named in env")
    refuse_unset(env)
    program = [_found(words[0]), *words[1:]]
    return lambda: ServerProgram(
        program, env, max_message_bytes=max_message_bytes, new_folder=folders.new_directory
    ), f"MCP server {Path(words[0]).name}"


def _found(name: str) -> str:
    """Return the path of a program: if PATH lacks it, look beside this interpreter, where pip installs programs."""
    beside = Path(sys.executable).parent / name
    return str(beside) if shutil.which(name) is None and shutil.which(beside) is not None else name


def _chosen(listed: Sequence[str], allow: Collection[str] | None, deny: Collection[str], shown: str) -> list[str]:
    for name in (*(allow or ()), *deny):
        if name not in listed:
            known = ", ".join(listed) or "none"
            raise ConfigError(f"{shown} has no tool {name}; it has {known}.{did_you_mean(name, listed)}")
    chosen = [name for name in listed if (allow is None or name in allow) and name not in deny]
    if not chosen:
        raise ConfigError(f"{shown} brings no tools; it has {', '.join(listed) or 'none'}, allow={allow}, deny={deny}")
    return chosen


def _spec(shown: str, prefix: str, name: str, description: str | None, schema: Mapping[str, Any]) -> ToolSpec:
    known_as = _NO_NAME.sub("_", prefix + name)[:_MAX_NAME]
    spec = ToolSpec(name=known_as, description=" ".join((description or "").split()), parameters=dict(schema))
    if not name:
        raise ConfigError(f"{shown} lists a tool without a name; every tool needs one: correct the server")
    length = len(spec.description) + len(json.dumps(spec.parameters))
    if length > _MAX_SPEC:
        raise ConfigError(
            f"{shown} describes its tool {known_as} in {length} characters; {_MAX_SPEC} are allowed, as they stand in "
            "every prompt: shorten it at the server, or leave the tool out (deny)"
        )
    return spec
