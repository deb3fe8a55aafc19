"""`agentgrpo index` and `agentgrpo serve-retriever`, from the command line to the passages."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli import retriever as retrieving
from agentgrpo.cli.main import main
from agentgrpo.config import build
from agentgrpo.core.durable import Operation, RunLock, injected
from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.faiss_index import faiss_index
from agentgrpo.retrieval.http import HttpRetriever
from agentgrpo.retrieval.index.building import Building
from agentgrpo.retrieval.server.running import listening
from tests.retrieval.serving.running_app import passages2string
from tests.thorough import siblings

ROWS = [
    {"id": "1", "contents": '"Velmor"\nVelmor was founded by Castin.'},
    {"id": "2", "text": "Castin lives in Roka.", "title": "Castin", "url": "http://a"},
    {"id": "3", "text": "The sea is wide."},
]
ODD = ("a 'b\" c", "${oc.env:HOME}", "-x=[1,2]", "\u00fc\U0001f30a\\")
DIM = "retriever.embedder.dim=64"
QUERY = "Velmor was founded by Castin"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "_admitted", set())
    Path("c.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert main(argv) == code
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert (out, line.partition(": ")[0]) == ("", "agentgrpo")
    return line.partition(": ")[2]


def searched(folder: str) -> list[Passage]:
    async def search() -> list[Passage]:
        given = faiss_index(embedder=HashingEmbedder(dim=64), path=folder)["vdb"]
        row = await given.search(QUERY, top_k=2)
        await given.close()
        return row

    return asyncio.run(search())


class Served:
    """`agentgrpo serve-retriever` in this thread, and a client in another, which stops it when it is done."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        self.out = self.err = ""
        self._capsys, self._argv = capsys, argv

    def ask(self, client: Callable[[str], Any]) -> Any:
        """What `client` makes of the address."""
        given: list[Any] = []
        asking = threading.Thread(target=lambda: given.append(self._asked(client)))
        asking.start()
        code = main(["serve-retriever", "--port", "0", *self._argv])
        asking.join()
        self._read()
        assert code == 0
        return given[0]

    def _asked(self, client: Callable[[str], Any]) -> Any:
        deadline = time.monotonic() + 60
        while "serving " not in self.out and time.monotonic() < deadline:
            time.sleep(0.05)
            self._read()
        try:
            return client(self.out.partition("serving ")[2].split()[0])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _read(self) -> None:
        out, err = self._capsys.readouterr()
        self.out, self.err = self.out + out, self.err + err


def fetched(url: str, *queries: str, top_k: int = 2, api_key_env: str | None = None) -> list[list[Passage]]:
    async def search() -> list[list[Passage]]:
        given = HttpRetriever(url=url, trust_env=False, retries=0, api_key_env=api_key_env)
        rows = [await given.search(query, top_k=top_k) for query in queries]
        await given.close()
        return rows

    return asyncio.run(search())


# --- the whole way


@pytest.mark.parametrize("name", siblings(ODD, quick=1))
def test_from_a_corpus_to_a_server_in_a_folder_of_any_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("indexes")
    folder.mkdir()
    out = f"./indexes/{name}"
    assert main(["index", "--corpus", "c.jsonl", "--out", out, DIM]) == 0
    said, progress = capsys.readouterr()
    assert said.startswith("3 passages; search them with retriever=faiss_index ")
    assert progress.startswith("3 passages in ")
    assert [path.name for path in folder.iterdir()] == [name]
    assert sorted(Path().iterdir()) == [Path("c.jsonl"), folder]  # no run directory
    rows = Served(capsys, "--index", out, DIM).ask(lambda url: fetched(url, QUERY))
    assert rows == [searched(out)]
    assert [p.id for p in rows[0]][:1] == ["1"]


def test_what_it_prints_is_what_a_shell_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "--corpus", "c.jsonl", "--out", "a 'b", DIM]) == 0
    assert capsys.readouterr().out == (
        "3 passages; search them with retriever=faiss_index 'retriever.path='\"'\"'a \\'\"'\"'b'\"'\"'' "
        "and the settings given here\n"
    )


def test_a_gzipped_corpus_and_a_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.gz").write_bytes(gzip.compress(Path("c.jsonl").read_bytes()))
    for _ in range(2):
        assert main(["index", "--corpus", "c.gz", "--out", "x", DIM, "retriever.index=hnsw"]) == 0
    assert capsys.readouterr().err.splitlines()[1].startswith("3 passages are stored already; ")
    assert json.loads(Path("x/index.json").read_bytes())["count"] == 3


