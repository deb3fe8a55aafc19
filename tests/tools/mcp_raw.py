"""A server that speaks just enough of the protocol to be connected to, and then does what its argument says, or that of
a call. Standard library only: it starts at once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOW = sys.argv[1]
TOOL = {"name": "act", "description": "Acts.", "inputSchema": {"type": "object"}}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def reply(request: dict[str, Any], **body: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + "\n")


def say(request: dict[str, Any], text: object) -> None:
    reply(request, result={"content": [{"type": "text", "text": str(text)}]})


def act(request: dict[str, Any]) -> None:
    match request["params"]["arguments"].get("how", HOW):
        case "prints garbage":
            write("no message\n" * 5000)
        case "prints a line without end":
            for _ in range(64):
                write("x" * 2**20)
        case "sends a huge result":
            reply(request, result={"content": [{"type": "text", "text": "x" * 2**24}]})
        case "answers another question":
            reply({"id": 10**9}, result={"content": []})
        case "answers with the wrong shape":
            reply(request, result={"content": "text"})
        case "answers with no object":
            reply(request, result=["text"])
        case "refuses":
            reply(request, error={"code": -32602, "message": "no such thing"})
        case "has an internal error":
            reply(request, error={"code": -32603, "message": "it broke"})
        case "closes its output":
            os.close(1)
            time.sleep(600)
        case "ends":
            print("the disk is full", file=sys.stderr, flush=True)
            sys.exit(3)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "starts a process":  # that leaves the process group and heeds no signal
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            command = [sys.executable, "-S", "-c", code]
            say(request, subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL).pid)
        case "changes":
            TOOL["inputSchema"] = {"type": "object", "required": ["why"]}
            reply(request, error={"code": -32602, "message": "why is missing"})
        case "changes at the next start":
            Path(sys.argv[2]).touch()
            sys.exit(3)
        case "shows a variable":
            say(request, os.environ.get(request["params"]["arguments"]["name"], "not set"))
        case "hangs" | "hangs and heeds nothing":
            time.sleep(600)
        case "hangs and lists":
            pass
        case "floods the log":
            while True:
                write('{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}\n')
        case "sends other content":
            parts = [
                {"type": "text", "text": "a"},
                {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "b"}},
                {"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}},
                {"type": "resource_link", "uri": "file:///c", "name": "c"},
            ]
            reply(request, result={"content": parts})
        case _:
            say(request, os.getpid())


def main() -> None:
    if HOW == "hangs and heeds nothing":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW == "says nothing":
        time.sleep(600)
    if HOW == "ends at once":
        sys.exit("no licence")
    if len(sys.argv) > 2 and Path(sys.argv[2]).exists():
        TOOL["name"] = "act_otherwise"
    pages = itertools.count(1)
    for line in sys.stdin:
        request = json.loads(line)
        match request["method"]:
            case "initialize":
                if HOW == "is chatty":
                    write("Welcome to the server\n\n")
                capabilities = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                reply(request, result={**capabilities, "serverInfo": {"name": "raw", "version": "1"}})
            case "tools/list":
                tools = [TOOL]
                if HOW == "has no tools":
                    tools = []
                elif HOW == "has strange names":
                    tools = [{**TOOL, "name": "files.read/all at once"}, {**TOOL, "name": "x" * 100}]
                elif HOW == "lists backwards":
                    tools = [{**TOOL, "name": name} for name in ("sing", "play", "act")]
                elif HOW == "has no name for a tool":
                    tools = [TOOL, {**TOOL, "name": ""}]
                elif HOW == "says too much":
                    tools = [{**TOOL, "description": "x" * 20_000}]
                elif HOW == "takes too much":
                    properties = {"a": {"description": "x" * 20_000}}
                    tools = [{**TOOL, "inputSchema": {"type": "object", "properties": properties}}]
                more = {"nextCursor": f"{next(pages)}"} if HOW == "lists without end" else {}
                reply(request, result={"tools": tools, **more})
            case "tools/call":
                act(request)
            case _ if "id" in request:
                reply(request, error={"code": -32601, "message": "unknown method"})
    if HOW == "hangs and heeds nothing":
        time.sleep(600)


if __name__ == "__main__":
    main()
