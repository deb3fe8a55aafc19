"""Under which names, from which pages and with which key a server of this package is asked."""

from __future__ import annotations

import base64
import socket
from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.services.gate import Gate, NotLetIn, refusal_of

OPEN = Gate()
GUEST = Gate(guests=frozenset({"train.example"}))


def let_in(gate: Gate, *headers: tuple[str, str], target: str = "/x", address: str = "127.0.0.1") -> bool:
    return gate.refusal(headers, target=target, address=address) is None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "localhost:8000",
            "LOCALHOST:1",
            "localhost.",
            "Localhost.:8000",
            "127.0.0.1",
            "127.0.0.1:65535",
        ),
        *("[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]:8000"),
    ],
)
def test_this_machines_own_names(host: str) -> None:
    assert let_in(OPEN, ("host", host))


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost"),
        *(
            "",
            " ",
            ".",
            "localhost..",
            "localhost:",
            "localhost:x",
            "localhost:-1",
            "localhost:123456",
            "localhost:80:80",
        ),
        *(
            "127.0.0.1@evil.example",
            "evil@localhost",
            "user:pass@localhost:8000",
            "localhost/",
            "localhost#",
            "localhost?",
        ),
        *("localhost\\", "localhost,evil.example", "localhost evil.example", "localhost\r\n evil", "localhost\n"),
        *("[::1%lo]", "[::1%25lo]", "[fe80::1%eth0]", "[::2]", "[::1", "::1", "[localhost]", "[::1]x", "[[::1]]"),
        *("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.2", "0.0.0.0", "[::]", "10.0.0.5"),
        *("xn--lcalhost-8za", "l\u00f6calhost", "ｌocalhost", "localhost\x00", "*", "http://localhost"),
    ],
)
def test_other_names(host: str) -> None:
    refused = OPEN.refusal([("host", host)], target="/", address="127.0.0.1")
    assert refused == NotLetIn(403, f"Host {host!a} is no name of this server; ask it as localhost")


def test_one_host_no_more_and_no_less() -> None:
    assert not let_in(OPEN)
    assert not let_in(OPEN, ("host", "localhost"), ("host", "evil.example"))
    assert not let_in(OPEN, ("host", "localhost"), ("host", "localhost"))
    assert not let_in(OPEN, ("x-forwarded-host", "localhost"), ("forwarded", "host=localhost"))
    assert not let_in(OPEN, ("x-forwarded-host", "localhost"), ("host", "evil.example"))
    assert let_in(OPEN, ("host", "localhost"), ("x-forwarded-host", "evil.example"))


@pytest.mark.parametrize("target", ["http://evil.example/x", "http://localhost/x", "evil.example:443", "*", "", "x"])
def test_a_target_is_a_path(target: str) -> None:
    assert not let_in(OPEN, ("host", "localhost"), target=target)


def test_the_address_that_a_connection_came_to_is_a_name() -> None:
    assert let_in(OPEN, ("host", "10.0.0.5:8000"), address="10.0.0.5")
    assert let_in(OPEN, ("host", "10.0.0.5:8000"), address="::ffff:10.0.0.5")
    assert let_in(OPEN, ("host", "[fd00::1]:8000"), address="fd00:0:0::1%eth0")
    assert not let_in(OPEN, ("host", "10.0.0.6:8000"), address="10.0.0.5")


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [
        ("http://localhost:8000", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("HTTP://LOCALHOST:8000", True),
        ("https://localhost:8000", True),
        ("http://localhost:3000", False),  # another server of this machine
        ("http://localhost", False),
        ("null", False),
        ("", False),
        ("http://evil.example", False),
        ("http://evil.example:8000", False),
        ("http://localhost:8000/", False),
        ("http://localhost:8000@evil.example", False),
        ("http://localhost:8000.evil.example", False),
        ("http://localhost:8000 http://evil.example", False),
        ("file://localhost:8000", False),
        ("chrome-extension://localhost:8000", False),
        ("//localhost:8000", False),
        ("localhost:8000", False),
    ],
)
def test_pages(origin: str, is_let_in: bool) -> None:
    assert let_in(OPEN, ("host", "localhost:8000"), ("origin", origin)) == is_let_in
    assert not let_in(OPEN, ("host", "localhost:8000"), ("origin", origin), ("origin", "http://evil.example"))


