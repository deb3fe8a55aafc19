"""A model of the hub that is not in its cache: downloaded where there is a network, else refused in a line that helps.

The hub is a small server on this machine, which the real library asks.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.loading import fetched_folder, local_folder
from tests.engines import tiny

COMMIT = "c" * 40
NAME = "me/tiny"


class Hub(ThreadingHTTPServer):
    """Has one model, NAME: `files`. refusal: what it says of all others."""

    def __init__(self, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.asked, self.refusal = files, list[str](), "RepoNotFound"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        files = sorted(self.server.files.iterdir())
        if path == f"/api/models/{NAME}/revision/main":
            self._say(json.dumps({"id": NAME, "modelId": NAME, "sha": COMMIT, "tags": [], "siblings": []}).encode())
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _hash(f)} for f in files]
            self._say(json.dumps(tree).encode())
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            file = self.server.files / path.rpartition("/")[2]
            self._say(file.read_bytes(), {"ETag": f'"{_hash(file)}"', "X-Repo-Commit": COMMIT})
        elif path.startswith(f"/api/models/{NAME}/"):
            self._say(b"{}", {"X-Error-Code": "RevisionNotFound"}, status=404)
        else:
            status = 403 if self.server.refusal == "GatedRepo" else 404
            self._say(b"{}", {"X-Error-Code": self.server.refusal}, status=status)

    do_HEAD = do_GET

    def _say(self, body: bytes, headers: Mapping[str, str] = MappingProxyType({}), *, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _hash(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = tmp_path / "published"
    tiny.model().save_pretrained(files)
    tiny.tokenizer().save_pretrained(files)
    (files / "pytorch_model.bin").write_bytes(b"a pickle")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with Hub(files) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub
        hub.shutdown()


def test_it_is_downloaded_once_without_what_nothing_loads(hub: Hub) -> None:
    told: list[str] = []
    folder = fetched_folder(NAME, tell=told.append)
    assert {f.name for f in folder.iterdir()} == {f.name for f in hub.files.iterdir()} - {"pytorch_model.bin"}
    assert (folder / "model.safetensors").read_bytes() == (hub.files / "model.safetensors").read_bytes()
    assert told == [
        f"note: {NAME} is no folder, nor is all of it in the hub's cache; downloading it from {hub.url}: minutes, once"
    ]
    before = len(hub.asked)
    assert fetched_folder(NAME, tell=told.append) == local_folder(NAME) == folder
    assert (len(told), len(hub.asked)) == (1, before)
    (folder / "model.safetensors").unlink()  # as where only its tokenizer was ever loaded
    assert fetched_folder(NAME, tell=told.append) == folder
    assert (folder / "model.safetensors").is_file()
    assert len(told) == 2


def test_what_is_whole_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetched_folder(NAME, tell=lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (folder / "generation_config.json").unlink()
    assert fetched_folder(NAME, tell=lambda _: None) == local_folder(NAME) == folder
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors", "b": "other"}}')
    with pytest.raises(ConfigError, match="does not hold it whole, and HF_HUB_OFFLINE forbids to ask the hub for it"):
        fetched_folder(NAME, tell=lambda _: None)
    assert local_folder(NAME) == folder


NOT_THERE = "there is no such folder, the hub's cache does not hold it whole, and "
DOWNLOAD = "; download it where there is a network (hf download me/other), or give a folder: model.path=FOLDER"
NO_NAME = "no such folder, and not the name of a model of the hub; give a folder with config.json"
REFUSALS = {
    "model.path=./nofolder": NO_NAME,
    "model.path=Qwen/Qwen2.5-0.5B/extra": NO_NAME,
    "model.path=me/other": NOT_THERE + "the hub shows no model of that name; give a folder or a name that it has",
    "model.path=me/gated": NOT_THERE + "the hub gives it only to those who have accepted its terms; do so at http",
    "model.revision=v9": NOT_THERE + "the model on the hub has no such revision; give one that it has",
}


@pytest.fixture
def questions(hub: Hub) -> list[str]:
    rows = [{"id": s, "question": f"Who {s}?", "answers": ["I"], "split": s} for s in ("train", "dev", "test")]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("c.jsonl").write_text('{"id": "p", "text": "I."}\n')
    return ["experiment=none", "task.questions=q.jsonl", "task.corpus=c.jsonl", "run.dir=r", f"model.path={NAME}"]


@pytest.mark.parametrize("given", REFUSALS)
def test_what_cannot_be_had_is_one_line(
    given: str, hub: Hub, questions: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusal = "GatedRepo" if "gated" in given else "RepoNotFound"
    capsys.readouterr()
    assert main(["train", *questions, given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentgrpo: model.path=")
    assert given.partition("=")[2] in error
    assert REFUSALS[given] in error
    assert error.count("\n") == 1
    assert not Path("r").exists()


@pytest.mark.parametrize("is_offline", [True, False])
def test_without_a_network(
    is_offline: bool,
    hub: Hub,
    questions: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    capsys.readouterr()
    assert main(["train", *questions, "model.path=me/other"]) == 2
    error = capsys.readouterr().err
    why = "HF_HUB_OFFLINE forbids to ask the hub for it" if is_offline else "the hub did not give it ("
    assert error.startswith(f"agentgrpo: model.path=me/other: {NOT_THERE}{why}")
    assert error.endswith(DOWNLOAD + "\n")
    assert error.count("\n") == 1
    assert hub.asked == []
