"""An MCP server over SQLite, made with the SDK: python mcp_sqlite.py FILE (":memory:" for none), or --http PORT.

A program has one database. Over HTTP each session of the protocol has one."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("notes")
databases: dict[str, sqlite3.Connection] = {}


@server.tool()
def execute(sql: str, context: Context[Any]) -> str:
    """Runs a statement; answers with its rows."""
    session, path = "", sys.argv[1]
    if "--http" in sys.argv:
        session, path = (context.headers or {}).get("mcp-session-id", ""), ":memory:"
    if session not in databases:
        databases[session] = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    return repr(databases[session].execute(sql).fetchall())


async def serve(port: int) -> None:
    import uvicorn

    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
    with socket.create_server(("127.0.0.1", port)) as listening:
        print("listening", flush=True)
        await http.serve(sockets=[listening])


if __name__ == "__main__":
    if "--http" in sys.argv:
        asyncio.run(serve(int(sys.argv[-1])))
    else:
        server.run()