def test_a_guest_is_a_name_on_any_port() -> None:
    assert let_in(GUEST, ("host", "train.example"), ("origin", "https://train.example"))
    assert let_in(GUEST, ("host", "127.0.0.1:8000"), ("origin", "https://Train.example"))
    assert not let_in(GUEST, ("host", "other.example"))
    assert not let_in(GUEST, ("host", "a.train.example"))
    assert not let_in(OPEN, ("host", "train.example"))


# --- the key

KEY = "k-1"


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "is_let_in"),
    [
        ([f"Bearer {KEY}"], True),
        ([f"bearer  {KEY} "], True),
        ([basic("any", KEY)], True),
        ([], False),
        ([""], False),
        (["Bearer"], False),
        (["Bearer "], False),
        ([KEY], False),
        (["Bearer k-"], False),
        (["Bearer k-11"], False),
        (["Bearer K-1"], False),
        ([f"Digest {KEY}"], False),
        (["Bearer k-1\u00e9"], False),
        ([basic(KEY, "")], False),
        (["Basic %%%"], False),
        (["Basic \u00e9"], False),
        (["Basic"], False),
    ],
)
def test_a_key(authorization: Sequence[str], is_let_in: bool) -> None:
    headers = [("host", "localhost"), *(("authorization", value) for value in authorization)]
    assert let_in(Gate(key=KEY), *headers) == is_let_in
    assert let_in(OPEN, *headers)
    assert not let_in(Gate(key=KEY), ("host", "evil.example"), *headers[1:])


def test_a_query_holds_the_key_of_a_websocket_alone() -> None:
    def refused(kind: str, query: bytes) -> NotLetIn | None:
        headers = [(b"host", b"localhost")]
        scope = {
            "type": kind,
            "headers": headers,
            "raw_path": b"/ws",
            "query_string": query,
            "server": ("127.0.0.1", 1),
        }
        return refusal_of(Gate(key=KEY), scope)

    asks = NotLetIn(401, "this server has a key; send it as Authorization: Bearer KEY")
    assert refused("websocket", b"a=b&api_key=k-1") is None
    assert refused("http", b"api_key=k-1") == asks
    for query in (b"", b"api_key=", b"api_key=k-2", b"api_key=x&api_key=k-1", b"API_KEY=k-1", b"api_key=%ff", b"k-1"):
        assert refused("websocket", query) == asks


def test_a_key_is_not_printed() -> None:
    assert KEY not in repr(Gate(key=KEY))


# --- the gate of a server that listens


def at(host: str, *, allow_host: str | None = None, api_key_env: str | None = None) -> Gate:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        bound.bind((host, 0))
        return Gate.at(bound, host, allow_host=allow_host, api_key_env=api_key_env)


def test_beyond_loopback_there_is_always_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at("127.0.0.1").key is at("127.0.0.2").key is at("localhost").key is None
    first, second = at("0.0.0.0").key, at("0.0.0.0").key
    assert first is not None
    assert second is not None
    assert first != second
    assert len(first) == 32
    monkeypatch.setenv("SERVERS_KEY", KEY)
    assert at("127.0.0.1", api_key_env="SERVERS_KEY").key == at("0.0.0.0", api_key_env="SERVERS_KEY").key == KEY
    for value in ("", "a b", "a\nb", "\u00e9"):
        monkeypatch.setenv("SERVERS_KEY", value)
        with pytest.raises(ConfigError, match="the environment variable SERVERS_KEY"):
            at("0.0.0.0", api_key_env="SERVERS_KEY")


def test_the_names_of_a_server() -> None:
    here = socket.gethostname().lower()
    assert at("127.0.0.2").names == {"localhost", "127.0.0.1", "[::1]", "127.0.0.2"}
    assert at("0.0.0.0").names == {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", here}
    assert at("127.0.0.1", allow_host="Train.example., 10.0.0.5,FD00::0:1,[::5]").guests == {
        *("train.example", "10.0.0.5", "[fd00::1]", "[::5]")
    }
    assert at("127.0.0.1").guests == set()


@pytest.mark.parametrize(
    "name", ["*", "*.example", "http://a", "a:80", "a/b", "a,,b", ",", "a b", "[::1]:80", "u@a", " "]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="names and addresses are allowed, without scheme"):
        at("127.0.0.1", allow_host=name)
