"""Imports point down only. A new top-level module has to choose its floor here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import agentgrpo

PACKAGE = Path(agentgrpo.__file__).parent
HOUSE = PACKAGE / "docs" / "house.md"
FLOORS = (
    {"core"},
    {"config", "records", "renderers", "services"},
    {"engines", "grpo", "retrieval", "tasks"},
    {"judges", "tools", "training"},
    {"environments", "models", "rewards", "worlds"},
    {"rollout"},
    {"run"},
    {"cli", "preflight", "reports"},  # cli finds the verbs of the other two by name
    {"__main__", "api"},
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
STDLIB_ONLY = {"core"}
FREE_OF_TORCH = (
    *("core", "services", "tasks", "retrieval", "judges", "tools", "environments", "rewards", "rollout"),
    "config",
)
ONLY_IN = {
    "hydra": {"config/compose.py", "config/overrides.py"},
    "omegaconf": {"config/compose.py"},
    "llguidance": {"engines/grammar.py"},
    "httpx": {"services/client.py", "services/pages.py"},
    "httpx2": {"tools/mcp/connections.py"},
    "mcp": {"tools/mcp/connections.py", "tools/mcp/session.py"},
    "starlette": {
        "retrieval/server/app.py",
        "cli/retriever.py",
        "environments/program/endpoint.py",
        "run/openenv.py",
    },
    "uvicorn": {"retrieval/server/running.py", "cli/retriever.py", "environments/program/endpoint.py"},
    # imports by name are invisible to this test; those of __init__.py are listed there for type checkers
    "importlib.import_module": {"__init__.py", "config/build.py", "cli/main.py"},
    "pkgutil.resolve_name": {
        "environments/published/gymnasium_worker.py",
        "environments/published/textarena_worker.py",
    },
    "fastapi": {"run/openenv.py"},
    "gymnasium": {"environments/published/gymnasium_worker.py"},
    "reasoning_gym": {"environments/published/reasoning_gym_worker.py"},
    "textarena": {"environments/published/textarena_worker.py"},
}
FORBIDDEN = {"training": {"rollout", "environments", "tools", "rewards"}, "rollout": {"training"}}

Import = tuple[Path, int, str]


def imports_of(source: str) -> list[tuple[int, str]]:
    """(line, dotted module) of every import, wherever it stands: in functions and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide where they point"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@cache
def all_imports() -> list[Import]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [(f.relative_to(PACKAGE), line, name) for f in files for line, name in imports_of(f.read_text("utf-8"))]


def top(path: Path) -> str:
    """The floor's name of a file: its folder, or the module at top level."""
    return path.parts[0].removesuffix(".py")


def violation(source: str, target: str) -> str | None:
    """Why module `source` may not import the dotted `target`; None if it may."""
    parts = target.split(".")
    if parts[0] != "agentgrpo":
        outside = source in STDLIB_ONLY and parts[0] not in sys.stdlib_module_names
        return f"{source} is standard library only, not {parts[0]}" if outside else None
    name = parts[1] if len(parts) > 1 else "__version__"
    if name in (source, "__version__"):
        return None
    if name not in FLOOR:
        return f"{name} has no floor"
    if FLOOR[name] >= FLOOR[source]:
        return f"{source} (floor {FLOOR[source]}) imports {name} (floor {FLOOR[name]})"
    return f"{source} never imports {name}" if name in FORBIDDEN.get(source, set()) else None


def test_every_module_has_a_floor() -> None:
    modules = {top(f.relative_to(PACKAGE)) for f in PACKAGE.rglob("*.py")} - {"__init__"}
    assert modules <= set(FLOOR), "give the new module a floor"


def test_imports_point_down() -> None:
    wrong = [
        f"{path}:{line}: {why}"
        for path, line, name in all_imports()
        if top(path) != "__init__" and (why := violation(top(path), name))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("environments", "agentgrpo.engines.base.Engine", True),
        ("environments", "agentgrpo.environments.base.Agent", True),
        ("engines", "agentgrpo.retrieval.base.Retriever", False),
        ("engines", "agentgrpo.rollout.groups", False),
        ("training", "agentgrpo.grpo.losses", True),
        ("training", "agentgrpo.rewards.reward", False),
        ("rollout", "agentgrpo.training.trainer", False),
        ("config", "agentgrpo.core.errors.ConfigError", True),
        ("core", "agentgrpo.config.settings", False),
        ("core", "numpy", False),
        ("judges", "agentgrpo.novelty.x", False),
    ],
)
def test_the_rule_itself(source: str, target: str, allowed: bool) -> None:
    assert (violation(source, target) is None) == allowed


def test_hidden_imports_are_seen() -> None:
    source = "if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d, e\n"
    assert imports_of(source) == [(2, "a.b"), (4, "c.d"), (4, "c.e")]


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_a_library_stays_in_its_place(library: str) -> None:
    users = {path.as_posix() for path, _, name in all_imports() if f"{name}.".startswith(f"{library}.")}
    assert users <= ONLY_IN[library]


def test_no_torch_below_training() -> None:
    users = {path.as_posix() for path, _, name in all_imports() if name.split(".")[0] in ("torch", "accelerate")}
    assert sorted(u for u in users if u.split("/")[0] in FREE_OF_TORCH) == []
    names = [f"agentgrpo.{n}" for n in (*sorted(STDLIB_ONLY), *FREE_OF_TORCH)]
    program = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr == ""


def test_a_file_fits_the_eye() -> None:
    long = {
        str(f.relative_to(PACKAGE)): n for f in PACKAGE.rglob("*.py") if (n := f.read_text("utf-8").count("\n")) > 600
    }
    contracts = {
        str(f.relative_to(PACKAGE)): n
        for f in PACKAGE.rglob("base.py")
        if (n := len(f.read_text("utf-8").splitlines())) > 120
    }
    assert (long, contracts) == ({}, {})


def test_a_public_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file.relative_to(PACKAGE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_house_is_as_large_as_its_page_says() -> None:
    rooms = {top(f.relative_to(PACKAGE)) for f in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert len(rooms) <= 22
    assert len(FLOORS) <= 9
    assert floors_of(HOUSE.read_text("utf-8")) == [*FLOORS]


def floors_of(page: str) -> list[set[str]]:
    """The blocks of the page's map, a floor each."""
    blocks = page.partition("```text\nagentgrpo/\n")[2].partition("\nconfigs/")[0].split("\n\n")
    return [set(re.findall(r"^  (\w+)(?:/|\.py)", block, re.MULTILINE)) for block in blocks]


def test_what_the_page_of_the_house_names_is_there() -> None:
    """Its files, and the functions and classes that it names with them."""
    page = HOUSE.read_text("utf-8")
    for name, what in re.findall(r"`((?:\w+/)+\w+\.py)`(?:: `([\w.]+)`)?", page):
        path = next((root / name for root in (PACKAGE, PACKAGE.parent) if (root / name).exists()), None)
        assert path is not None, name
        if what:
            assert re.search(
                rf"^ *(async )?(def|class) {what.rpartition('.')[2]}\b|^{what}\b", path.read_text(), re.MULTILINE
            ), what
