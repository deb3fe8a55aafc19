import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.core.errors import ConfigError
from agentgrpo.environments.search.grammar import (
    AnswerAction,
    FetchAction,
    Planner,
    Query,
    RerankAction,
    SearchAction,
    SearchTurn,
    Tags,
    normalise_query,
)

PLANNER = Planner()


def search(*queries: Query) -> SearchAction:
    return SearchAction(queries=queries)


WEB = Query(text="q", retriever="web", rerank=True)


@pytest.mark.parametrize(
    "tag, query",
    [
        ('<search retriever="web" rerank="true">', WEB),
        ('<search rerank="true" retriever="web">', WEB),
        ("<search retriever='web' rerank='true'>", WEB),
        ("<search retriever=web rerank=true>", WEB),
        ("<search\n  rerank = true\tretriever = “web”  >", WEB),
        ('<SEARCH Retriever="WEB" RERANK="True" lang="en">', WEB),
        ('<search retriever="web rerank="true">', WEB),
        ("<search>", Query(text="q")),
        ('<search retriever="bing" rerank="yes">', Query(text="q")),
        ('<search retriever="" rerank="1">', Query(text="q")),
        ('<search retriever="vdb" rerank="false">', Query(text="q")),
        ('<search retriever="website" rerank="truest">', Query(text="q")),
    ],
)
def test_attributes_in_any_order_and_quoting(tag: str, query: Query) -> None:
    assert PLANNER.parse(f"{tag} q</search>").action == search(query)


def test_a_query_is_one_line() -> None:
    assert PLANNER.parse("<search>\n founded \n\t Velmor </search>").action == search(Query(text="founded Velmor"))


def test_searches_are_lines_or_children() -> None:
    lines = "- founder of Velmor\n2. [T1] birthplace\n\n  • [T 2!]: 2024 report\n3.5 tons\n"
    assert PLANNER.parse(f'<searches retriever="web">\n{lines}</searches>').action == search(
        Query(text="founder of Velmor", retriever="web"),
        Query(text="birthplace", retriever="web", subquestion="T1"),
        Query(text="2024 report", retriever="web", subquestion="T2"),
        Query(text="3.5 tons", retriever="web"),
    )
    children = 'x <query>[T1] a</query> y\n<query retriever="web" rerank="no">b</query><query> </query>'
    assert PLANNER.parse(f'<searches rerank="true">{children}</searches>').action == search(
        Query(text="a", rerank=True, subquestion="T1"), Query(text="b", retriever="web")
    )


def test_a_bracket_that_holds_no_id_stays_in_the_query() -> None:
    assert PLANNER.parse("<search>[??] a</search>").action == search(Query(text="[??] a"))
    assert PLANNER.parse("<search>[T1]</search>").action == search(Query(text="[T1]"))


def test_several_searches_of_one_turn_stay_in_order() -> None:
    text = '<searches>a\nb</searches><search retriever="web">c</search>'
    assert PLANNER.parse(text).action == search(Query(text="a"), Query(text="b"), Query(text="c", retriever="web"))


def test_subquestions_have_ids_given_or_counted() -> None:
    text = "<subquestions>\n- A-1: who?\nwhere?\nT3: why?\n1. how?\n x/y: when? \n</subquestions>"
    assert PLANNER.parse(text) == SearchTurn(
        subquestions=(("A-1", "who?"), ("T2", "where?"), ("T3", "why?"), ("T4", "how?"), ("xy", "when?"))
    )


@pytest.mark.parametrize(
    "written, decision",
    [
        *((word, "answer") for word in ("answer", "internal", " Internal Knowledge ", "direct_answer")),
        *((word, "search") for word in ("search", "RETRIEVE", "external\n", "need-search")),
        *((word, "none") for word in ("", "maybe", "answer or search", "42")),
    ],
)
def test_decisions(written: str, decision: str) -> None:
    parsed = PLANNER.parse(f"<search_decision>{written}</search_decision>")
    assert parsed == SearchTurn(decision=decision)  # type: ignore[arg-type]
    assert parsed.plans is (decision != "none")


def test_urls_split_on_newlines_and_commas() -> None:
    text = "<fetch> http://a.test/x, http://b.test/y\nhttp://a.test/x\n\n</fetch>"
    assert PLANNER.parse(text).action == FetchAction(urls=("http://a.test/x", "http://b.test/y"))


@pytest.mark.parametrize(
    "attributes, part, find",
    [
        (' part="2"', 2, ""),
        (" part=3", 3, ""),
        (" PART = '04'", 4, ""),
        (' part="0"', 1, ""),
        (' part="-2"', 1, ""),
        (' part="two"', 1, ""),
        (f' part="{"9" * 5000}"', 1, ""),
        (' find="Two  words"', 1, "Two words"),
        (" find='the maker", 1, "the maker"),
        (" find=word part=2", 2, "word"),
        (" part=“2” find=“it\u2019s so”", 2, "it\u2019s so"),
        (' find=""', 1, ""),
        (' reference="2"', 1, ""),
    ],
)
def test_a_part_of_a_page(attributes: str, part: int, find: str) -> None:
    action = PLANNER.parse(f"<fetch{attributes}>http://a.test/x?part=7</fetch>").action
    assert action == FetchAction(urls=("http://a.test/x?part=7",), part=part, find=find)


def test_an_answer_is_kept_as_written() -> None:
    assert PLANNER.parse("so <answer> Roka [R1Q1D1]</answer><|im_end|>").action == AnswerAction(text=" Roka [R1Q1D1]")


