"""The names we promise, and what `import agentgrpo` costs."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentgrpo
from agentgrpo.config.folders import configs_dir
from agentgrpo.core.errors import AgentGrpoError, EpisodeError
from agentgrpo.services.cassette import CassetteMiss

PACKAGE = Path(agentgrpo.__file__).parent
ROOT = PACKAGE.parent
PUBLIC = sorted(f.parent.name for f in PACKAGE.glob("*/__init__.py") if "__all__" in f.read_text(encoding="utf-8"))


def test_the_package_itself() -> None:
    assert sorted(agentgrpo.__all__) == sorted(["__version__", *agentgrpo._HOME_OF])
    assert [name for name in agentgrpo.__all__ if not hasattr(agentgrpo, name)] == []
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: str(node.module).removeprefix("agentgrpo.") for node in imports for alias in node.names}
    assert told == agentgrpo._HOME_OF  # what type checkers see is what is imported
    with pytest.raises(AttributeError, match=r"no attribute 'tarin'; it has AdamW, Algorithm, "):
        _ = agentgrpo.tarin
    assert re.fullmatch(r"\d+\.\d+\.\d+", agentgrpo.__version__)


def test_importing_it_loads_nothing_heavy() -> None:
    program = "import sys, agentgrpo; print(*sorted({'torch', 'numpy', 'hydra', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_all_is_true(name: str) -> None:
    package = importlib.import_module(f"agentgrpo.{name}")
    missing = [n for n in package.__all__ if not hasattr(package, n)]
    assert (missing, len(set(package.__all__))) == ([], len(package.__all__))


def all_errors(base: type[AgentGrpoError] = AgentGrpoError) -> dict[str, int]:
    return {base.__name__: base.exit_code} | {k: v for sub in base.__subclasses__() for k, v in all_errors(sub).items()}


def test_exit_codes() -> None:
    public = {name: code for name, code in all_errors().items() if not name.startswith("_")}
    episode = {name: 1 for name in all_errors(EpisodeError) if not name.startswith("_")}
    assert public == episode | {
        "AgentGrpoError": 1,
        "ConfigError": 2,
        "DataError": 2,
        "MalformedRows": 2,
        "RunDirectoryError": 3,
        "CheckpointError": 4,
        "StorageError": 5,
        "TrainingError": 6,
        "TooManyFailures": 8,
        "NoServer": 8,
        "GuardHalt": 6,
        "GuardRollback": 6,
        "ProcessError": 7,
        "BudgetSpent": 11,
        CassetteMiss.__name__: 2,
        "Preempted": 75,
    }


# --- packaging


def test_presets_ship_in_the_wheel_and_are_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"configs": "agentgrpo/_configs"}
    assert project["project"]["scripts"] == {"agentgrpo": "agentgrpo.__main__:main"}
    assert configs_dir() == ROOT / "configs"
    installed = tmp_path / "site-packages" / "agentgrpo"
    (installed / "_configs").mkdir(parents=True)
    monkeypatch.setattr(agentgrpo, "__file__", str(installed / "__init__.py"))
    assert configs_dir() == installed / "_configs"


def test_constraints_pin_what_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    [ours] = [r for r in extras["dev"] if r.startswith("agentgrpo[")]
    chosen = ours.removeprefix("agentgrpo[").removesuffix("]").split(",")
    needed = [r for extra in ("dev", *chosen) for r in extras[extra] if r != ours] + project["dependencies"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in needed}
    assert names - {name.lower().replace("_", "-") for name in pins} == set()
    assert [v for v in pins.values() if not re.fullmatch(r"[0-9][0-9a-z.]*", v)] == []  # no local builds, no paths


def test_every_extra_that_is_named_exists_and_every_pip_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    # pip 23.2, which Python 3.11 brings along, does not find an extra with an underscore
    assert [name for name in extras if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name)] == []
    texts = [*ROOT.glob("*.md"), *ROOT.glob("agentgrpo/**/*.md"), *ROOT.glob("agentgrpo/**/*.py")]
    named = {
        extra
        for text in texts
        for listed in re.findall(r"agentgrpo\[([a-z0-9_,-]+)\]", text.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert len(named) > 8
    assert named <= extras
