"""Building an index, and everything that can come between: kills, signals, corpora that are not what they were."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from agentgrpo.cli.retriever import build_index
from agentgrpo.core.errors import ConfigError, DataError, Preempted
from agentgrpo.core.types import Passage
from agentgrpo.records.screen import Bar
from agentgrpo.retrieval import faiss_index
from agentgrpo.retrieval.base import Progress
from agentgrpo.retrieval.corpus import CorpusFile
from agentgrpo.retrieval.embedder import HashingEmbedder

COUNT, BATCH = 2500, 100
KILLED = """
import os, signal, sys
from pathlib import Path
from agentgrpo.retrieval.index.building import Building
from agentgrpo.records.screen import Bar
from tests.cli.test_indexing import build

calls, (corpus, out, where, number) = [], sys.argv[1:]

def counted(method):
    def call(*args):
        result = method(*args)
        calls.append(args)
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

if where == "stored":
    Building.add = counted(Building.add)
else:
    reached = Bar.reached
    Bar.reached = lambda self, title, *args: (counted(reached) if title == where else reached)(self, title, *args)
build(Path(corpus), Path(out))
"""


def write_corpus(path: Path, count: int = COUNT) -> Path:
    rows = ({"id": str(i), "contents": f'"Title {i}"\nVelmor {i * i} and Castin {i % 7}'} for i in range(count))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def build(corpus: Path, out: Path, said: io.StringIO | None = None) -> int:
    indexer = faiss_index.indexer(out=out, embedder=HashingEmbedder(dim=16), index="flat", mode="fused")
    console = Console(file=said or io.StringIO(), width=200)
    with CorpusFile(corpus) as file, Bar(what="passages", console=console) as bar:
        return asyncio.run(build_index(indexer, file, bar=bar, batch=BATCH))


def files(folder: Path) -> dict[str, object]:
    """Of an index folder; the word index is Tantivy's, whose files have names by chance."""
    kept = (p for p in sorted(folder.iterdir()) if p.is_file() and p.name != "run.lock")
    return {p.name: json.loads(p.read_bytes()) if p.suffix == ".json" else p.read_bytes() for p in kept}


def found(folder: Path) -> list[list[Passage]]:
    async def search() -> list[list[Passage]]:
        given = faiss_index.faiss_index(embedder=HashingEmbedder(dim=16), path=str(folder), mode="fused")["vdb"]
        rows = [await given.search(query, top_k=5) for query in ("Title 17", "Castin 3", "289")]
        await given.close()
        return rows

    return asyncio.run(search())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A corpus, and the folder of its index, built without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = write_corpus(folder / "c.jsonl")
    assert build(corpus, folder / "index") == COUNT
    return corpus, folder / "index"


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("stored", 7),
        *(pytest.param(*at, marks=pytest.mark.slow) for at in (("read", 1), ("embedded", 2), ("words", 1))),
    ],
)
def test_a_kill_at_any_time_is_gone_on_from(whole: tuple[Path, Path], tmp_path: Path, where: str, number: int) -> None:
    corpus, index = whole
    command = [sys.executable, "-c", KILLED, str(corpus), str(tmp_path / "out"), where, str(number)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -signal.SIGKILL
    assert "index.json" not in files(tmp_path / "out")
    said = io.StringIO()
    assert build(corpus, tmp_path / "out", said) == COUNT
    stored = BATCH * number if where == "stored" else COUNT
    assert said.getvalue().startswith(f"{stored:,} passages are stored already; going on with the next one\n")
    assert files(tmp_path / "out") == files(index)
    assert found(tmp_path / "out") == found(index)


class Interrupted:
    """An indexer for tests that only counts; `at(count)` is called after every batch, and in finish."""

    def __init__(self, at: Callable[[int], None], count: int = 0) -> None:
        self.at, self.count, self.is_whole = at, count, False

    def resume(self, corpus: Iterator[Passage]) -> None:
        for _ in range(self.count):
            next(corpus)

    def add(self, passages: Sequence[Passage]) -> None:
        self.count += len(passages)
        self.at(self.count)

    def finish(self, progress: Progress) -> None:
        for done in range(1, 6):
            progress("embedded", done, 5)
            self.at(-done)
        self.is_whole = True


def run(corpus: Path, indexer: Interrupted) -> int:
    with CorpusFile(corpus) as file, Bar(what="passages", console=Console(file=io.StringIO())) as bar:
        return asyncio.run(build_index(indexer, file, bar=bar, batch=BATCH))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
@pytest.mark.parametrize("when", [300, COUNT, -3])
def test_a_signal_stops_it_after_the_batch_at_hand(
    tmp_path: Path, number: signal.Signals, name: str, when: int
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    seen: list[int] = []

    def at(count: int) -> None:
        seen.append(count)
        if count == when:
            os.kill(os.getpid(), number)

    indexer = Interrupted(at)
    before = signal.getsignal(number)
    with pytest.raises(Preempted, match=f"stopped by {name}; the same command goes on where it was"):
        run(corpus, indexer)
    assert (seen[-1], indexer.is_whole, signal.getsignal(number)) == (when, False, before)
    assert run(corpus, Interrupted(lambda count: None, indexer.count)) == COUNT


def test_a_second_signal_ends_the_process(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c.jsonl", 300)
    program = """
import os, signal, sys
from pathlib import Path
from tests.cli.test_indexing import Interrupted, run

def twice(count):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
run(Path(sys.argv[1]), Interrupted(twice))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "c.jsonl")]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == 130


def test_a_corpus_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("\n\n")
    with pytest.raises(DataError, match=r"/c has no passages; write one JSON object per line"):
        run(tmp_path / "c", Interrupted(lambda count: None))


def test_a_malformed_line_costs_what_follows_and_nothing_before(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", 250)
    good = corpus.read_text()
    corpus.write_text(good + "{}\n")
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"/c, line 251: no text \(or contents\); a line is"):
        build(corpus, out)
    corpus.write_text(good + '{"id": "last", "text": "mended"}\n')
    said = io.StringIO()
    assert build(corpus, out, said) == 251
    assert said.getvalue().startswith("200 passages are stored already")


def test_another_corpus_is_refused(whole: tuple[Path, Path], tmp_path: Path) -> None:
    _, index = whole
    for number, line in ((3, '{"id": "x", "text": "y"}'), (COUNT, None)):
        other = write_corpus(tmp_path / "other.jsonl")
        rows = other.read_text().splitlines(keepends=True)
        rows[number - 1 : number] = [f"{line}\n"] if line else []
        other.write_text("".join(rows))
        with pytest.raises(ConfigError, match=f"was begun with another corpus: its passage {number} is"):
            build(other, index)
    assert build(write_corpus(tmp_path / "same.jsonl"), index) == COUNT  # nothing is left to do


def test_what_it_says(whole: tuple[Path, Path], tmp_path: Path) -> None:
    corpus, _ = whole
    said = io.StringIO()
    build(corpus, tmp_path / "out", said)
    [line] = said.getvalue().splitlines()
    assert line.startswith("2,500 passages in ")
    assert line.endswith(" a second")
