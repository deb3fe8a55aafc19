"""An index in a folder: built through interruptions, searched by memory map, refused where it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Passage
from agentgrpo.retrieval import faiss_index
from agentgrpo.retrieval.bm25 import Bm25Backend
from agentgrpo.retrieval.corpus import searchable_text
from agentgrpo.retrieval.dense import DenseBackend
from agentgrpo.retrieval.embedder import HashingEmbedder
from agentgrpo.retrieval.fused import FusedBackend
from agentgrpo.retrieval.index import building
from agentgrpo.retrieval.index.passages import PassageFile
from tests.retrieval.stores import HASHING, corpus, ids, index, questions, recall, refusal, rows_of
from tests.thorough import siblings

NODE = {"name": "faiss_index", "embedder": HASHING}
FILES = ("begun.json", "embedder.json", "faiss.index", "index.json", "passages.jsonl", "passages.offsets")
BLOCK = 256


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (building, faiss_index):
        monkeypatch.setattr(module, "BLOCK", BLOCK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "whole"
    index(NODE, corpus(), path)
    return path


def embedder() -> HashingEmbedder:
    return HashingEmbedder(dim=64, texts=map(searchable_text, corpus()))


def test_a_folder_finds_what_an_index_in_memory_finds(folder: Path) -> None:
    found = rows_of({**NODE, "path": str(folder)}, questions(200))
    wanted = DenseBackend(corpus(), embedder=embedder()).search_batch(questions(200), 10)
    for row, expected in zip(found, wanted, strict=True):
        assert [p.score for p in row] == pytest.approx([p.score for p in expected], abs=2e-6)
    same = [a == b for a, b in zip(ids(found), ids(wanted), strict=True)]
    assert sum(same) >= 195  # the others differ in the order of scores that are equal but for float noise


def test_twins_keep_the_order_of_the_corpus(folder: Path) -> None:
    twin = next(
        p for p in corpus() if p.id.endswith("-again") and p.id.removesuffix("-again") in {q.id for q in corpus()}
    )
    [row] = rows_of({**NODE, "path": str(folder)}, [twin.text], top_k=2)
    assert [p.id for p in row] == [twin.id.removesuffix("-again"), twin.id]
    assert row[0].score == row[1].score


def test_a_row_does_not_depend_on_what_else_is_asked(folder: Path) -> None:
    node = {**NODE, "path": str(folder)}
    assert rows_of(node, questions(100)) == [rows_of(node, [question])[0] for question in questions(100)]


def test_many_at_once_are_one_product_with_the_same_rows(tmp_path: Path) -> None:
    node = {"name": "faiss_index", "embedder": {"name": "hashing", "dim": 256}}
    index(node, corpus(), tmp_path / "wide")
    node["path"] = str(tmp_path / "wide")
    together = rows_of(node, questions(64))
    assert 256 < faiss.cvar.distance_compute_blas_threshold <= 64 * 256
    assert together == [rows_of(node, [question])[0] for question in questions(64)]


def test_the_flat_file_is_byte_for_byte_what_faiss_writes(folder: Path, tmp_path: Path) -> None:
    flat = faiss.IndexFlatIP(64)
    flat.add(embedder().embed([searchable_text(p) for p in corpus()]))
    faiss.write_index(flat, str(tmp_path / "faiss.index"))
    assert (folder / "faiss.index").read_bytes() == (tmp_path / "faiss.index").read_bytes()


def test_passages_come_back_as_they_went_in(folder: Path, tmp_path: Path) -> None:
    assert list(PassageFile.in_folder(folder)) == list(corpus())
    odd = [
        Passage(id="a", text='"Not a title"\nbut text', title="T\n", url="u"),
        Passage(id="b", text="a line\u2028break and\r\nanother", title='"'),
        Passage(id="c", text="\ud800 ß \0"),
    ]
    index(NODE, odd, tmp_path / "odd")
    found = PassageFile.in_folder(tmp_path / "odd")
    assert found[:] == [*odd[:2], Passage(id="c", text="\ufffd ß \0")]
    assert found[1] == odd[1]


def test_words_and_meaning_together(tmp_path: Path) -> None:
    node = {**NODE, "mode": "fused"}
    index(node, corpus(), tmp_path / "fused")
    parts = [VectorsOnly(tmp_path / "fused"), Bm25Backend(corpus())]
    wanted = FusedBackend(parts).search_batch(questions(100), 10)
    assert rows_of({**node, "path": str(tmp_path / "fused")}, questions(100)) == wanted


def test_words_cut_otherwise_are_refused(tmp_path: Path) -> None:
    node = {**NODE, "mode": "fused"}
    for built, given in (("english", "german"), ("english", None), (None, "english")):
        path = tmp_path / str(built)
        index({**node, "stemmer": built}, corpus()[:50], path)
        said = refusal({**node, "stemmer": given, "path": str(path)})
        assert said == (
            f"ConfigError: {path}/words was built with stemmer {built}, and retriever.stemmer is {given}; give "
            f"retriever.stemmer={built or 'null'}, or build the index again"
        )
        assert refusal({**node, "stemmer": built, "path": str(path)}) == ""


class VectorsOnly:
    def __init__(self, path: Path) -> None:
        self._node = {**NODE, "path": str(path)}

    def search_batch(self, queries, top_k):  # type: ignore[no-untyped-def]
        return rows_of(self._node, queries, top_k)


# --- interruptions


class Killed(Exception):
    pass


STEPS = ("stored 500", "stored 1500", "read 256", "read 1500", "embedded 256", "embedded 1500", "words 1500")


@pytest.mark.parametrize("step", siblings(STEPS, quick=3))
def test_a_build_that_ends_anywhere_goes_on_to_the_same_index(step: str, folder: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop(what: str, done: int, _: int) -> None:
        seen.append(f"{what} {done}")
        if seen[-1] == step:
            raise Killed

    node = {**NODE, "mode": "fused"}
    with pytest.raises(Killed):
        index(node, corpus(), tmp_path / "x", progress=stop)
    assert not (tmp_path / "x" / "index.json").exists()
    assert "is not finished; go on with the same command" in refusal({**node, "path": str(tmp_path / "x")})
    again: list[str] = []
    index(node, corpus(), tmp_path / "x", progress=lambda what, done, _: again.append(f"{what} {done}"))
    twice = {*seen} & {*again}
    assert {word.split()[0] for word in twice} <= {"read"}  # what the embedder learns it learns in one go
    same = [name for name in FILES if name != "begun.json"]
    assert [(tmp_path / "x" / f).read_bytes() == (folder / f).read_bytes() for f in same] == [True] * len(same)
    assert rows_of({**node, "path": str(tmp_path / "x")}, questions(20))[0]


KILL = """
import os, signal, sys
from pathlib import Path
from agentgrpo.retrieval import faiss_index
from agentgrpo.retrieval.index import building
building.BLOCK = faiss_index.BLOCK = 256
from tests.retrieval.stores import corpus, index
from tests.retrieval.test_index_folder import NODE

