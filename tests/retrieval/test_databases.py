"""PostgreSQL and Qdrant: the same rows as FAISS, builds that go on, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from qdrant_client import QdrantClient

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval.index import building
from agentgrpo.retrieval.index.collection import QdrantSink
from agentgrpo.retrieval.index.postgres import place_of as pg_place_of
from tests.retrieval.postgres import running_postgres
from tests.retrieval.stores import HASHING, corpus, ids, index, questions, recall, refusal, rows_of

COUNT = 400
"""Passages: Qdrant without a server syncs the disk for every one of them."""
KINDS = ("pgvector", "qdrant")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with running_postgres() as found:
        yield found


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def nodes(dsn: str, memory: Path) -> dict[str, dict[str, Any]]:
    """Of three indexes of one corpus, built."""
    found: dict[str, dict[str, Any]] = {
        "pgvector": {"name": "pgvector", "dsn": dsn, "embedder": HASHING},
        "qdrant": {"name": "qdrant", "path": str(memory / "qdrant"), "embedder": HASHING},
    }
    for node in found.values():
        index(node, corpus(COUNT))
    folder = {"name": "faiss_index", "embedder": HASHING}
    index(folder, corpus(COUNT), memory / "faiss")
    return {**found, "faiss_index": {**folder, "path": str(memory / "faiss")}}


@pytest.mark.slow
def test_a_thousand_questions_have_the_same_rows_everywhere(nodes: dict[str, dict[str, Any]]) -> None:
    rows = {name: rows_of(node, questions(1000)) for name, node in nodes.items()}
    assert len({*questions(1000)}) == 1000
    assert sum(len(row) for row in rows["faiss_index"]) == 10_000
    for name in KINDS:
        assert sum(a != b for a, b in zip(rows["faiss_index"], rows[name], strict=True)) == 0
        assert ids(rows[name]) == ids(rows["faiss_index"])
    tied = [row for row in rows["faiss_index"] if len({p.score for p in row}) < 10]
    assert len(tied) > 100  # so that the order of equal scores was put to the test


# --- builds


class Killed(Exception):
    pass


def place(kind: str, name: str, dsn: str, memory: Path) -> dict[str, Any]:
    where = {"dsn": dsn, "table": name} if kind == "pgvector" else {"path": str(memory / name), "collection": name}
    return {"name": kind, "embedder": HASHING, **where}


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_build_goes_on(
    kind: str, nodes: dict[str, dict[str, Any]], dsn: str, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "BLOCK", 50)
    node = place(kind, f"half_{kind}", dsn, memory)
    begun = build_node("indexer", node, out=None)
    begun.add(corpus(COUNT))

    def stop(what: str, done: int, _: int) -> None:
        if (what, done) == ("embedded", 150):
            raise Killed

    with pytest.raises(Killed):
        begun.finish(stop)
    said = refusal(node)
    assert said.startswith("ConfigError: the ")
    assert f"is half-built, 150 of {COUNT} passages; go on with agentgrpo index" in said
    other = [*corpus(COUNT)[:-1], Passage(id="other", text="other")]
    with pytest.raises(ConfigError, match=f"holds a half-built index of another corpus, {COUNT} passages"):
        index(node, other)
    seen: list[int] = []
    index(node, corpus(COUNT), progress=lambda what, done, _: seen.append(done) if what == "embedded" else None)
    assert seen == [200, 250, 300, 350, 400]
    assert rows_of(node, questions(100)) == rows_of(nodes[kind], questions(100))
    with pytest.raises(ConfigError, match=f"holds an index of another corpus, {COUNT} passages; give another"):
        index(node, other)
    with pytest.raises(ConfigError, match="holds an index with embedder 'hashing dim=64'"):
        index({**node, "embedder": {"name": "hashing", "dim": 72}}, corpus(COUNT))
    if kind == "pgvector":
        with psycopg.connect(dsn) as connection:
            assert connection.execute(f"SELECT count(*), count(DISTINCT id) FROM half_{kind}").fetchone() == (400, 400)


def test_a_collection_that_is_lost_is_filled_again_whatever_kills(memory: Path) -> None:
    node = place("qdrant", "emptied", "", memory)
    index(node, corpus(60))
    wanted = rows_of(node, questions(5))
    client = QdrantClient(path=node["path"])
    client.delete_collection("emptied")
    client.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QdrantSink, "add", killed)
        with pytest.raises(Killed):
            index(node, corpus(60))
    assert "is half-built, 0 of 60 passages; go on" in refusal(node)
    index(node, corpus(60))
    assert rows_of(node, questions(5)) == wanted


async def test_a_qdrant_that_goes_away_is_no_query_s_fault(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = place("qdrant", "gone", "", memory)
    index(node, corpus(60))
    retriever = build_node("retriever", node)["vdb"]
    await retriever.probe()
    calls: list[object] = []

    def gone(*arguments: object, **_: object) -> None:
        calls.append(arguments)
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr(QdrantClient, "query_batch_points", gone)
    failed = await asyncio.gather(*(retriever.search(q, top_k=1) for q in questions(8)), return_exceptions=True)
    await retriever.close()
    assert {(error.kind, str(error)) for error in failed} == {
        ("transport", f"the Qdrant collection gone at {node['path']}: ConnectionError: nobody there")
    }
    assert len(calls) == 1


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("url", ["http://me:s3cr/3t@127.0.0.1:9", "http://me:s3cr#3t@127.0.0.1:9"])
def test_a_password_in_the_url_of_qdrant_is_never_shown(url: str) -> None:
    there = {"name": "qdrant", "url": url, "embedder": HASHING}
    said = build_refusal_of(there)
    assert said.startswith("url='http://127.0.0.1:9'; allowed is an http or https URL such as ")
    assert said.endswith("; in a password, which is not shown here, write / as %2F, # as %23 and ? as %3F")
    both = build_refusal_of({**there, "path": "x"})
    assert both.startswith("retriever.path=x, retriever.url=http://127.0.0.1:9; give one of them")
    assert [piece for piece in ("s3cr", "3t") if piece in f"{said} {both}"] == []
    well = refusal({**there, "url": "http://me:s3cr%2F3t@127.0.0.1:9"})
    assert well.startswith("ConfigError: retriever.url=http://127.0.0.1:9: Qdrant does not answer (")
    assert "s3cr" not in well


def build_refusal_of(node: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as e:
        build_node("retriever", node)
    return str(e.value)


def test_a_folder_that_is_lost_is_only_filled_again(dsn: str, tmp_path: Path) -> None:
    node = {"name": "pgvector", "dsn": dsn, "table": "lost", "embedder": HASHING}
    index(node, corpus(COUNT), tmp_path / "beside")
    wanted = rows_of(node, questions(20))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE lost, lost_index")
    assert "the table lost in PostgreSQL is not there, or was not built by agentgrpo" in refusal(node)
    index(node, corpus(COUNT), tmp_path / "beside")
    assert rows_of(node, questions(20)) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_words_beside_a_database(kind: str, dsn: str, memory: Path, tmp_path: Path) -> None:
    beside = str(tmp_path / "words")
    node = {**place(kind, f"words_{kind}", dsn, memory), "words": beside}
    index(node, corpus(60))
    index({"name": "faiss_index", "mode": "fused", "embedder": HASHING}, corpus(60), tmp_path / "fused")
    fused = {"name": "faiss_index", "mode": "fused", "embedder": HASHING, "path": str(tmp_path / "fused")}
    assert rows_of(node, questions(50)) == rows_of(fused, questions(50))
    assert "is of another corpus than the vectors" in other_words(node, tmp_path)
    assert "is no finished index folder" in refusal({**node, "words": "no/where"})


def other_words(node: dict[str, Any], tmp_path: Path) -> str:
    index({"name": "faiss_index", "mode": "fused", "embedder": HASHING}, corpus(30), tmp_path / "other")
    return refusal({**node, "words": str(tmp_path / "other")})


def test_postgresql_stores_what_it_can(dsn: str) -> None:
    node = {"name": "pgvector", "dsn": dsn, "table": "odd", "embedder": HASHING}
    index(node, [Passage(id="a", text="zero \0 byte", title="T\t\\N", url="u"), Passage(id="b", text="\\.")])
    [[found]] = rows_of(node, ["zero byte"], top_k=1)
    assert (found.id, found.text, found.title, found.url) == ("a", "zero \ufffd byte", "T\t\\N", "u")


# --- approximate indexes


@pytest.mark.parametrize(("kind", "least"), [("hnsw", 0.95), ("ivfflat", 0.6)])
def test_approximate_indexes_of_postgresql(kind: str, least: float, nodes: dict[str, Any], dsn: str) -> None:
    node = {"name": "pgvector", "dsn": dsn, "table": f"like_{kind}", "embedder": HASHING, "index": kind}
    index(node, corpus(COUNT))
    with psycopg.connect(dsn) as connection:
        names = connection.execute(f"SELECT indexdef FROM pg_indexes WHERE tablename = 'like_{kind}'").fetchall()
    assert any(f"USING {kind} (embedding vector_ip_ops)" in str(name) for name in names)
    assert recall(rows_of(nodes["faiss_index"], questions(100)), rows_of(node, questions(100))) >= least
    assert "holds the index " + kind + ", not exact; give retriever.index=" + kind in refusal(
        {**node, "index": "exact"}
    )


# --- what is refused, and what fails in between


def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DSN", f"postgresql://me:s3cr3t@/db?host={tmp_path}")
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    for node, start, end in (
        (
            {"name": "pgvector", "dsn_env": "MY_DSN"},
            "retriever.dsn_env=MY_DSN: PostgreSQL does not answer (",
            "the DSN",
        ),
        ({"name": "pgvector", "dsn": f"host={tmp_path}"}, "retriever.dsn: PostgreSQL does not answer (", "the DSN"),
        (
            {"name": "qdrant", "url": "http://127.0.0.1:9", "api_key_env": "MY_KEY"},
            "retriever.url=http://127.0.0.1:9: Qdrant does not answer (ResponseHandlingException: ",
            "start it, or correct the URL",
        ),
        (
            {"name": "pgvector", "dsn_env": "UNSET"},
            "the environment variable UNSET is not set; set it",
            "host/database",
        ),
        ({"name": "qdrant", "path": "no/where"}, "retriever.path=no/where is not a folder; build it: ", "no/where"),
    ):
        said = refusal({**node, "embedder": HASHING})
        assert said.startswith(f"ConfigError: {start}")
        assert said.endswith(end)
        assert "\n" not in said
        assert "s3cr3t" not in said


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cr3t#t/pass@127.0.0.1:9/x",
        "sk-live-s3cr3t",
        "postgresql://me:s3cr3t@127.0.0.1:9/x",
        "postgresql://me:p@s3cr3t@127.0.0.1:9/x",
    ],
)
def test_a_dsn_of_the_environment_is_never_shown(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DSN", dsn)
    with pytest.raises(ConfigError, match=r"^retriever\.dsn_env=MY_DSN: PostgreSQL does not answer") as e:
        pg_place_of(None, "MY_DSN", "passages", 1.0).connect()
    told = "".join(traceback.format_exception(e.value))
    assert [piece for piece in ("s3cr3t", "pass@") if piece in told] == []


def test_only_a_builder_makes_the_extension(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
        connection.execute("CREATE ROLE poor LOGIN")
    bare = dsn.replace("/postgres?", "/bare?")
    with pytest.raises(ConfigError, match="the database has no extension vector"):
        pg_place_of(bare, None, "passages", 1.0).connect()
    with psycopg.connect(bare, autocommit=True) as connection:
        assert connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is None
    pg_place_of(bare, None, "passages", 1.0).connect(creates_extension=True).close()
    poor = pg_place_of(bare.replace("postgres@", "poor@"), None, "passages", 1.0)
    poor.connect(creates_extension=True).close()
    reader = pg_place_of(f"{bare}&options=-cdefault_transaction_read_only%3Don", None, "passages", 1.0)
    reader.connect(creates_extension=True).close()  # it is there: nothing is written


def test_the_options_of_a_dsn_survive(dsn: str) -> None:
    own = pg_place_of(f"{dsn}&options=-csearch_path%3Dpublic,mine", None, "passages", 1.5)
    connection = own.connect(creates_extension=True)
    assert [connection.execute(f"SHOW {name}").fetchone()[0] for name in ("search_path", "statement_timeout")] == [
        "public,mine",
        "1500ms",
    ]
    connection.close()


def test_other_embedders_indexes_and_tables(nodes: dict[str, Any], memory: Path) -> None:
    for kind in KINDS:
        said = refusal({**nodes[kind], "embedder": {"name": "hashing", "dim": 72}})
        assert "was built by the embedder hashing dim=64, and retriever.embedder is hashing dim=72" in said
        name = "table" if kind == "pgvector" else "collection"
        assert "is not there, or was not built by agentgrpo" in refusal({**nodes[kind], name: "another"})


# the lock that the library could not get, it leaves open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_folder_of_qdrant_has_one_process(memory: Path) -> None:
    node = place("qdrant", "alone", "", memory)
    holder = QdrantClient(path=node["path"])
    said = build_refusal(node)
    gc.collect()
    holder.close()
    assert said.startswith(f"retriever.path={memory / 'alone'}: Qdrant does not answer (RuntimeError: ")
    assert said.endswith("; another process has it open; several need a server")


def build_refusal(node: dict[str, Any]) -> str:
    try:
        build_node("indexer", node, out=None)
    except ConfigError as e:
        return str(e)
    return ""


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"name": "pgvector"}, "retriever.dsn and retriever.dsn_env; give one of them"),
        ({"name": "pgvector", "dsn": "postgresql://me:s3cr3t@host/db"}, "retriever.dsn holds a password"),
        ({"name": "pgvector", "dsn": "nonsense"}, "retriever.dsn is no DSN"),
        ({"name": "pgvector", "dsn": "dbname=x", "table": "a.b.c"}, "retriever.table='a.b.c'"),
        (
            {"name": "pgvector", "dsn": "dbname=x", "index": "ivf"},
            r"allowed are exact, hnsw, ivfflat. Did you mean 'ivfflat'",
        ),
        ({"name": "qdrant"}, "retriever.path=None, retriever.url=None; give one of them"),
        ({"name": "qdrant", "path": "x", "index": "flat"}, "retriever.index=flat; allowed are exact, hnsw"),
        ({"name": "qdrant", "path": "x", "timeout_s": 0}, "retriever.timeout_s=0.0; more than 0 is allowed"),
    ],
)
def test_keys_are_checked_when_it_is_built(node: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as e:
        build_node("retriever", {**node, "embedder": HASHING})
    assert "s3cr3t" not in str(e.value)


@pytest.mark.parametrize(("kind", "module"), [("pgvector", "psycopg"), ("qdrant", "qdrant_client")])
def test_a_missing_package_is_named(kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.setenv("MY_DSN", "dbname=x")
    where = {"dsn_env": "MY_DSN"} if kind == "pgvector" else {"path": str(tmp_path)}
    extra = "postgres" if kind == "pgvector" else "qdrant"
    assert refusal({"name": kind, "embedder": HASHING, **where}) == (
        f"ConfigError: retriever={kind} needs a package that is not installed ({module}): "
        f"pip install 'agentgrpo[{extra}]'"
    )


async def test_a_lost_connection_is_made_again(nodes: dict[str, Any], dsn: str) -> None:
    retriever = build_node("retriever", {**nodes["pgvector"], "cache_size": 0})["vdb"]
    first = await retriever.search(questions()[0], top_k=3)
    await asyncio.to_thread(end_connections, dsn)
    assert await retriever.search(questions()[0], top_k=3) == first
    await asyncio.to_thread(rename, dsn, "passages", "gone")
    try:
        with pytest.raises(RetrieverError, match='retriever: UndefinedTable: relation "passages" does not exist'):
            await retriever.search(questions()[0], top_k=3)
    finally:
        await asyncio.to_thread(rename, dsn, "gone", "passages")
    assert await retriever.search(questions()[0], top_k=3) == first
    await retriever.close()


def end_connections(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
        ).fetchall()
        assert ended


def rename(dsn: str, old: str, new: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
