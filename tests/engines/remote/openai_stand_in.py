"""A stand-in for an endpoint that speaks OpenAI's API, on a real socket. What it says is scripted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[str, dict[str, Any]], Any]


class OpenAIStandIn:
    """say(path, body) -> the text of the reply, or (text, finish_reason), or (status, body) as it is.

    `requests`: (path, headers, body) of each, in order."""

    def __init__(self, say: Say, *, usage: bool = True) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stand_in.requests.append((self.path, dict(self.headers), body))
                said = say(self.path, body)
                status, reply = said if isinstance(said, tuple) and isinstance(said[0], int) else (200, None)
                if reply is None:
                    text, reason = said if isinstance(said, tuple) else (said, "stop")
                    is_chat = self.path.endswith("/chat/completions")
                    choice = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
                    reply = {"choices": [{"index": 0, "finish_reason": reason, **choice}]}
                    if usage:
                        reply["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
                found = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> OpenAIStandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
