"""The file of verdicts: shared by processes, and whole after a kill at any instant."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgrpo.core.errors import StorageError
from agentgrpo.judges.llm.judge import VerdictCache
from agentgrpo.judges.llm.verdict import Opinion

WRITER = """
import asyncio, sys
from pathlib import Path
from agentgrpo.judges.llm.judge import VerdictCache
from agentgrpo.judges.llm.verdict import Opinion

async def main(path, name, count):
    cache = VerdictCache(path)
    for i in range(count):
        kept = await cache.keep(f"shared-{i}", Opinion((float(name),), name))
        await cache.keep(f"{name}-{i}", Opinion((i / count, 1.0), name))
        print(i, kept.reason, flush=True)
    cache.close()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


async def test_what_is_kept_is_found_by_the_next(tmp_path: Path) -> None:
    first = VerdictCache(tmp_path / "v.sqlite")
    assert await first.find("k") is None
    opinion = Opinion((0.1 + 0.2, 1.0), "why \ud800 ü")
    assert await first.keep("k", opinion) == Opinion((0.1 + 0.2, 1.0), "why ? ü")
    first.close()
    second = VerdictCache(tmp_path / "v.sqlite")
    assert await second.find("k") == Opinion((0.1 + 0.2, 1.0), "why ? ü")
    second.close()


async def test_the_first_verdict_stays(tmp_path: Path) -> None:
    one, two = VerdictCache(tmp_path / "v.sqlite"), VerdictCache(tmp_path / "v.sqlite")
    assert await one.keep("k", Opinion((0.5,), "one")) == Opinion((0.5,), "one")
    assert await two.keep("k", Opinion((1.0,), "two")) == Opinion((0.5,), "one")
    one.close()
    two.close()


async def test_several_processes_write_at_once_and_agree(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    writers = [writer(path, name, 60) for name in ("0", "1", "2")]
    said = [w.communicate(timeout=120)[0].split() for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0]
    winners = [lines[1::2] for lines in said]
    assert winners[0] == winners[1] == winners[2]
    cache = VerdictCache(path)
    for name in ("0", "1", "2"):
        found = [await cache.find(f"{name}-{i}") for i in range(60)]
        assert found == [Opinion((i / 60, 1.0), name) for i in range(60)]
    assert [(await cache.find(f"shared-{i}")) for i in range(60)] == [
        Opinion((float(name),), name) for name in winners[0]
    ]
    cache.close()


@pytest.mark.parametrize("lines", [0, 1, 7, 40])
async def test_a_kill_loses_nothing_that_was_kept(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "v.sqlite"
    process = writer(path, "1", 10_000)
    assert process.stdout is not None
    done = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    cache = VerdictCache(path)
    assert [await cache.find(f"1-{i}") for i in range(len(done))] == [
        Opinion((i / 10_000, 1.0), "1") for i in range(len(done))
    ]
    assert await cache.keep("after", Opinion((1.0,), "")) == Opinion((1.0,), "")
    cache.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite")
    cache._keep("parent", Opinion((1.0,), ""))
    child = os.fork()
    if child == 0:
        ok = cache._find("parent") == Opinion((1.0,), "") and cache._keep("child", Opinion((0.5,), ""))
        os._exit(0 if ok and cache._process == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache._find("child") == Opinion((0.5,), "")
    cache.close()


async def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"not a database at all, and long enough to be looked at" * 100)
    with pytest.raises(StorageError, match=r"v\.sqlite: file is not a database: .* give judge\.cache another file"):
        await VerdictCache(path).find("k")


async def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the judge's verdicts cannot be kept there"):
        await VerdictCache(tmp_path / "file" / "v.sqlite").find("k")


async def test_a_verdict_is_found_fast_enough_to_be_worth_keeping(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite")
    await cache.keep("k", Opinion((1.0,), ""))
    began = time.process_time()
    for _ in range(200):
        await cache.find("k")
    assert (time.process_time() - began) / 200 < 0.005
    cache.close()
