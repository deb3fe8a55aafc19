"""What was answered is replayed: the same for everybody, for nothing, and never mistaken for anything else."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, JudgeError, RetrieverError, StorageError
from agentgrpo.core.types import Passage
from agentgrpo.judges.llm.completer import CompleterService, HttpCompleter, Reply
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.faiss_index import faiss_index
from agentgrpo.retrieval.pgvector import pgvector
from agentgrpo.retrieval.qdrant import qdrant
from agentgrpo.retrieval.services import FetcherService, RerankerService, RetrieverService
from agentgrpo.services.cassette import Cassette, CassetteMiss, CassetteSettings, RecordedReply, ServiceRequest
from agentgrpo.services.meter import Meter
from tests.services.stand_ins import Backwards, Changing, Pages, Parrot, meter, said

HOSTILE = [
    "",
    "\x00\x1b[2J\r\n",
    "'; DROP TABLE cassette; --",
    '{"reply": []}',
    "\ud83d\ude00 \ud800 \u202e",
    "x" * 100_000,
    "${oc.env:HOME}",
]


async def found(part: RetrieverService, query: str = "q", top_k: int = 3) -> list[str]:
    return [p.id for p in await part.search(query, top_k=top_k)]


def web(m: Meter, part: Changing | None = None) -> RetrieverService:
    return RetrieverService(part or Changing(), kind="web", meter=m)


async def test_the_first_answer_stays_in_the_run_that_records_and_after_it(tmp_path: Path) -> None:
    part, m = Changing(), meter(tmp_path, "fill")
    recording = web(m, part)
    first = await recording.search("q", top_k=3)
    assert first == [Passage(id="q/1", text="q\ud800", score=1 / 3)]
    assert await recording.search("q", top_k=3) == first
    assert await found(recording, "other") == ["other/2"]
    assert await found(recording, top_k=0) == []
    assert (part.asked, m.counts["calls/web"], m.counts["replayed"]) == (["q", "other", "q"], 3, 1)
    await m.close()
    replay, nobody = meter(tmp_path, "strict"), Changing()
    assert await web(replay, nobody).search("q", top_k=3) == first
    assert (nobody.asked, dict(replay.counts)) == ([], {"replayed": 1})
    await replay.close()


async def test_live_records_nothing_and_asks_every_time(tmp_path: Path) -> None:
    m = meter(tmp_path)
    part = web(m)
    assert [await found(part), await found(part)] == [["q/1"], ["q/2"]]
    await m.close()
    assert not (tmp_path / "tape").exists()


async def test_equal_requests_under_way_are_asked_once_in_every_mode(tmp_path: Path) -> None:
    for mode in ("live", "fill"):
        part, m = Changing(pause=0.01), meter(tmp_path, mode)
        rows = await asyncio.gather(*(found(web(m, part), q) for q in ["a", "b", "a", "a"]))
        assert rows == [["a/1"], ["b/2"], ["a/1"], ["a/1"]]
        assert (part.asked, m.counts["calls/web"]) == (["a", "b"], 2)
        await m.close()


async def test_who_gives_up_disturbs_nobody_and_the_last_one_stops_the_call(tmp_path: Path) -> None:
    part, m = Changing(pause=0.05), meter(tmp_path)
    waiters = [asyncio.create_task(found(web(m, part))) for _ in range(2)]
    await part.begun.wait()
    waiters[0].cancel()
    assert await waiters[1] == ["q/1"]
    part.begun.clear()
    alone = asyncio.create_task(found(web(m, part)))
    await part.begun.wait()
    alone.cancel()
    late = asyncio.create_task(found(web(m, part)))  # comes while the call of the one before is being stopped
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert await late == ["q/3"]
    once = m._service._then  # type: ignore[attr-defined]
    assert (part.live, m.counts["calls/web"], len(once._underway.get())) == (0, 3, 0)
    await m.close()


async def test_what_decides_the_answer_is_the_request_and_nothing_else(tmp_path: Path) -> None:
    class Other(Changing):
        identity = "another index"

    m = meter(tmp_path, "fill")
    assert await found(web(m)) == ["q/1"]
    assert await found(RetrieverService(Changing(), kind="vdb", meter=m)) == ["q/1"]
    assert m.counts["calls/vdb"] == 1
    assert await found(web(m, Other())) == ["q/1"]
    assert m.counts["calls/web"] == 2
    one, two = ({"b": 1, "a": "x"}, {"a": "x", "b": 1})
    assert ServiceRequest.of("web", one) == ServiceRequest.of("web", two) != ServiceRequest.of("vdb", one)
    await m.close()


async def test_a_miss_says_what_was_asked_and_what_to_do(tmp_path: Path) -> None:
    m = meter(tmp_path, "fill")
    await found(web(m))
    await m.close()
    replay, nobody = meter(tmp_path, "strict"), Changing()
    with pytest.raises(CassetteMiss) as e:
        await found(web(replay, nobody), "no\nsuch\x1b[2J")
    assert str(e.value) == (
        f'{tmp_path / "tape"} has no answer to web {{"query":"no\\nsuch\\u001b[2J","service":"Changing","top_k":3}}; '
        "cassette.mode=strict asks nobody: record it with cassette.mode=fill, or replay with the settings and the "
        "version that it was recorded with"
    )
    with pytest.raises(CassetteMiss, match=r"x\.\.\. \(5\d\d\d characters\); cassette"):
        await found(web(replay, nobody), "x" * 5000)
    assert nobody.asked == []
    await replay.close()


@pytest.mark.parametrize("mode", ["fill", "strict"])
def test_a_cassette_needs_a_file(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(ConfigError, match=f"cassette.mode={mode} needs a file; give it one: cassette.path=FILE"):
        CassetteSettings(mode=mode)
    with pytest.raises(
        ConfigError, match=r"cassette.path=.*none: no such file; record it first, with cassette.mode=fill"
    ):
        CassetteSettings(mode="strict", path=tmp_path / "none").open()
    assert not (tmp_path / "none").exists()


async def test_failures_that_pass_are_not_recorded_and_facts_are(tmp_path: Path) -> None:
    part, m = Changing("timeout", "http_429", "http_4xx"), meter(tmp_path, "fill")
    for kind in ("timeout", "http_429", "http_4xx"):
        with pytest.raises(RetrieverError) as e:
            await found(web(m, part))
        assert e.value.kind == kind
    assert await found(web(m, part)) == ["q/4"]
    assert (m.counts["unrecorded"], m.counts["calls/web"]) == (3, 4)
    pages = Pages(gone="http_404", slow="timeout", forbidden="forbidden", busy="http_429")
    rows = await FetcherService(pages, meter=m).fetch(["gone", "slow", "ok", "forbidden", "busy"])
    assert [r.kind if isinstance(r, RetrieverError) else r.text for r in rows] == [
        "http_404",
        "timeout",
        "page 3",
        "forbidden",
        "http_429",
    ]
    again = Pages()
    rows = await FetcherService(again, meter=m).fetch(["gone", "slow", "ok", "forbidden", "busy"])
    assert again.asked == [["slow"], ["busy"]]
    assert isinstance(rows[0], RetrieverError)
    assert (rows[0].kind, str(rows[0])) == ("http_404", "gone is gone")
    await m.close()


async def test_a_fetcher_that_fails_itself_is_no_missing_page(tmp_path: Path) -> None:
    class Unplugged(Pages):
        async def fetch(self, urls: Any) -> Any:
            raise RetrieverError("no network", kind="dead_network")

    m = meter(tmp_path)
    with pytest.raises(RetrieverError, match="no network"):
        await FetcherService(Unplugged(), meter=m).fetch(["a"])
    await m.close()


async def test_rerankers_and_models_are_replayed(tmp_path: Path) -> None:
    m = meter(tmp_path, "fill")
    passages = [Passage(id=i, text=f"text {i}") for i in "abc"]
    reranked = await RerankerService(Backwards(), meter=m).rerank("q", passages, top_k=2)
    reply = await CompleterService(Parrot(), kind="judge", meter=m).complete(said("one two"))
    assert (reply, [p.id for p in reranked]) == (
        Reply(text="one two", prompt_tokens=2, completion_tokens=2),
        ["c", "b"],
    )
    await m.close()
    replay, backwards, parrot = meter(tmp_path, "strict"), Backwards(), Parrot()
    assert await RerankerService(backwards, meter=replay).rerank("q", passages, top_k=2) == reranked
    assert await RerankerService(backwards, meter=replay).rerank("q", [], top_k=2) == []
    completer = CompleterService(parrot, kind="judge", meter=replay)
    assert await completer.complete(said("one two")) == Reply(
        text="one two", prompt_tokens=2, completion_tokens=2, paid=False
    )
    assert (backwards.asked, parrot.asked, completer.is_remote) == (0, 0, False)
    await replay.close()


async def test_hostile_text_is_text(tmp_path: Path) -> None:
    m = meter(tmp_path, "fill")
    first = [await web(m).search(text, top_k=3) for text in HOSTILE]
    await m.close()
    replay = meter(tmp_path, "strict")
    assert [await web(replay).search(text, top_k=3) for text in HOSTILE] == first
    assert len({p.text for row in first for p in row}) == len(HOSTILE)
    await replay.close()


def test_what_is_searched_is_the_identity_and_not_where_it_is(tmp_path: Path) -> None:
    def of(build: Any, **keys: Any) -> str:
        return str(build(**({"embedder": HashingEmbedder(dim=64)} | keys))["vdb"].identity)

    folder = partial(of, faiss_index)
    plain = folder(path="/a/wiki")
    assert plain == folder(path="/b/wiki", threads=2, cache_size=1)
    others = [
        folder(path="/a/news"),
        folder(path="/a/wiki", embedder=HashingEmbedder(dim=128)),
        folder(path="/a/wiki", mode="fused"),
        folder(path="/a/wiki", index="hnsw"),
        folder(path="/a/wiki", corpus="/a/wiki-18.jsonl"),
        of(qdrant, path="/a", collection="wiki"),
        of(qdrant, path="/a", collection="news"),
        of(qdrant, path="/a", collection="wiki", words="/w"),
        of(pgvector, dsn_env="DSN", table="wiki"),
        of(pgvector, dsn_env="DSN", table="news"),
    ]
    assert len({plain, *others}) == 11
    assert of(qdrant, path="/a", collection="wiki") == of(qdrant, url="http://x.test:6333", collection="wiki")


def test_a_part_without_identity_is_refused_where_its_answers_are_recorded(tmp_path: Path) -> None:
    class Nameless(Changing):
        identity = None

    with pytest.raises(ConfigError, match=r"^Nameless has no identity.*give it `identity`"):
        web(meter(tmp_path, "fill"), Nameless())
    web(meter(tmp_path), Nameless())


async def test_a_password_is_in_no_request(tmp_path: Path) -> None:
    part = HttpCompleter(base_url="http://alice:hunter2@127.0.0.1:9/v1", retries=0)
    assert "127.0.0.1:9/v1" in part.identity
    m = meter(tmp_path, "fill")
    with pytest.raises(JudgeError) as failed:
        await CompleterService(part, kind="judge", meter=m).complete(said("x"))
    await m.close()
    (tmp_path / "tape").touch()
    replay = meter(tmp_path, "strict")
    with pytest.raises(CassetteMiss) as missed:
        await CompleterService(part, kind="judge", meter=replay).complete(said("x"))
    await replay.close()
    assert [text for text in (part.identity, str(failed.value), str(missed.value)) if "hunter2" in text] == []


# --- the file


def test_a_copy_of_the_file_alone_is_a_cassette_at_any_time(tmp_path: Path) -> None:
    writing = Cassette(tmp_path / "tape")
    writing.find_each(["none"])
    (tmp_path / "copy").write_bytes((tmp_path / "tape").read_bytes())
    copy = Cassette(tmp_path / "copy", read_only=True)
    assert copy.find_each(["none"]) == [None]
    copy.close()
    writing.keep_each([(recorded(1).request.key, recorded(1))])
    other = Cassette(tmp_path / "tape")
    other.find_each(["none"])
    writing.close()  # not the last: nobody else would empty the log
    (tmp_path / "copy").write_bytes((tmp_path / "tape").read_bytes())
    assert copy.find_each([recorded(1).request.key]) == [recorded(1)]
    copy.close()
    other.close()


def test_a_log_that_cannot_be_read_is_named_and_no_cassette_is_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tape").touch()
    (tmp_path / "tape-wal").write_bytes(b"log")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    replay = Cassette(tmp_path / "tape", read_only=True)
    with pytest.raises(StorageError, match=r"its latest rows are in tape-wal.*copy it again .*FILE\*") as e:
        replay.find_each(["none"])
    assert "delete" not in str(e.value)


def recorded(number: int, outcome: str = '{"reply":[]}') -> RecordedReply:
    return RecordedReply(ServiceRequest.of("web", {"query": number}), outcome, 0.25)


async def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    m = meter(tmp_path, "fill")
    await found(web(m))
    await m.close()
    with sqlite3.connect(tmp_path / "tape") as connection:
        connection.execute("UPDATE cassette SET outcome = replace(outcome, 'q/1', 'q/7')")
    connection.close()
    replay = meter(tmp_path, "strict")
    with pytest.raises(StorageError, match=r'tape: the answer to web \{"query":"q".*is damaged: the cassette'):
        await found(web(replay))
    await replay.close()


@pytest.mark.parametrize("mode", ["fill", "strict"])
async def test_a_file_that_is_no_cassette_is_named(tmp_path: Path, mode: str) -> None:
    (tmp_path / "tape").write_bytes(b"no database at all, however long one looks at it " * 100)
    m = meter(tmp_path, mode)
    with pytest.raises(StorageError, match=r"tape: file is not a database: .* give cassette\.path another file"):
        await found(web(m))
    await m.close()


async def test_a_cassette_cut_short_is_named(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "tape")
    cassette.keep_each([(recorded(i).request.key, recorded(i, f'{{"reply":"{"x" * 4000}"}}')) for i in range(40)])
    cassette.close()
    data = (tmp_path / "tape").read_bytes()
    (tmp_path / "tape").write_bytes(data[: len(data) // 2])
    replay = Cassette(tmp_path / "tape", read_only=True)
    with pytest.raises(StorageError, match=r"tape: .*cassette\.path"):
        replay.find_each([recorded(i).request.key for i in range(40)])
    replay.close()


def test_a_replay_writes_nothing_and_needs_no_leave_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cassette = Cassette(tmp_path / "tape")
    cassette.keep_each([(recorded(1).request.key, recorded(1))])
    cassette.close()
    before = (tmp_path / "tape").read_bytes()
    for may_write in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, mode, may=may_write: may)
            replay = Cassette(tmp_path / "tape", read_only=True)
            assert replay.find_each([recorded(1).request.key, recorded(2).request.key]) == [recorded(1), None]
            with pytest.raises(StorageError, match="readonly"):
                replay.keep_each([(recorded(2).request.key, recorded(2))])
            replay.close()
        if not may_write:
            assert [p.name for p in tmp_path.iterdir()] == ["tape"]
    assert (tmp_path / "tape").read_bytes() == before


WRITER = """
import asyncio, sys
from pathlib import Path
from agentgrpo.retrieval.services import RetrieverService
from agentgrpo.core.types import Passage
from tests.services.stand_ins import meter