SEARCH, RERANK, FETCH, ANSWER = "<search>q</search>", "<rerank/>", "<fetch>u</fetch>", "<answer>a</answer>"


@pytest.mark.parametrize(
    "text, action",
    [
        (ANSWER + RERANK + FETCH + SEARCH, search(Query(text="q"))),
        (ANSWER + FETCH + RERANK, RerankAction()),
        (ANSWER + FETCH, FetchAction(urls=("u",))),
        (ANSWER, AnswerAction(text="a")),
        ("<rerank />", RerankAction()),
        ("<rerank>", RerankAction()),
    ],
)
def test_precedence(text: str, action: object) -> None:
    assert PLANNER.parse(text).action == PLANNER.decide(text) == action


def test_thoughts_are_no_actions() -> None:
    thought = "<think>I could <search>x</search> or <answer>y</answer></think>"
    assert PLANNER.parse(thought).action is None
    assert PLANNER.parse(thought + "<answer>z</answer>").action == AnswerAction(text="z")
    # a thought that never ends hides nothing: sampling stopped at the action inside it
    assert PLANNER.parse("<think>hm <search>x</search>").action == search(Query(text="x"))


NOT_ACTIONS = [
    "",
    "Roka",
    "<search> founded Velmor",
    "<search></search>",
    "<search> \n </search>",
    "<searches>\n- \n</searches>",
    "<answer></answer>",
    "<answer> [R1Q1D1] </answer>",
    "<answer> Roka",
    "<fetch> , \n</fetch>",
    "founded Velmor</search>",
    "<searching>x</searching>",
    "< search>x</ search>",
]


@pytest.mark.parametrize("text", NOT_ACTIONS)
def test_unfinished_and_empty_tags_are_no_actions(text: str) -> None:
    assert PLANNER.parse(text) == SearchTurn()


@pytest.mark.parametrize("text", NOT_ACTIONS[1:])
def test_malformed_text_degrades_to_a_vdb_search_for_its_first_line(text: str) -> None:
    assert PLANNER.decide(text) == search(Query(text=text.strip().splitlines()[0].strip()))


def test_the_degraded_query_is_the_first_non_empty_line_cut_to_256() -> None:
    assert PLANNER.decide("\n \n  " + "x" * 300 + "\nmore") == search(Query(text="x" * 256))
    assert PLANNER.decide(" \n") == search()


def test_a_duplicate_has_the_same_words_retriever_and_rerank_flag() -> None:
    asked = {Query(text="Founded  Velmor", retriever="web").key}
    assert PLANNER.is_duplicate(Query(text="founded VELMOR", retriever="web", subquestion="T1"), asked)
    assert not PLANNER.is_duplicate(Query(text="founded Velmor"), asked)
    assert not PLANNER.is_duplicate(Query(text="founded Velmor", retriever="web", rerank=True), asked)
    assert not PLANNER.is_duplicate(Query(text="founded Velmo", retriever="web"), asked)
    assert normalise_query(" Straße\n X ") == "strasse x"


def test_other_names_for_tags() -> None:
    planner = Planner(Tags.named({"search": "find", "answer": "final-answer"}))
    assert planner.parse("<find>q</find>").action == search(Query(text="q"))
    assert planner.parse("<final-answer>a</final-answer>").action == AnswerAction(text="a")
    assert planner.parse("<search>q</search><answer>a</answer>") == SearchTurn()
    assert planner.tags.stop_strings == ("</find>", "</searches>", "</fetch>", "</final-answer>", "<rerank/>")


@pytest.mark.parametrize(
    "names, message",
    [
        ({"serch": "find"}, "tags.serch: .* are allowed. Did you mean 'search'"),
        ({"search": "a b"}, "tags.search 'a b': letters, digits, _ and - are allowed"),
        ({"search": "Answer"}, "tags.answer 'answer': also the name of tags.search"),
    ],
)
def test_wrong_tag_names_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tags.named(names)


FRAGMENTS = st.sampled_from(
    [
        *(
            "<",
            ">",
            "</",
            "/>",
            "=",
            '"',
            "'",
            "[T1]",
            "[R1Q1D1]",
            "\n",
            ",",
            ":",
            "- ",
            "1. ",
            " ",
            "\x00",
            "\ud800",
            "é",
        ),
        *(f"<{name}>" for name in ("think", "search", "searches", "query", "fetch", "answer", "subquestions")),
        *(f"</{name}>" for name in ("think", "search", "searches", "query", "fetch", "answer", "subquestions")),
        *("<search_decision>", "</search_decision>", "<rerank/>", ' retriever="web"', "answer", "T1: "),
    ]
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map("".join)))
def test_no_text_breaks_the_parser(text: str) -> None:
    parsed = PLANNER.parse(text)
    action = PLANNER.decide(text)
    assert parsed.action is None or parsed.action == action
    match action:
        case SearchAction(queries=queries):
            assert all(q.text and q.retriever in ("web", "vdb") for q in queries)
            assert queries or not text.strip()
            if parsed.action is None and queries:
                assert queries == (Query(text=queries[0].text),)
                assert len(queries[0].text) <= 256
        case FetchAction(urls=urls):
            assert urls
            assert len(set(urls)) == len(urls)
        case AnswerAction(text=answer):
            assert answer.strip()
    assert all(id_ and words for id_, words in parsed.subquestions)


def test_tags_opened_a_thousand_times_cost_no_time() -> None:
    # a collapsed policy writes such turns by the hundred
    began = time.process_time()
    for name in ("think", "search", "answer", "fetch", "subquestions"):
        PLANNER.parse(f"<{name}>" * 5_000)
    assert time.process_time() - began < 0.5
