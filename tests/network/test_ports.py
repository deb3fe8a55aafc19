"""Ports that are free, that become free, and that do not."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

import pytest

from agentgrpo.errors import ConfigError
from agentgrpo.network.ports import listening_socket


def test_any_free_port_and_then_that_one_again() -> None:
    with listening_socket() as first:
        host, port = first.getsockname()
        with socket.create_connection((host, port), timeout=2), first.accept()[0]:
            pass
    with listening_socket(port=port) as second:
        assert second.getsockname() == ("127.0.0.1", port)


def test_a_port_that_becomes_free_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    holder = listening_socket()
    port = holder.getsockname()[1]
    release = threading.Timer(0.15, holder.close)
    release.start()
    with listening_socket(port=port, attempts=50, pause_s=0.05) as free:
        assert free.getsockname()[1] == port
    release.join()
    assert f"port {port} of 127.0.0.1 is in use by process {os.getpid()} (" in caplog.text
    assert caplog.text.count("is in use") < 50


def test_a_port_that_does_not_is_named_with_its_holder() -> None:
    with listening_socket() as holder:
        port = holder.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(
            ConfigError, match=rf"port {port} of 127.0.0.1 is in use by process {os.getpid()} \(.*0 = any"
        ):
            listening_socket(port=port, attempts=3, pause_s=0.1)
        assert 0.2 <= time.monotonic() - start < 5


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .*choose another address"):
        listening_socket("192.0.2.1")
