"""Ratios of recorded tokens under other weights, against the model's own forward pass."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch
from agentgrpo.engines.vocabulary import Vocabulary
from agentgrpo.records.run_dir import RunDir, TrajectoryFile
from agentgrpo.reports.view.embedding import write_page
from agentgrpo.reports.view.ratios import Ratios, temperature_of
from agentgrpo.reports.view.source import RunSource
from tests import builders
from tests.engines import tiny
from tests.reports.view import made


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    tiny.model("qwen2").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def logprobs(tokens: list[int], temperature: float) -> list[float]:
    """log p of tokens[1:]."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = tiny.model("qwen2")(input_ids=ids, use_cache=False).logits[0, :-1].double() / temperature
    logits = Vocabulary.of(tiny.VOCAB, tiny.saved_tokenizer()).within(logits)
    found: list[float] = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return found


def test_now_against_then_at_the_temperature_that_sampled(weights: Path, tmp_path: Path) -> None:
    """Temperature 0.5 in training, 2 of the evaluation that samples, 1 where it is greedy."""
    two = replace(made.ANSWERED, branches=(*made.ANSWERED.branches, builders.episode().branches[0]))
    alone = Branch(segments=(builders.sampled(1, 2),))  # nothing before it that it could be scored after
    run = tmp_path / "x"
    for name in ("train-000000", "eval-end-sampled", "eval-end-greedy"):
        made.record(run, two, replace(made.ANSWERED, sample_index=1, branches=(alone,)), name=name)
    made.record(run, two, name="train-000001", tokens=False)
    (run / "config.yaml").write_text(made.CONFIG)
    sources = [RunSource(RunDir(run), "x")]
    out = tmp_path / "page.html"
    ratios = Ratios(weights, sources)
    write_page(out, sources, made.assets(tmp_path / "a")("embedded"), ratios=ratios, ratio_of="w")
    blocks = made.blocks_of(out.read_text())
    facts = blocks["overview"]["runs"][0]
    assert (facts["has_ratio"], facts["ratio_of"]) == (True, "w")
    first = [token for segment in two.branches[0].segments for token in segment.token_ids]
    for number, temperature in ((0, 0.5), (3, 1.0), (5, 2.0)):
        shown, single = blocks["chunk-0"][number : number + 2]
        assert shown["id"] == "t/0"
        now = logprobs(first, temperature)
        then = (-0.123456, -0.00001, -2.0)
        found = [message["ratios"] for message in shown["messages"]]
        assert found[0] is found[2] is found[4] is None
        assert found[1] == pytest.approx([math.exp(a - b) for a, b in zip(now[1:4], then, strict=True)], abs=1e-4)
        assert found[3] == pytest.approx([math.exp(now[-1] + 1.0)], abs=1e-4)
        assert found[5] == pytest.approx([math.exp(a + 0.5) for a in logprobs([1, 2, 3, 4], temperature)[1:]], abs=1e-4)
        assert [message["ratios"] for message in single["messages"]] == [None]
    assert [message["ratios"] for message in blocks["chunk-0"][2]["messages"]] == [None] * 6


def test_a_ratio_beyond_all_numbers_is_null(weights: Path, tmp_path: Path) -> None:
    segment = made.said("ab", sampled=True, logprobs=(-2000.0, float("-inf")))
    made.record(tmp_path, replace(made.ANSWERED, branches=(Branch(segments=(made.said("Q"), segment)),)))
    source = RunSource(RunDir(tmp_path), "x")
    [shown] = source.episodes(source.run.trajectory_files()[0])
    Ratios(weights, [source]).fill(source, [shown])
    assert shown.episode["messages"][1]["ratios"] == [None, None]


def test_weights_that_cannot_score_the_run(weights: Path, tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    with pytest.raises(
        ConfigError, match=r"--ratio .*/none holds no model; give a checkpoint, such as RUN/checkpoints/"
    ):
        Ratios(tmp_path / "none", made.opened(run))
    source = RunSource(RunDir(run), "x")
    made.record(run, replace(made.ANSWERED, branches=(Branch(segments=(builders.given(1), builders.sampled(400))),)))
    shown = list(source.episodes(source.run.trajectory_files()[0]))
    with pytest.raises(ConfigError, match="knows 320 tokens, and t has token 400; give weights that its run could"):
        Ratios(weights, [source]).fill(source, shown)
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(run / "checkpoints/step-000002/tokenizer.json"))
    with pytest.raises(ConfigError, match=f"has another tokenizer than {run}; give weights of the same model family"):
        Ratios(weights, made.opened(run))


def test_the_temperature_of_a_file(tmp_path: Path) -> None:
    train, greedy = TrajectoryFile(path=tmp_path, step=3), TrajectoryFile(path=tmp_path, policy="end", mode="greedy")
    assert temperature_of(train, {"rollout": {"temperature": 0.7}}) == 0.7
    assert temperature_of(train, {"rollout": {"temperature": 0}}) == 1.0
    assert temperature_of(train, {}) == 1.0
    assert temperature_of(greedy, {"run": {"eval": {"temperature": 0.7}}}) == 1.0
