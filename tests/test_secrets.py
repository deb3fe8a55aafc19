"""What is a secret, where it is refused, and that none is found in files, on boards, in processes, on the screen."""

from __future__ import annotations

import json
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentgrpo.cli.main import main
from agentgrpo.config.admission import refuse_secrets, refuse_variables_of_commands
from agentgrpo.core import secrets
from agentgrpo.core.durable import append_lines, write_atomic
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.secrets import found_under, guarded, keep, masked
from agentgrpo.records.seals import is_whole, signed
from tests.e2e.test_models import made

CANARY = "CANARY9f31secret"
URL = f"http://u:{CANARY}@127.0.0.1:9"
VARIABLE = "${oc.env:CANARY_PW}"

SECRETS: dict[str, tuple[str, Any]] = {
    "a password": ("url", URL),
    "a password of a proxy": ("url", f"socks5://u:{CANARY}@127.0.0.1:9"),
    "a password with / in it": ("url", f"http://u:pa/{CANARY}@host/x"),
    "a token in the place of a name": ("base_url", f"https://{CANARY}@host/v1"),
    "a password without a name": ("url", f"redis://:{CANARY}@host/0"),
    "the query": ("url", f"http://host/retrieve?key={CANARY}"),
    "the second parameter": ("url", f"http://host/retrieve?x=1&api_key={CANARY}"),
    "a parameter that only looks so": ("url", f"http://host/retrieve?x={CANARY}"),
    "a query without a name": ("url", f"http://host/retrieve?{CANARY}"),
    "the fragment": ("url", f"http://host/retrieve#token={CANARY}"),
    "the path": ("url", f"https://host/bot{CANARY}/send"),
    "one of several": ("urls", f"http://u:{CANARY}@host"),
    "a database": ("dsn", f"postgresql://u:{CANARY}@host/db"),
    "a database in words": ("dsn", f"host=h user=u password={CANARY}"),
    "a data set": ("questions", f"https://u:{CANARY}@host/q.jsonl"),
    "a data set with a query": ("corpus", f"hf://datasets/x/c.jsonl?token={CANARY}"),
    "a model": ("path", f"https://u:{CANARY}@hub/model"),
    "a model by a token": ("path", "hf_abcDEF123abcDEF123abcDEF123"),
    "an option of a list": ("command", ["python", "a.py", "--key", "hunter2"]),
    "an option": ("command", f"python a.py --key {CANARY}"),
    "an option with =": ("command", f"python a.py --api-token={CANARY}"),
    "a short option": ("command", f"python a.py -p {CANARY}"),
    "a login": ("command", "curl -u me:hunter2 http://host"),
    "a variable before the program": ("command", "env DB_PASSWORD=hunter2 python a.py"),
    "a header": ("command", "curl -H 'Authorization: Bearer abc.def-12345' http://host"),
    "JSON among the words": ("command", 'python a.py --config \'{"api_key": "hunter2-x"}\''),
    "a URL among the words": ("command", f"python a.py --db postgres://u:{CANARY}@h/d"),
    "a word that only looks so": ("command", f"python a.py {CANARY}"),
    "a header of a mapping": ("Authorization", f"Bearer {CANARY}"),
    "a header called otherwise": ("X-Api-Key", CANARY),
    "an argument of a user's own part": ("token", CANARY),
    "the key itself": ("api_key", CANARY),
    "the key itself, misspelt": ("api_kye", CANARY),
    "a password, misspelt": ("pasword", CANARY),
    "a key that a service has issued": ("user", "sk-proj-a1b2c3d4e5f6g7h8i9j0"),
    "a header in words": ("Authorization", "Bearer swordfish"),
    "a password in words": ("passwd", "sword fish"),
    "a key under any name": ("openai_key", CANARY),
    "a URL without a scheme": ("url", f"//u:{CANARY}@host/x"),
    "a host with a login": ("url", f"u:{CANARY}@host:80"),
    "one that stands in for a variable": ("url", f"http://u:${{oc.env:PW,{CANARY}}}@host"),
}
HARMLESS = {
    "a URL": ("url", "http://host:8000/retrieve?index=wiki-18-e5&top_k=3#part"),
    "a user of a database": ("dsn", "postgresql://user@host/database?application_name=mine"),
    "a port and an @": ("url", "http://host:8000/@user/x"),
    "a variable": ("url", "http://u:${oc.env:PW}@host/?key=${oc.env:KEY}"),
    "a variable's name from elsewhere": ("api_key_env", "${judge.completer.api_key_env}"),
    "a variable as a whole": ("token", "${oc.env:KEY}"),
    "names of columns": ("question_key", "query"),
    "limits": ("max_tokens", 4096),
    "a number under a name": ("token", 7),
    "a hub name": ("path", "Qwen/Qwen2.5-0.5B-Instruct"),
    "a commit": ("revision", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"),
    "an MCP server": ("command", "mcp-server-time --local-timezone UTC"),
    "options with numbers": (
        "command",
        "python a.py --max-tokens 9 --port {port} --token-file /run/key --sort-key=3",
    ),
    "a path": ("command", "/opt/env/bin/python -m my_env.server.app --dir /data/run1a2b3c4d5e6f7g8h9"),
    "a prompt": ("rubric", "Is the key of the answer there? Its password is never asked for."),
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_is_known_where_it_is_written(case: str) -> None:
    key, value = SECRETS[case]
    node = {"extra": {key: value}} if case.startswith("a header ") else {key: [value] if key == "urls" else value}
    with pytest.raises(ConfigError, match=r"^part\.[\w.-]+ holds a (password|key), which would end up in files; ") as e:
        refuse_secrets({"part": node})
    assert CANARY not in str(e.value)
    assert "hunter2" not in str(e.value)
    assert "environment variable" in str(e.value)


@pytest.mark.parametrize("case", HARMLESS)
def test_what_is_no_secret_is_taken(case: str) -> None:
    key, value = HARMLESS[case]
    assert list(found_under(key, value, is_command=key == "command")) == []
    refuse_secrets({"part": {key: value}})


def test_the_name_of_a_column_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_typed", set())
    secrets.keep_typed(["data", "check", "q.jsonl", "--question-key", "prompt", "--answers-key=solution"])
    secrets.keep_typed(["task.question_key=query.text", "task.id_key=row_number"])
    assert secrets._typed == set()
    secrets.keep_typed(["--api-key", "a1b2c3d4e5"])
    assert secrets._typed == {"a1b2c3d4e5"}


def test_a_refusal_says_how_a_secret_is_handed_over() -> None:
    node = {"name": "mcp", "command": ["python", "s.py", "--key", CANARY], "env": []}
    with pytest.raises(ConfigError, match=r"variable itself, which tools\.mcp\.env=\[NAME\] hands to it$"):
        refuse_secrets({"tools": {"mcp": {**node, "command": " ".join(node["command"])}}})
    with pytest.raises(ConfigError, match=r"or name the variable: judge\.completer\.api_key_env=NAME$"):
        refuse_secrets({"judge": {"completer": {"base_url": URL, "api_key_env": None}}})
    with pytest.raises(ConfigError, match=r"write '\$\{oc\.env:NAME\}' in its place$"):
        refuse_secrets({"retriever": {"url": URL}})


@pytest.mark.parametrize("held", [CANARY, "sk-proj-a1b2c3d4e5f6g7h8i9j0", "AKIAIOSFODNN7EXAMPLE", "s3cr3t", "a b"])
def test_a_key_in_the_place_of_a_variable_s_name_is_not_shown(held: str) -> None:
    with pytest.raises(ConfigError) as e:
        refuse_secrets({"judge": {"completer": {"api_key_env": held}}})
    assert "names no environment variable that is set" in str(e.value)
    assert held not in str(e.value)


def test_a_command_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN", "opensesame")
    steps = {
        "environment": {"command": "python a.py ${environment.settings.who}", "settings": {"who": "${oc.env:PLAIN}"}}
    }
    resolved = {"environment": {"command": "python a.py opensesame", "settings": {"who": "opensesame"}}}
    with pytest.raises(ConfigError, match=r"^environment\.command takes the value of PLAIN, and all users can list"):
        refuse_variables_of_commands(resolved, steps)
    refuse_variables_of_commands(
        {"environment": {"command": "python a.py", "x": "opensesame"}},
        {"environment": {"command": "python a.py", "x": "${oc.env:PLAIN}"}},
    )


def test_a_secret_is_masked_however_it_is_spelt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = 'p@ss/w"rd é 9'
    monkeypatch.setenv("MINE", odd)
    monkeypatch.setenv("DEPLOY_TOKEN", CANARY)
    monkeypatch.setenv("LINK", f"redis://:{CANARY}2@host")
    login = b64encode(f"u:{CANARY}3".encode()).decode()
    with guarded([f"retriever.url=http://u:{CANARY}3@host"]):
        keep("MINE")
        spelt = [odd, quote(odd), quote(odd, safe=""), json.dumps(odd), CANARY, f"{CANARY}2", f"{CANARY}3", login]
        print(*spelt, file=sys.stderr)
        print(masked(" ".join(spelt)))
        write_atomic(tmp_path / "a", "\n".join(spelt).encode())
        append_lines(tmp_path / "b", spelt)
        content = json.loads(signed({"said": spelt}))
    told = capsys.readouterr()
    for text in (told.out, told.err, (tmp_path / "a").read_text(), (tmp_path / "b").read_text(), json.dumps(content)):
        assert not [s for s in (*spelt, "CANARY") if s in text]
        assert (text.count("$MINE"), text.count("$DEPLOY_TOKEN"), text.count("***")) == (4, 1, 2)
    assert is_whole(content)
    assert masked(f"{odd} {CANARY}3") == f"{odd} $DEPLOY_TOKEN3"  # what a command line has named is forgotten with it


def test_short_words_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    monkeypatch.setenv("PRIMARY_KEY", "agentgrpo")
    assert masked("agentgrpo: EMPTY") == "agentgrpo: EMPTY"


# --- Whole command lines.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("llama", tmp_path_factory.mktemp("model") / "model")


QUIET = '''
class Quiet:
    def reset(self, **columns):
        return "go"

    def act(self, x: str) -> str:
        """Acts.

        Args:
            x: What.
        """
        return x
'''


@pytest.fixture
def base(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The settings of a run of one step, here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CANARY_PW", CANARY)
    rows = ({"id": f"q{i}", "question": f"What is {i}?", "answers": [str(i)]} for i in range(8))
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("c.jsonl").write_text('{"id": "d1", "text": "A is B."}\n')
    Path("fails.py").write_text("import os, sys\nprint(os.environ['CANARY_PW'], file=sys.stderr)\nsys.exit(3)\n")
    Path("quiet.py").write_text(QUIET)
    numbers = ["rollout.max_tokens=4", "rollout.tasks_per_step=1", "rollout.group_size=2", "run.max_steps=1"]
    quiet = ["run.final_eval=false", "run.eval_every=0", "hardware.threads=1", "run.log_with=[tensorboard]"]
    return ["experiment=none", "task.questions=q.jsonl", f"model.path={model}", "run.dir=run", *numbers, *quiet]


SEARCH = ["task.corpus=c.jsonl", "retriever=http", "retriever.retries=0"]
JUDGE = ["environment=quiet:Quiet", "reward=correctness", "judge=llm", "judge.completer.retries=0"]
HERE = "judge.completer.base_url=http://127.0.0.1:PORT/v1"
OPENENV = ["environment=openenv", "task=jsonl", "reward=environment"]
MCP = ["environment=tools", "tools=[mcp]", "reward=react"]
PROGRAM = ["environment=program", "reward=environment"]
TYPED = {
    "openenv": [*OPENENV, f"environment.url={URL}"],
    "openenv's query": [*OPENENV, f"environment.url='http://127.0.0.1:9/?key={CANARY}'"],
    "openenv's fragment": [*OPENENV, f"environment.url='http://127.0.0.1:9/#{CANARY}'"],
    "openenv's command": [*OPENENV, f"environment.command='python s.py --port {{port}} --secret {CANARY}'"],
    "retriever": [*SEARCH, f"retriever.url={URL}/retrieve"],
    "retriever's query": [*SEARCH, f"retriever.url='http://127.0.0.1:9/retrieve?token={CANARY}'"],
    "web": [*SEARCH, f"retriever.web_url='http://127.0.0.1:9/retrieve?api_key={CANARY}'"],
    "search of the web": [*SEARCH, "retriever.web=searxng", f"retriever.web.base_url={URL}"],
    "embedder": ["retriever=qdrant", "retriever.embedder=openai", f"retriever.embedder.base_url={URL}/v1"],
    "reranker": [*SEARCH, "environment/reranker=http", f"environment.reranker.url={URL}"],
    "qdrant": ["retriever=qdrant", f"retriever.url={URL}"],
    "postgresql": ["retriever=pgvector", f"retriever.dsn=postgresql://u:{CANARY}@127.0.0.1:9/db"],
    "judge": [*JUDGE, f"judge.completer.base_url={URL}/v1"],
    "judge's variable": [*JUDGE, f"judge.completer.api_key_env={CANARY}"],
    "judge's key": [*JUDGE, f"+judge.completer.api_key={CANARY}"],
    "judge's key, misspelt": [*JUDGE, f"judge.completer.api_kye={CANARY}"],
    "judge's fields": [*JUDGE, f"+judge.completer.extra.token={CANARY}"],
    "program": [*PROGRAM, f"environment.command='python fails.py --key {CANARY}'"],
    "program's variables": [*PROGRAM, f"environment.command='env KEY={CANARY} python fails.py'"],
    "own environment": ["environment=quiet:Quiet", f"environment.settings.password={CANARY}"],
    "mcp": [*MCP, f"tools.mcp.url={URL}/mcp"],
    "mcp's command": [*MCP, f"tools.mcp.command='python fails.py --token {CANARY}'"],
    "mcp's list": [*MCP, f"tools.mcp.command=[python,fails.py,--token,{CANARY}]"],
    "mcp's variables": [*MCP, "tools.mcp.command='python fails.py'", f"tools.mcp.env=[{CANARY}]"],
    "mcp's header": [*MCP, f"+tools.mcp.headers={{Authorization: 'Bearer {CANARY}'}}"],
    "servers": [*JUDGE, "engine=vllm", f"engine.urls=['http://127.0.0.1:8','{URL}']"],
    "endpoint": ["engine=openai", f"engine.base_url={URL}/v1"],
    "questions": [f"task.questions=https://u:{CANARY}@127.0.0.1:9/q.jsonl"],
    "documents": [f"task.corpus='https://127.0.0.1:9/c.jsonl?token={CANARY}'"],
    "model": [f"model.path=https://u:{CANARY}@127.0.0.1:9/model"],
    "boards": [f"+run.wandb_api_key={CANARY}"],
    "no such key": [f"retriver.url={URL}"],
    "no such type": [f"run.max_steps={URL}"],
    "no such preset": [f"judge={URL}"],
    "no override": [f"--api-key {CANARY}"],
    "no flag": ["--token", CANARY],
    "stray": ["run.seed=1", f"{URL} x"],
    "sweep": ["-m", f"retriever.url={URL},http://127.0.0.1:9", "retriever=http"],
    "sweep beside": ["-m", "run.seed=0,1", f"+judge.key_token={CANARY}"],
    "Hydra's folder": [
        f"hydra.output_subdir={CANARY}",
        f"environment.command='x --key {CANARY}'",
        "hydra.job.chdir=false",
    ],
}


@pytest.mark.parametrize("place", TYPED)
def test_a_secret_that_is_typed_is_refused_and_found_nowhere(
    place: str, base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *base, *TYPED[place]]) == 2
    told = capfd.readouterr()
    assert CANARY not in told.out + told.err, told
    assert holding(tmp_path) == []


def holding(folder: Path) -> list[str]:
    """Files and folders below it that hold the canary, in their names too, plain or as a login."""
    spelt = [CANARY.encode(), b64encode(f"u:{CANARY}".encode())]
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return [str(p) for p in paths if CANARY in p.name or (p.is_file() and any(s in p.read_bytes() for s in spelt))]


class Quoting(BaseHTTPRequestHandler):
    """Refuses, and quotes all of the request."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = f"{self.requestline} {dict(self.headers)} {body!r}".encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """To nobody."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Quoting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


NAMED = {
    "openenv": (8, [*OPENENV, f"environment.url='http://u:{VARIABLE}@127.0.0.1:PORT/?q={VARIABLE}'"]),
    "retriever": (8, [*SEARCH, f"retriever.url='http://u:{VARIABLE}@127.0.0.1:PORT/retrieve?q={VARIABLE}'"]),
    "retriever's path": (8, [*SEARCH, f"retriever.url='http://127.0.0.1:PORT/{VARIABLE}/retrieve'"]),
    "broken": (2, [*SEARCH, f"retriever.url='http://u:{VARIABLE}/@127.0.0.1:PORT/retrieve'"]),
    "judge": (8, [*JUDGE, f"judge.completer.base_url='http://u:{VARIABLE}@127.0.0.1:PORT/v1'"]),
    "judge's key": (8, [*JUDGE, HERE, "judge.completer.api_key_env=CANARY_PW"]),
    "judge's fields": (8, [*JUDGE, HERE, f"+judge.completer.extra.token='{VARIABLE}'"]),
    "mcp": (2, [*MCP, f"tools.mcp.url='http://u:{VARIABLE}@127.0.0.1:PORT/mcp?q={VARIABLE}'"]),
    "mcp's program": (2, [*MCP, "tools.mcp.command='python fails.py'", "tools.mcp.env=[CANARY_PW]"]),
    "mcp's command": (2, [*MCP, f"tools.mcp.command='python fails.py {VARIABLE}'"]),
    "qdrant": (2, ["retriever=qdrant", f"retriever.url='http://u:{VARIABLE}@127.0.0.1:PORT'"]),
}


@pytest.mark.parametrize("place", NAMED)
def test_a_secret_of_the_environment_is_found_nowhere(
    place: str, base: list[str], port: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, words = NAMED[place]
    assert main(["train", *base, *(word.replace("PORT", str(port)) for word in words)]) == code
    told = capfd.readouterr()
    assert CANARY not in told.out + told.err, told
    assert holding(tmp_path) == []


def test_a_resolved_configuration_is_shown_without_it(base: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *base, *SEARCH, f"retriever.url='http://h/{VARIABLE}'", "--cfg", "job", "--resolve"]) == 0
    assert ("url: http://h/$CANARY_PW" in (told := capfd.readouterr()).out, CANARY in told.out + told.err) == (
        True,
        False,
    )


LISTS = """
import glob, os, sys
held = os.environ["CANARY_PW"].encode()
words = [open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/cmdline")]
open(os.environ["SEEN"], "a").write(f"{len(words)} {sum(held in word for word in words)}\\n")
sys.exit(3)
"""


def test_a_program_reads_a_variable_that_no_process_has_among_its_words(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("lists.py").write_text(LISTS)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    assert main(["train", *base, *MCP, "tools.mcp.command='python lists.py'", "tools.mcp.env=[CANARY_PW,SEEN]"]) == 2
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert seen
    assert all(int(processes) > 1 and held == "0" for processes, held in seen)
    assert CANARY not in "".join(capfd.readouterr())
    assert holding(tmp_path) == []


def test_arguments_of_a_package_are_no_words_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentgrpo.environments.verifiers.process import rows

    seen = tmp_path / "seen"
    stand_in = tmp_path / "python"
    stand_in.write_text(f'#!/bin/sh\necho "$0 $@" > {seen}\necho "$AGENTGRPO_ARGUMENTS"\n')
    stand_in.chmod(0o755)
    assert rows("mine", {"api_key": CANARY}, str(stand_in)) == {"api_key": CANARY}
    assert seen.read_text().strip().endswith(" mine")
    assert CANARY not in seen.read_text()


@pytest.mark.parametrize("nothing", ["null", "none", "''", "true"])
def test_a_key_that_is_left_out_is_no_secret(nothing: str) -> None:
    record = '{"error":null,"done":true,"why":"none"}'
    with guarded([f"engine.api_key_env={nothing}"]):
        assert masked(record) == record


@pytest.mark.parametrize("name", ["PWD", "OLDPWD"])
def test_the_directory_of_a_shell_is_no_password(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/home/mara/a-project")
    monkeypatch.setenv("DB_PWD", "/home/mara/b-project")
    told = "file:///home/mara/a-project/view.html, /home/mara/b-project"
    assert masked(told) == "file:///home/mara/a-project/view.html, $DB_PWD"
