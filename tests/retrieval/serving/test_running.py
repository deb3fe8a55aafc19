"""Where a server listens, and what it says where it cannot."""

from __future__ import annotations

import socket

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.retrieval.server.running import listening, url_of


def refusal(host: str, port: int) -> str:
    with pytest.raises(ConfigError) as e:
        listening(host, port)
    return str(e.value)


def test_a_port_that_is_taken() -> None:
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert refusal("127.0.0.1", port) == (
            f"--host 127.0.0.1 --port {port}: something listens there already; stop it, or take another: "
            f"--port {port + 1} (0 = any)"
        )
    listening("127.0.0.1", port).close()  # free again at once


def test_addresses_that_are_none() -> None:
    assert refusal("127.0.0.1", 70000) == "--port 70000; allowed are 0 (any free port) to 65535"
    assert refusal("192.0.2.1", 0).startswith("--host 192.0.2.1 --port 0: that is no address of this machine; 0.0.0.0")
    assert refusal("no such host", 0).startswith("--host no such host: ")
    assert refusal("a" * 64 + ".b", 0).startswith("--host aaaa")


def test_what_a_client_is_told() -> None:
    with listening("127.0.0.1", 0) as bound, listening("0.0.0.0", 0) as everywhere:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert url_of(everywhere) == f"http://{socket.gethostname()}:{everywhere.getsockname()[1]}"
