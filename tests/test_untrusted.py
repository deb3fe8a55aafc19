"""What others wrote is read in bounded time, and refused in one line where it cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from agentgrpo.cli.main import main
from agentgrpo.core.errors import DataError
from agentgrpo.core.untrusted import (
    read_body,
    refuse_endless,
    refuse_links_out,
    refuse_special_files,
    unframed,
    visible,
)
from tests.hostile import WAYS
from tests.run_folders import folder

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text("run: {dir: x}\n")
    return folder


def test_the_joiners_of_scripts_stay_and_what_hides_goes() -> None:
    assert visible("می\u200cخواهم 👩\u200d🚀 a\tb\nc") == "می\u200cخواهم 👩\u200d🚀 a\tb\nc"
    assert visible("a\u202eb\u2066c\u200bd\ufeffe\U000e0061f\x1b[31mg\x00h") == "abcdefgh"


def test_only_tags_of_that_name_are_written_out() -> None:
    text = "<answer> </Answer > < / answer><answers> <answer-key> a<answer b </answer/>"
    assert unframed(text, ["answer"]) == (
        "&lt;answer> &lt;/Answer > &lt; / answer><answers> <answer-key> a&lt;answer b &lt;/answer/>"
    )


def test_a_bomb_of_aliases_is_refused_in_no_time() -> None:
    refuse_endless(yaml.safe_load("a: &a [1, 2]\nb: [*a, *a]\n"), "config.yaml")
    with pytest.raises(DataError, match=r"^config\.yaml has more than 100000 values, aliases written out"):
        refuse_endless(yaml.safe_load(BOMB), "config.yaml")
    with pytest.raises(DataError, match="more than 100000 values"):
        refuse_endless(yaml.safe_load("&a [*a]"), "x")


@pytest.mark.parametrize(
    "verb", [["show"], ["resume"], ["view"], ["replay", "--step", "0"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize("what", ["aliases", "pipe", "config is a pipe", "device"])
def test_a_run_directory_that_would_never_end_is_one_line(
    run: Path, verb: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "aliases":
        (run / "config.yaml").write_text(BOMB)
        told = f"{run / 'config.yaml'} has more than 100000 values"
    elif what == "pipe":
        os.mkfifo(run / "trajectories" / "train-000000.jsonl")
        told = f"{run / 'trajectories' / 'train-000000.jsonl'} is a named pipe"
    elif what == "config is a pipe":
        (run / "config.yaml").unlink()
        os.mkfifo(run / "config.yaml")
        told = f"{run / 'config.yaml'} is a named pipe"
    else:
        (run / "metrics.jsonl").symlink_to("/dev/zero")
        told = f"{run / 'metrics.jsonl'} is a device"
    is_shown = (verb, what) == (["view"], "aliases")  # its page can do without a configuration, and says so
    assert (main([verb[0], str(run), *verb[1:]]) == 0) == is_shown
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if is_shown else 1)
    assert all(told in line for line in lines)


def test_a_run_that_goes_on_writes_through_no_link_out_of_its_directory(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    (run / "within").symlink_to("config.yaml")
    refuse_links_out(run)
    (run / "metrics.jsonl").symlink_to("../mine")
    assert main(["resume", str(run)]) == 2
    assert capsys.readouterr().err.startswith(f"agentgrpo: {run / 'metrics.jsonl'} leads out of {run}, ")
    assert (tmp_path / "mine").read_text() == "x"


def test_links_to_files_and_links_that_lead_nowhere_are_no_special_files(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x")
    (run / "link").symlink_to(tmp_path / "elsewhere")
    (run / "nowhere").symlink_to(tmp_path / "gone")
    refuse_special_files(run)
    os.mkfifo(tmp_path / "gone")
    with pytest.raises(DataError):
        refuse_special_files(run)


@pytest.mark.parametrize("file", ["config.yaml", "metrics.jsonl", "environment.json", "eval.json"])
def test_whatever_a_file_of_a_run_holds_it_is_shown_or_refused(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files and verbs: tests/e2e/test_hostile.py."""
    for number, (name, way) in enumerate(WAYS.items()):
        run = folder(tmp_path / str(number), metrics=[{"step": 0, "reward/mean": 0.5}], environment={}, evaluation={})
        way(run / file)
        code = main(["show", str(run)])
        lines = capsys.readouterr().err.splitlines()
        assert code == 0 or (code == 2 and lines[-1].startswith("agentgrpo: ")), (name, lines)


@pytest.mark.parametrize("filler", [b"[],", b"{},", b"0,"])
def test_a_body_of_more_values_than_any_request_has_is_refused_unread(filler: bytes) -> None:
    with pytest.raises(ValueError, match=r"^more than 1048576 values$"):
        read_body(b"[" + filler * 2**20 + b"0]")


UTF_16 = '"\u00e9"'.encode("utf-16")


@pytest.mark.parametrize(
    "body", [b'{"a": [1, 2.5, null, true, "\\u00e9\\n", {}], "b": -1e3}', b'"x"', b"\xef\xbb\xbf[]", UTF_16]
)
def test_a_body_is_read_as_json_reads_it(body: bytes) -> None:
    assert read_body(body) == json.loads(body)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": }', b"nul", b"\xff", b'{"a": 1} 2'])
def test_what_is_no_json_is_refused_as_json_does(body: bytes) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        json.loads(body)
    with pytest.raises(type(refused.value)) as ours:
        read_body(body)
    assert str(ours.value) == str(refused.value)


def test_a_long_text_is_made_visible_wherever_a_sequence_stands() -> None:
    for filler in range(2**20 - 6, 2**20 + 2):
        text = visible("x" * filler + "\x1b[31mred\u200b\n" + "y" * 2**20)
        assert text.strip("xy") in [f"{left}red\n" for left in ("", "[31m", "31m", "1m", "m")]
