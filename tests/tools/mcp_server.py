"""A small MCP server made with the SDK: python mcp_server.py [--http PORT]."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("small")
num_cancelled = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two
    whole numbers."""
    return a + b


@server.tool()
def shout(text: str, times: int = 1) -> str:
    """Says it louder."""
    return " ".join([text.upper()] * times)


@server.tool()
def fail(why: str) -> str:
    """Raises an exception."""
    raise ValueError(why)


@server.tool()
async def wait(seconds: float) -> str:
    """Takes its time; others are served meanwhile."""
    global num_cancelled
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        num_cancelled += 1
        raise
    return "done"


@server.tool()
async def cancelled() -> int:
    """How many calls of wait were cancelled."""
    return num_cancelled


async def serve(port: int) -> None:
    app = server.streamable_http_app()
    http = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", port)) as listening:
        print("listening", flush=True)
        await http.serve(sockets=[listening])


if __name__ == "__main__":
    if "--http" in sys.argv:
        import uvicorn

        @server.tool()
        def header(name: str, context: Context[Any]) -> str:
            """A header of the request."""
            return str(context.request_context.request.headers.get(name))

        asyncio.run(serve(int(sys.argv[-1])))
    else:
        server.run()