def test_without_an_index_the_retriever_of_the_configuration_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    """By default the embedded example's own corpus, searched in two ways; its reranker is the environment's."""

    def client(url: str) -> list[int]:
        web = url.replace("/retrieve", "/web/retrieve")
        return [len(row) for row in (*fetched(url, "who founded"), *fetched(web, "founded"))]

    served = Served(capsys)
    assert served.ask(client) == [2, 2]


def test_a_client_of_search_r1(capsys: pytest.CaptureFixture[str]) -> None:
    import urllib.request

    def client(url: str) -> str:
        payload = {"queries": ["The sea is wide", QUERY], "topk": 1, "return_scores": True}
        request = urllib.request.Request(url, json.dumps(payload).encode(), {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
            return "".join(passages2string(row) for row in json.loads(response.read())["result"])

    assert main(["index", "--corpus", "c.jsonl", "--out", "x", DIM]) == 0
    assert Served(capsys, "--index", "x", DIM).ask(client) == (
        'Doc 1(Title: "") The sea is wide.\nDoc 1(Title: "Velmor") Velmor was founded by Castin.\n'
    )


# --- asked by whom


def test_a_server_for_other_machines_has_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one that it says once, or one of the operator's."""
    assert main(["index", "--corpus", "c.jsonl", "--out", "x", DIM]) == 0
    served = Served(capsys, "--index", "x", DIM, "--host", "0.0.0.0")

    def client(url: str) -> list[Any]:
        port = url.split(":")[2].removesuffix("/retrieve")
        [key] = [line.split()[1] for line in served.err.splitlines() if line.startswith("key: ")]
        monkeypatch.setenv("SERVERS_KEY", key)
        monkeypatch.setenv("WRONG_KEY", "another")
        return [refused_or_not(f"http://127.0.0.1:{port}", name) for name in (None, "WRONG_KEY", "SERVERS_KEY")]

    asks = '{"error": "this server has a key; send it as Authorization: Bearer KEY"}'
    refused = f"HTTP 401 b'{asks}'"
    assert served.ask(client) == [refused, refused, "1"]
    monkeypatch.setenv("SERVERS_KEY", "of the-operator")
    assert refusal(capsys, "serve-retriever", "--index", "x", "--api-key-env", "SERVERS_KEY", "--port", "0").startswith(
        "the environment variable SERVERS_KEY holds spaces"
    )
    monkeypatch.setenv("SERVERS_KEY", "the-operators")
    served = Served(capsys, "--index", "x", DIM, "--api-key-env", "SERVERS_KEY")
    names = (None, "SERVERS_KEY")
    assert served.ask(lambda url: [refused_or_not(url, name) for name in names]) == [refused, "1"]
    assert "key" not in served.err


def test_names_of_a_proxy_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    import urllib.error
    import urllib.request

    def client(url: str) -> list[int]:
        opener, codes = urllib.request.build_opener(urllib.request.ProxyHandler({})), []
        for host in ("train.example", "evil.example"):
            try:
                request = urllib.request.Request(url.replace("/retrieve", "/health"), headers={"Host": host})
                with opener.open(request) as response:
                    codes.append(response.status)
            except urllib.error.HTTPError as e:
                with e:
                    codes.append(e.code)
        return codes

    assert main(["index", "--corpus", "c.jsonl", "--out", "x", DIM]) == 0
    assert Served(capsys, "--index", "x", DIM, "--allow-host", "train.example").ask(client) == [200, 403]
    assert refusal(capsys, "serve-retriever", "--port", "0", "--allow-host", "http://a").startswith(
        "--allow-host 'http://a'; names and addresses are allowed"
    )


def refused_or_not(url: str, api_key_env: str | None) -> str:
    """The id of the first passage, or why there is none."""
    try:
        return fetched(f"{url.removesuffix('/retrieve')}/retrieve", QUERY, api_key_env=api_key_env)[0][0].id
    except RetrieverError as e:
        return str(e).partition("attempt 1: ")[2]


# --- interrupted


def test_ctrl_c_says_how_to_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    add = Building.add

    def interrupted(self: Building, passages: Any) -> None:
        add(self, passages)
        os.kill(os.getpid(), signal.SIGINT)

    argv = ["index", "--corpus", "c.jsonl", "--out", "x", DIM]
    with monkeypatch.context() as patched:
        patched.setattr(Building, "add", interrupted)
        line = refusal(capsys, *argv, code=75)
    assert line == "stopped by SIGINT; the same command goes on where it was"
    assert main(argv) == 0
    assert searched("x")[0].id == "1"


class Killed(BaseException):
    """Nothing is cleaned up after it, as after SIGKILL."""


def test_a_build_that_is_killed_at_a_durable_operation_goes_on() -> None:
    argv, count = ["index", "--corpus", "c.jsonl", "--out", "whole", DIM], 0

    def counting(operation: Operation) -> None:
        nonlocal count
        count += 1

    with injected(counting):
        assert main(argv) == 0
    whole = files("whole")
    assert count > 10
    for number in (1, count // 2):
        argv[4], left = f"killed-{number}", number

        def killing(operation: Operation) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        with injected(killing), pytest.raises(Killed):
            main(argv)
        assert main(argv) == 0
        assert files(argv[4]) == whole


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != "run.lock"}


# --- refused


@pytest.mark.slow
def test_what_index_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*argv: str, code: int = 2) -> str:
        return refusal(capsys, "index", *argv, code=code)

    assert said("--out", "x") == "index needs a corpus: --corpus FILE, JSON lines, plain or gzipped"
    assert said("--corpus", "c.jsonl") == (
        "index needs a target for the index: --out DIR, or retriever=qdrant or pgvector"
    )
    assert said("--corpus", "none", "--out", "x") == (
        "none cannot be read: No such file or directory; give a file of JSON lines, plain or gzipped"
    )
    assert said("--corpus", "c.jsonl", "retriever=http") == (
        "retriever=http has no index to build; allowed are faiss_index, pgvector, qdrant"
    )
    Path("bad.jsonl").write_text('{"id": "1", "text": "a"}\n{"id": "2"}\n')
    assert said("--corpus", "bad.jsonl", "--out", "bad", DIM) == (
        'bad.jsonl, line 2: no text (or contents); a line is {"id", "contents"} or {"id", "text", "title"?, "url"?}'
    )
    assert said("--corpus", "c.jsonl", "--out", "c.jsonl/x") == (
        "--out c.jsonl/x: Not a directory; give a directory, or a place where one can be made"
    )
    with RunLock(Path("x")):
        assert said("--corpus", "c.jsonl", "--out", "x", code=3) == (
            f"x is in use by process {os.getpid()}; wait for it, stop it, or choose another --out"
        )
    assert sorted(path.name for path in Path().iterdir() if not path.name.startswith("bad")) == ["c.jsonl", "x"]


@pytest.mark.slow
def test_what_serve_refuses(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*argv: str) -> str:
        return refusal(capsys, "serve-retriever", *argv)

    assert said("--index", "x") == "--index x does not exist; build it: agentgrpo index --corpus FILE --out DIR"
    Path("x").mkdir()
    assert said("--index", "x", "retriever=qdrant") == (
        "--index is a folder of retriever=faiss_index, and retriever=qdrant was chosen; leave one of them out"
    )
    assert said("--index", "x", "--port", "0") == (
        "the index x is not finished; go on with the same command: agentgrpo index --corpus FILE --out x"
    )
    assert said("--port", "eight") == "--port eight; a whole number is allowed"
    assert said("--max-top-k", "0") == "a limit of top_k 0; more than 0 is allowed"
    assert said("--log-every", "0") == "--log-every 0; at least 1 is allowed"
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert said("--index", "x", "--port", str(port)) == (
            f"--host 127.0.0.1 --port {port}: something listens there already; stop it, or take another: "
            f"--port {port + 1} (0 = any)"
        )
    monkeypatch.setattr(retrieving, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert said("--index", "x") == "serve-retriever needs uvicorn: pip install 'agentgrpo[serve]'"


def test_a_task_without_a_corpus_has_nothing_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "serve-retriever", "--port", "0", "experiment=none", *_workshop()).startswith(
        "task=workshop has no corpus to search; give --index DIR, or "
    )


def _workshop() -> Iterator[str]:
    yield from ("task=workshop", "model=workshop_tiny", "environment=search", "retriever=embedded")
