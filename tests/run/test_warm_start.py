from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from agentgrpo.config.settings import LoraSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Exit, Passage
from agentgrpo.engines.base import Engine
from agentgrpo.environments.factory import Runner
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.retrieval.rerank import LexicalReranker
from agentgrpo.run.warm_start import WarmStart, demonstrate
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.almanac.world import thesaurus
from agentgrpo.worlds.diary.dataset import Diaries
from agentgrpo.worlds.workshop.dataset import Workshop
from tests.builders import episode, given, sampled, task
from tests.runners import search_runner

TINY = WarmStart(
    worlds=2,
    tasks_per_world=14,
    tokenizer_worlds=1,
    vocab_size=400,
    hidden_size=32,
    num_layers=1,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=2,
)


@pytest.fixture(scope="module")
def world() -> Almanac:
    return Almanac(num_companies=20, dev_companies=2, test_companies=5, demonstration_companies=10)


def make_renderer(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return PlainRenderer(tokenizer=tokenizer)


def make_runner(engine: Engine, renderer: Renderer, corpora: Mapping[str, Sequence[Passage]]) -> Runner:
    return search_runner(
        engine=engine,
        renderer=renderer,
        retrievers=embedded(corpora=corpora),
        evidence=HeuristicEvidence(min_total_results=1),
        reranker=LexicalReranker(thesaurus=thesaurus()),
        describe_tools=False,
        max_turns=5,
        max_search_limit=4,
        top_k=2,
        rerank_candidates=10,
        evidence_plateau_min_gain=None,
        show_search_evaluation=False,
    )


def warm_start(world: Almanac, cache: Path, *, seed: int = 0, stages: list[str] | None = None) -> Path:
    return TINY.folder(
        dataset=world,
        make_renderer=make_renderer,
        make_runner=make_runner,
        environment_key="tests",
        seed=seed,
        cache=cache,
        progress=lambda stage, done, total: None if stages is None else stages.append(stage),
    )


@pytest.fixture(scope="module")
def folder(world: Almanac, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_start(world, tmp_path_factory.mktemp("cache"))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_weights_by_author_and_place() -> None:
    """One token a character: two searches and an answer."""
    renderer = make_renderer(train_tokenizer((), vocab_size=400))
    turns = ['<search retriever="vdb" rerank="true">a</search>', '<search retriever="web" rerank="true">b</search>']
    first, second, answer = (renderer.encode_action(text) for text in (*turns, "<answer>c</answer>"))
    assert (len(first), len(second), len(answer)) == (7, 7, 3)
    shown = episode(task(), given(5, 6), sampled(*first), given(7), sampled(*second), given(8, 9), sampled(*answer))
    settings = WarmStart(
        context_weight=0.25, decision_weight=1.0, action_weight=2.0, later_query_weight=3.0, answer_weight=4.0
    )
    [sample] = settings.weigh(shown, renderer, "<answer>")
    assert sample.token_ids == (5, 6, *first, 7, *second, 8, 9, *answer)
    assert sample.weights == (
        *(0.25, 0.25),
        *(1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0),
        0.25,
        *(1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0),
        *(0.25, 0.25),
        *(1.0, 4.0, 4.0),
    )


def test_every_context_of_an_episode_is_learned_from_by_itself() -> None:
    """Its first turn is the first of its context, and all of them are of the world's phase."""
    renderer = make_renderer(train_tokenizer((), vocab_size=400))
    parts = [episode(task(), given(5), sampled(*renderer.encode_action(text))) for text in ("ab", "cd")]
    both = replace(parts[0], branches=(*parts[0].branches, *parts[1].branches))
    settings = WarmStart(context_weight=0.25, decision_weight=1.0, action_weight=2.0, later_query_weight=3.0)
    samples = settings.weigh(both, renderer, "<answer>", phase=2)
    assert [s.token_ids for s in samples] == [b.token_ids for b in both.branches]
    assert [(s.weights, s.phase) for s in samples] == [((0.25, 1.0, 2.0), 2)] * 2


def test_names_may_be_cut_without_cutting_digits_and_plurals() -> None:
    texts = ["Here Velmor lives for 53 years."] * 50
    tokenizer = TINY._tokenizer(texts, replace(Diaries.language, parts=(" ?Vel(?=mor)",)))
    renderer = make_renderer(tokenizer)
    assert [renderer.decode([i]) for i in renderer.encode_action("<insert> Velmor lives 53 years</insert>")] == [
        *("<insert>", " Vel", "mor", " lives", " 53", " years", "</insert>")
    ]


def test_the_tokenizer_speaks_the_language_of_the_demonstrations() -> None:
    texts = ["Ida orders 53 zirnuns.", "Ida orders 71 velmors."] * 50
    tokenizer = TINY._tokenizer(texts, Workshop.language)
    renderer = make_renderer(tokenizer)

    def tokens(text: str) -> list[str]:
        return [renderer.decode([i]) for i in renderer.encode_action(text)]

    assert tokens('Action: lookup\nAction Input: {"table": "') == [
        "Action: ",
        "lookup",
        "\nAction Input: ",
        '{"table": "',
    ]
    assert tokens(" orders 53 zirnuns.") == [" order", "s", " 5", "3", " zir", "nun", "s", "."]
    search = make_renderer(TINY._tokenizer(texts, Almanac.language))
    assert len(search.encode_action('<search retriever="vdb">')) == 3
    assert search.encode_action("Action: ") != renderer.encode_action("Action: ")


def test_demonstrations_are_episodes_of_the_real_environment(world: Almanac) -> None:
    [small] = world.demonstration_worlds(1, 28)
    episodes = demonstrate(small, make_renderer(train_tokenizer((), vocab_size=400)), make_runner)
    assert [e.task for e in episodes] == list(small.tasks)
    assert {e.exit for e in episodes} == {Exit.ANSWERED}
    assert all(e.metrics["format_error_turns"] == e.metrics["answer_rejections"] == 0 for e in episodes)
    right = [e for e in episodes if e.answer in e.task.references]
    assert 8 <= len(right) < 28
    assert all(len(e.citations) == 1 for e in right)
    assert sum(e.metrics["web_searches"] for e in episodes) > sum(e.metrics["vdb_searches"] for e in episodes)


def test_the_result_is_a_transformers_folder(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer) <= 400
    text = "Answer with searches.\n<answer> unknown</answer>"
    assert len(tokenizer(text)["input_ids"]) < 30 < len(text)  # what the environment writes has been learned too


def test_it_is_made_once(world: Almanac, folder: Path) -> None:
    stages: list[str] = []
    assert warm_start(world, folder.parents[2], stages=stages) == folder
    assert stages == []


def test_the_same_settings_give_the_same_bytes(world: Almanac, folder: Path, tmp_path: Path) -> None:
    again, other = warm_start(world, tmp_path), warm_start(world, tmp_path, seed=1)
    assert again != folder
    assert weights_of(again) == weights_of(folder) != weights_of(other)


def test_a_damaged_folder_is_made_anew(world: Almanac, tmp_path: Path) -> None:
    folder = warm_start(world, tmp_path)
    whole = weights_of(folder)
    (folder / "model.safetensors").write_bytes(whole[:-1])
    (folder.parent / ".tmp-0123abcd-model").mkdir()  # what a killed process leaves
    assert weights_of(warm_start(world, tmp_path)) == whole
    assert sorted(p.name for p in folder.parent.iterdir()) == ["lock", "model"]


def test_of_two_at_once_one_waits_for_the_other(world: Almanac, tmp_path: Path) -> None:
    stages: list[list[str]] = [[], []]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda seen: warm_start(world, tmp_path, stages=seen), stages)
    assert first == second
    assert sorted(len(seen) > 0 for seen in stages) == [False, True]


def test_everything_that_matters_is_in_the_key() -> None:
    key = TINY.key("data", "environment", 0)
    assert key == TINY.key("data", "environment", 0)
    assert (
        len(
            {key, TINY.key("other", "environment", 0), TINY.key("data", "other", 0), TINY.key("data", "environment", 1)}
        )
        == 4
    )
    assert WarmStart(lr=0.001).key("data", "environment", 0) != WarmStart().key("data", "environment", 0)


def test_what_trains_afterwards_does_not() -> None:
    other = WarmStart(lora=LoraSettings(rank=4), freeze=("head",))
    assert other.key("data", "environment", 0) == WarmStart().key("data", "environment", 0)


def test_refused_settings() -> None:
    with pytest.raises(ConfigError, match="warm start: worlds=0; at least 1 is allowed"):
        WarmStart(worlds=0)