class Torn:
    def __init__(self, sink): self.sink = sink
    def __getattr__(self, name): return getattr(self.sink, name)
    def add(self, start, passages, vectors):
        if start < 768:
            return self.sink.add(start, passages, vectors)
        with self.sink._part.open("ab") as file:  # half a block, and half a vector
            file.write(vectors.tobytes()[: 64 * 4 * 100 + 7])
        os.kill(os.getpid(), signal.SIGKILL)

made = faiss_index.FaissSink
faiss_index.FaissSink = lambda *a, **k: Torn(made(*a, **k))
index(NODE, corpus(), Path(sys.argv[1]))
"""


def test_a_kill_in_the_middle_of_a_write(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILL, str(tmp_path / "x")], cwd=Path.cwd(), check=False)
    assert done.returncode == -9
    assert (tmp_path / "x" / "vectors.part").stat().st_size == 45 + 64 * 4 * (768 + 100) + 7
    index(NODE, corpus(), tmp_path / "x")
    assert [(tmp_path / "x" / f).read_bytes() == (folder / f).read_bytes() for f in FILES] == [True] * len(FILES)


def test_a_torn_line_is_written_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    indexer = build_node("indexer", NODE, out=path)
    indexer.add(corpus()[:700])
    with (path / "passages.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    with (path / "passages.offsets").open("ab") as file:
        file.write(b"\1\2\3")
    assert index(NODE, corpus(), path).count == len(corpus())
    assert [(path / f).read_bytes() == (folder / f).read_bytes() for f in FILES] == [True] * len(FILES)


def test_a_corpus_that_grew_after_a_kill_before_the_last_step(tmp_path: Path) -> None:
    path = tmp_path / "x"
    index(NODE, corpus()[:300], path)
    (path / "index.json").unlink()
    index(NODE, corpus()[:600], path)
    assert faiss.read_index(str(path / "faiss.index")).ntotal == 600
    assert refusal({**NODE, "path": str(path)}) == ""
    index(NODE, corpus()[:600], tmp_path / "whole")
    assert {f: (path / f).read_bytes() for f in FILES} == {f: (tmp_path / "whole" / f).read_bytes() for f in FILES}


def test_a_corpus_that_grew_after_a_kill_is_embedded_by_what_is_learnt_of_all(tmp_path: Path) -> None:
    """The idf of the first 600 passages is not that of 900."""

    def stop(what: str, done: int, _: int) -> None:
        if (what, done) == ("embedded", 2 * BLOCK):
            raise Killed

    path = tmp_path / "x"
    with pytest.raises(Killed):
        index(NODE, corpus()[:600], path, progress=stop)
    assert (path / "vectors.part").stat().st_size == 45 + 64 * 4 * 2 * BLOCK
    index(NODE, corpus()[:900], path)
    index(NODE, corpus()[:900], tmp_path / "whole")
    assert {f: (path / f).read_bytes() for f in FILES} == {f: (tmp_path / "whole" / f).read_bytes() for f in FILES}


def test_what_an_embedder_has_learnt_is_written_in_one_order() -> None:
    """In processes that hash otherwise, and so have sets in other orders."""
    program = (
        "import json; from agentgrpo.retrieval.embedder import HashingEmbedder; "
        "print(json.dumps(HashingEmbedder(dim=8, texts=['the sea by the town', 'a town of seven hills']).state()))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert [list(json.loads(text)["df"]) for text in said] == [
        ["a", "by", "hills", "of", "sea", "seven", "the", "town"]
    ]


def test_building_again_changes_nothing(folder: Path) -> None:
    before = {f: ((folder / f).read_bytes(), (folder / f).stat().st_mtime_ns) for f in FILES[:3]}
    assert index(NODE, corpus(), folder).count == len(corpus())
    assert {f: ((folder / f).read_bytes(), (folder / f).stat().st_mtime_ns) for f in FILES[:3]} == before


def test_a_corpus_that_has_changed_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    build_node("indexer", NODE, out=path).add(corpus()[:700])
    other = [*corpus()[:600], Passage(id="new", text="something else"), *corpus()[601:]]
    with pytest.raises(ConfigError) as e:
        index(NODE, other, path)
    assert str(e.value) == (
        f"{path} was begun with another corpus: its passage 601 is {corpus()[600].id!r}, and the corpus has 'new' "
        "there; give the corpus as it was, or another --out"
    )
    with pytest.raises(ConfigError, match=r"its passage 301 is .*, and the corpus ends there"):
        index(NODE, corpus()[:300], path)
    with pytest.raises(ConfigError, match="was begun with embedder hashing dim=64, not hashing dim=128; set"):
        index({**NODE, "embedder": {"name": "hashing", "dim": 128}}, corpus(), path)
    with pytest.raises(ConfigError, match="was begun with index flat, not hnsw"):
        index({**NODE, "index": "hnsw"}, corpus(), path)
    assert index(NODE, corpus(), path).count == len(corpus())
    with pytest.raises(ConfigError, match=f"is an index of {len(corpus())} passages, and the corpus has more"):
        index(NODE, [*corpus(), Passage(id="more", text="more")], path)


def test_what_is_no_corpus_and_what_is_no_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an index of no passages"):
        index(NODE, [], tmp_path / "none")
    twice = [*corpus()[:5], corpus()[2]]
    with pytest.raises(DataError, match=f"passages 3 and 6 of the corpus have one id, {corpus()[2].id!r}"):
        index(NODE, twice, tmp_path / "twice")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files and no index"):
        index(NODE, corpus(), tmp_path / "mine")


# --- what is refused when it is opened


def test_refusals_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    at = {**NODE, "path": str(folder)}
    build = "agentgrpo index --corpus FILE --out"
    assert refusal(at) == ""
    assert (
        refusal({**at, "path": "no/where"})
        == f"ConfigError: the index no/where is not there; build it: {build} no/where"
    )
    assert refusal({**at, "index": "ivf"}) == (
        f"ConfigError: {folder} holds the index flat, not ivf; give retriever.index=flat"
    )
    assert refusal({**at, "embedder": {"name": "hashing", "dim": 72}}) == (
        f"ConfigError: {folder} was built by the embedder hashing dim=64, and retriever.embedder is hashing dim=72; "
        "set it as it was, or build the index again"
    )
    assert "has no word index, which retriever.mode=fused needs" in refusal({**at, "mode": "fused"})
    for name, content, said in (
        ("index.json", b"{", "cannot be read"),
        ("index.json", b'{"format": 9}', "is of format 9; this release reads format 1"),
        ("index.json", b'{"format": 1}', "is damaged (KeyError: 'kind')"),
        ("faiss.index", b"nonsense", "is no FAISS index"),
    ):
        damaged = tmp_path / f"{name}-{said[:12]}"
        damaged.mkdir()
        for file in FILES:
            (damaged / file).write_bytes(content if file == name else (folder / file).read_bytes())
        assert said in refusal({**at, "path": str(damaged)})
    for missing in ("passages.jsonl", "faiss.index", "embedder.json"):
        path = tmp_path / f"without-{missing}"
        path.mkdir()
        for file in FILES:
            if file != missing:
                (path / file).write_bytes((folder / file).read_bytes())
        said = refusal({**at, "path": str(path)})
        assert said.startswith("ConfigError: ")
        assert missing in said
        assert "agentgrpo index" in said
        assert "\n" not in said


def test_keys_are_checked_when_it_is_built() -> None:
    for wrong, said in (
        ({}, "retriever.path has no value"),
        ({"path": "x", "index": "hnws"}, r"retriever.index=hnws; allowed are flat, hnsw, ivf. Did you mean 'hnsw'\?"),
        ({"path": "x", "mode": "words"}, "retriever.mode='words'; allowed are dense and fused"),
        ({"path": "x", "probes": 0}, "retriever.probes=0; 1 or more is allowed"),
        ({"path": "x", "corpus": "y", "mode": "fused"}, "a published index has no words: mode=dense"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_node("retriever", {**NODE, **wrong})


# --- files that others publish


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Path]:
    """Written here after the form of Search-R1's e5_Flat.index and wiki-18.jsonl; the vectors are hashed ones."""
    flat = faiss.IndexFlatIP(64)
    flat.add(HashingEmbedder(dim=64).embed([f'"{p.id}"\n{p.text}' for p in corpus()]))
    faiss.write_index(flat, str(tmp_path / "e5_Flat.index"))
    rows = [{"id": str(i), "contents": f'"{p.id}"\n{p.text}'} for i, p in enumerate(corpus())]
    (tmp_path / "wiki-18.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "e5_Flat.index", tmp_path / "wiki-18.jsonl"


def test_a_published_pair_is_read_as_it_is(published: tuple[Path, Path]) -> None:
    path, passages = published
    node = {**NODE, "path": str(path), "corpus": str(passages)}
    for _ in range(2):  # the second time with the offsets that the first one kept
        [[first]] = rows_of(node, [f'"{corpus()[700].id}"\n{corpus()[700].text}'], top_k=1)
        assert first == Passage(id="700", title=corpus()[700].id, text=corpus()[700].text, score=1.0)
    assert len([p for p in passages.parent.iterdir() if p.suffix == ".offsets"]) == 1


def test_a_pair_that_does_not_fit(published: tuple[Path, Path], tmp_path: Path) -> None:
    path, passages = published
    node = {**NODE, "path": str(path), "corpus": str(passages)}
    (tmp_path / "short.jsonl").write_bytes(b"".join(passages.read_bytes().splitlines(keepends=True)[:9]))
    assert f"holds {len(corpus())} vectors, and its corpus 9 passages" in refusal(
        {**node, "corpus": str(tmp_path / "short.jsonl")}
    )
    assert "is not a file; give the JSON lines file" in refusal({**node, "corpus": str(tmp_path / "none.jsonl")})
    assert "is not a file; build it with agentgrpo index" in refusal({**node, "path": str(tmp_path / "none.index")})
    assert "holds vectors of 64 numbers, and retriever.embedder gives 72" in refusal(
        {**node, "embedder": {"name": "hashing", "dim": 72}}
    )
    faiss.write_index(faiss.IndexFlatL2(64), str(tmp_path / "l2.index"))
    assert "compares by distance" in refusal({**node, "path": str(tmp_path / "l2.index")})


# --- approximate indexes


@pytest.mark.parametrize(("kind", "least"), [("hnsw", 0.97), ("ivf", 0.6)])
def test_approximate_indexes_find_most(kind: str, least: float, folder: Path, tmp_path: Path) -> None:
    node = {**NODE, "index": kind, "probes": 8}
    index({k: v for k, v in node.items() if k != "probes"}, corpus(), tmp_path / kind)
    exact = rows_of({**NODE, "path": str(folder)}, questions(200))
    found = rows_of({**node, "path": str(tmp_path / kind)}, questions(200))
    assert recall(exact, found) >= least
    assert not (tmp_path / kind / "vectors.part").exists()


def test_vectors_are_read_by_memory_map(tmp_path: Path) -> None:
    big = faiss.IndexFlatIP(512)
    big.add(np.ones((40_000, 512), np.float32))
    faiss.write_index(big, str(tmp_path / "big.index"))
    program = """
import re, sys
from pathlib import Path
import faiss
from agentgrpo.retrieval.index.faiss_file import FaissStore
from agentgrpo.retrieval.index.manifest import Shape
anonymous = lambda: int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = anonymous()
store = FaissStore(Path(sys.argv[1]), range(40_000), Shape(index="flat"))
print(anonymous() - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "big.index")], capture_output=True, text=True, check=True
    )
    assert int(grown.stdout) < 8_000 < (tmp_path / "big.index").stat().st_size // 1024
