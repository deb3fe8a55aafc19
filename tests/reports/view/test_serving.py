"""The page from a server: for this machine's browsers alone, and always as the run stands."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.reports.view.serving import PageServer
from agentgrpo.reports.view.snapshot import PageBlock, Snapshot
from tests.reports.view import made


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def block(self, name: str) -> Any:
        answer = self.ask(f"/block/{name}")
        assert answer.status == 200
        return json.loads(answer.body)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made.make_run(tmp_path / "x")


@pytest.fixture
def client(run: Path, tmp_path: Path) -> Iterator[Client]:
    with PageServer(Snapshot(made.opened(run)), made.assets(tmp_path / "assets")("served")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Client(server.server_port)
        finally:
            server.shutdown()
            thread.join()


def test_blocks_are_those_of_the_file(client: Client, run: Path, tmp_path: Path) -> None:
    blocks, _ = made.written(tmp_path, run)
    assert {name: client.block(name) for name in blocks} == blocks


def test_the_page(client: Client) -> None:
    answer = client.ask("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'content="served"' in answer.body
    assert b"octet-stream" not in answer.body
    policy = answer.headers["content-security-policy"]
    assert policy.encode() in answer.body
    assert "connect-src 'self'" in policy
    safe = ("cache-control", "cross-origin-resource-policy", "referrer-policy", "x-content-type-options")
    assert [answer.headers[name] for name in safe] == ["no-cache", "same-origin", "no-referrer", "nosniff"]
    assert (answer.headers["x-frame-options"], answer.headers["server"]) == ("DENY", "agentgrpo ")
    assert client.ask("/", If_None_Match=answer.headers["etag"])[::2] == (304, b"")


def test_what_has_not_changed_is_not_sent_again(client: Client, run: Path) -> None:
    names = ("overview", "index", "chunk-0")
    tags = {name: client.ask(f"/block/{name}").headers["etag"] for name in names}
    for name, tag in tags.items():
        assert client.ask(f"/block/{name}", If_None_Match=tag)[::2] == (304, b"")
        assert client.ask(f"/block/{name}", If_None_Match=f"W/{tag}").status == 304
    with (run / "metrics.jsonl").open("a") as log:
        log.write('rch_rounds":1.0}\n')
    answers = {name: client.ask(f"/block/{name}", If_None_Match=tag) for name, tag in tags.items()}
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(names, 200)
    assert json.loads(answers["overview"].body)["runs"][0]["steps_done"] == 3


def test_a_block_that_is_known_is_not_made_again(run: Path) -> None:
    snapshot = Snapshot(made.opened(run))
    found = snapshot.block("chunk-0")
    assert found is not None
    assert snapshot.block("chunk-0") == found
    assert snapshot.block("chunk-0", known=found.tag) == PageBlock(b"", found.tag)


def test_a_tokenizer_that_comes_later_divides_the_texts(client: Client, run: Path) -> None:
    """Although nothing else has changed."""
    (run / "checkpoints" / "step-000002").rename(run / "later")
    tag = client.ask("/block/overview").headers["etag"]
    assert client.ask("/block/overview", If_None_Match=tag).status == 304
    (run / "later").rename(run / "checkpoints" / "step-000002")
    assert client.ask("/block/overview", If_None_Match=tag).status == 200


def test_a_run_that_goes_on(client: Client, run: Path) -> None:
    """Numbers of episodes are those of the overview that was served last."""
    assert client.block("overview")["num_episodes"] == 3
    made.record(run, *(replace(made.ANSWERED, sample_index=i) for i in range(70)), name="train-000000")
    assert [e["id"] for e in client.block("chunk-0")] == ["t/0", "t/1", "t/0"]
    overview = client.block("overview")
    assert [(f["name"], f["first"], f["count"]) for f in overview["files"]] == [
        ("train-000000", 0, 70),
        ("train-000002", 70, 2),
        ("eval-end-greedy", 72, 1),
    ]
    assert [e["id"] for e in client.block("chunk-1")] == [*(f"t/{i}" for i in range(64, 70)), "t/0", "t/1", "t/0"]
    assert len(client.block("index")["file"]) == 73


def test_a_file_that_changed_after_the_overview_is_said(client: Client, run: Path) -> None:
    client.block("overview")
    path = run / "trajectories" / "train-000002.jsonl"
    path.write_bytes(path.read_bytes()[:-300])
    answer = client.ask("/block/chunk-0")
    assert (answer.status, answer.body.startswith(f"{path}:3: ".encode())) == (503, True)
    assert client.block("overview")["files"][0]["count"] == 1
    assert len(client.block("chunk-0")) == 2


def test_only_under_this_machines_own_names(client: Client) -> None:
    port = client.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", "127.0.0.1"):
        assert client.ask("/block/overview", Host=host).status == 200
    for host in (f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "localhost:x", "", "127.0.0.1@evil"):
        for path in ("/", "/block/overview"):
            answer = client.ask(path, Host=host)
            assert (answer.status, b"Velmor" in answer.body) == (403, False)
            assert answer.body.decode() == f"Host {host!r} is no name of this server; ask it as localhost\n"
    for target in (f"http://localhost:{port}/block/overview", "http://evil.example/block/overview"):
        assert client.ask(target).status == 403
    origin = f"http://localhost:{port}"
    assert client.ask("/block/overview", Origin=origin, Host=f"localhost:{port}").status == 200
    for foreign in ("http://evil.example", "null", "http://localhost:1"):
        assert client.ask("/block/overview", Origin=foreign, Host=f"localhost:{port}").status == 403


def test_fifty_connections_at_once(run: Path, tmp_path: Path) -> None:
    """All of them wait before the first is accepted; one that finds no room is tried again after seconds."""
    with (
        PageServer(Snapshot(made.opened(run)), made.assets(tmp_path / "assets")("served")) as server,
        ExitStack() as stack,
    ):
        request = b"GET /block/overview HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        waiting = []
        for _ in range(50):
            waiting.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=1)))
            waiting[-1].sendall(request)
        assert struct.unpack_from("I", server.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24) == (50,)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for connection in waiting:
                connection.settimeout(60)
                with connection.makefile("rb") as answer:
                    assert answer.read().startswith(b"HTTP/1.1 200 ")
        finally:
            server.shutdown()
            thread.join()


def test_what_there_is_not(client: Client) -> None:
    for path in ("/x", "/block/", "/block/chunk-1", "/block/chunk-", "/block/chunk-0001x", "/block/../config.yaml"):
        assert client.ask(path).status == 404
    assert client.ask("/block/chunk-" + "9" * 5000).status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = client.ask("/block/overview", method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_and_gzip(client: Client) -> None:
    plain = client.ask("/block/overview")
    head = client.ask("/block/overview", "HEAD")
    assert head == Answer(200, plain.headers | {"date": head.headers["date"]}, b"")
    zipped = client.ask("/block/overview", Accept_Encoding="gzip, br")
    assert (zipped.headers["content-encoding"], gzip.decompress(zipped.body)) == ("gzip", plain.body)
    assert len(zipped.body) < len(plain.body)


def test_a_port_that_is_taken(run: Path, tmp_path: Path) -> None:
    page = made.assets(tmp_path / "assets")("served")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port} is in use; give another port, or omit --port"):
            PageServer(Snapshot(made.opened(run)), page, port=port)


def test_who_goes_away_is_no_error(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageServer(Snapshot(made.opened(run)), made.assets(tmp_path / "b")("served")) as server:
        for error, is_said in ((ConnectionResetError, False), (TimeoutError, False), (ValueError, True)):
            try:
                raise error("gone")
            except error:
                server.handle_error(None, ("127.0.0.1", 1))
            assert ("Traceback" in capsys.readouterr().err) == is_said
