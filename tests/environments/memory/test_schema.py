"""What a policy is told of its memory."""

from __future__ import annotations

import json

import pytest

from agentgrpo.environments.memory.schema import SCHEMAS, key_of, prefix_of
from agentgrpo.tools.schema import ArgumentSchema

NINE = [
    "sensory_lifestyle",
    "culture_entertainment",
    "cognition_work",
    "values",
    "physiology_health",
    "resource_economic",
    "social_interpersonal",
    "spatiotemporal_context",
    "psychological_defense",
]
TOOLS = {
    "three_part": {
        "memory_insert": ("memory_type content", "memory_type content", ["semantic", "episodic"]),
        "memory_update": (
            "memory_type memory_id new_content",
            "memory_type new_content",
            ["core", "semantic", "episodic"],
        ),
        "memory_delete": ("memory_type memory_id", "memory_type memory_id", ["semantic", "episodic"]),
        "memory_skip": ("", "", None),
    },
    "nine_part": {
        "memory_insert": ("memory_type content", "memory_type content", NINE),
        "memory_update": ("memory_type memory_id new_content", "memory_type memory_id new_content", NINE),
        "memory_delete": ("memory_type memory_id", "memory_type memory_id", NINE),
        "core_memory_update": ("content", "content", None),
        "memory_skip": ("", "", None),
    },
    "mem_alpha": {
        "new_memory_insert": ("memory_type content", "memory_type content", ["semantic_memory", "episodic_memory"]),
        "memory_update": (
            "memory_type new_content memory_id",
            "memory_type new_content",
            ["core_memory", "semantic_memory", "episodic_memory"],
        ),
        "memory_delete": (
            "memory_type memory_id",
            "memory_type",
            ["core_memory", "semantic_memory", "episodic_memory"],
        ),
    },
    "keyed": {
        "insert": ("content", "content", None),
        "update": ("content", "content", None),
        "delete": ("key", "key", None),
        "skip": ("", "", None),
    },
}
OPERATIONS = {
    "three_part": "insert update delete skip",
    "nine_part": "insert update delete core skip",
    "mem_alpha": "insert update delete",
    "keyed": "insert update delete skip",
}


def test_the_schemas_are_these() -> None:
    assert {name: (s.name, list(s.kinds), bool(s.core), s.is_keyed) for name, s in SCHEMAS.items()} == {
        "three_part": ("three_part", ["semantic", "episodic"], True, False),
        "nine_part": ("nine_part", NINE, True, False),
        "mem_alpha": ("mem_alpha", ["semantic", "episodic"], True, False),
        "keyed": ("keyed", ["fact"], False, True),
    }


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_tools_are_these(name: str) -> None:
    found = {
        spec.name: (
            " ".join(spec.parameters["properties"]),
            " ".join(spec.parameters["required"]),
            spec.parameters["properties"].get("memory_type", {}).get("enum"),
        )
        for spec in SCHEMAS[name].specs
    }
    assert found == TOOLS[name]
    assert list(SCHEMAS[name].operations) == list(TOOLS[name])
    assert list(SCHEMAS[name].operations.values()) == OPERATIONS[name].split()
    assert [SCHEMAS[name].spec(tool) for tool in TOOLS[name]] == list(SCHEMAS[name].specs)


@pytest.mark.parametrize("name", SCHEMAS)
def test_everything_is_described(name: str) -> None:
    schema = SCHEMAS[name]
    assert all(spec.description.endswith(".") for spec in schema.specs)
    described = [p["description"] for spec in schema.specs for p in spec.parameters["properties"].values()]
    assert all(text.endswith(".") for text in described)
    assert all(schema.kinds.values())


@pytest.mark.parametrize("name", ["three_part", "nine_part"])
def test_the_specs_say_what_each_kind_is_for(name: str) -> None:
    schema = SCHEMAS[name]
    insert = schema.spec("memory_insert").parameters["properties"]["memory_type"]["description"]
    assert all(f"{kind}: {meaning}" in insert for kind, meaning in schema.kinds.items())
    assert schema.core in json.dumps([[s.description, dict(s.parameters)] for s in schema.specs])


@pytest.mark.parametrize("name", SCHEMAS)
def test_parameters_are_json_schemas_of_texts_and_nothing_besides(name: str) -> None:
    for spec in SCHEMAS[name].specs:
        arguments = ArgumentSchema(spec.name, json.loads(json.dumps(spec.parameters)))
        right = {p: about.get("enum", ["x"])[0] for p, about in spec.parameters["properties"].items()}
        assert arguments.problem(right) is None
        assert arguments.problem({**right, "other": "x"}) == (
            f"unknown argument other; allowed: {', '.join(right) or 'none'}"
        )


@pytest.mark.parametrize("name", SCHEMAS)
def test_ids_tell_the_kind(name: str) -> None:
    kinds = SCHEMAS[name].kinds
    assert len({prefix_of(kind) for kind in kinds}) == len(kinds)


def test_prefix_is_the_initials() -> None:
    assert [prefix_of(kind) for kind in ("semantic", "episodic", *NINE)] == [
        *("s", "e", "sl", "ce", "cw", "v", "ph", "re", "si", "sc", "pd")
    ]


@pytest.mark.parametrize(
    "text, key", [("Velmor lives in Castin", "Velmor lives"), ("Velmor", "Velmor"), (" a  b c", "a b"), ("", "")]
)
def test_key_is_the_first_two_words(text: str, key: str) -> None:
    assert key_of(text) == key


def test_unknown_tool_of_a_schema() -> None:
    with pytest.raises(KeyError, match="remember"):
        SCHEMAS["keyed"].spec("remember")