class Mine:
    identity = "Mine"

    async def search(self, query, *, top_k):
        return [Passage(id=f"{query} by {sys.argv[2]}", text="")]

async def main():
    m = meter(Path(sys.argv[1]), "fill", prices={"web": 1.0})
    part = RetrieverService(Mine(), kind="web", meter=m)
    for i in range(int(sys.argv[3])):
        [found] = await part.search(f"shared {i}", top_k=1)
        [own] = await part.search(f"{sys.argv[2]} {i}", top_k=1)
        print(i, found.id.split()[-1], flush=True)
    await m.close()

asyncio.run(main())
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def test_two_processes_share_a_cassette_and_a_ledger(tmp_path: Path) -> None:
    writers = [writer(tmp_path, name, 40) for name in ("one", "two")]
    said_by = [w.communicate(timeout=120)[0].split()[1::2] for w in writers]
    assert [w.returncode for w in writers] == [0, 0]
    assert said_by[0] == said_by[1]
    replay = Cassette(tmp_path / "tape", read_only=True)
    assert len(said_by[0]) == 40
    replay.close()
    m = meter(tmp_path)
    m.in_use = True
    spent = m.summary()
    assert 120 <= spent["calls"]["web"] <= 160  # where both asked at once both have paid
    assert spent["money"] == spent["calls"]["web"]
    await m.close()


@pytest.mark.parametrize("lines", [1, 25])
async def test_a_kill_loses_neither_answers_nor_what_was_spent(tmp_path: Path, lines: int) -> None:
    process = writer(tmp_path, "one", 100_000)
    assert process.stdout is not None
    done = [process.stdout.readline() for _ in range(lines)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    replay = meter(tmp_path, "strict")

    class Mine(Changing):
        identity = "Mine"

    part = RetrieverService(Mine(), kind="web", meter=replay)
    assert [await found(part, f"shared {i}", 1) for i in range(len(done))] == [
        [f"shared {i} by one"] for i in range(len(done))
    ]
    await replay.close()
    m = meter(tmp_path)
    m.in_use = True
    assert m.summary()["calls"]["web"] >= 2 * lines
    await m.close()
    for name in ("tape", "spending.sqlite"):
        with sqlite3.connect(tmp_path / name) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
