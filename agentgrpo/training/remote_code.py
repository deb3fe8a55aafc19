"""Models that bring their own Python files, which run only if the user has trusted exactly that commit.

A checkpoint of such a model supplies only weights: classes, configuration and tokenizer come from the trusted folder,
so that code placed in a run directory is never run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from agentgrpo.core.errors import AgentGrpoError, ConfigError
from agentgrpo.training.plausible import refuse_endless_layers, refuse_outer_weights

_FILES = ("config.json", "tokenizer_config.json")


def trusted_class(code: Path) -> Any:
    """Return the class that creates the model: its own class from `code`, or transformers' class if it has none. Raises
    ConfigError for code that would come from elsewhere."""
    _refuse_elsewhere(code)
    own = _own_class(code)
    return AutoModelForCausalLM if own is None else get_class_from_dynamic_module(own, code)


def trusted_options(code: Path | None) -> dict[str, Any]:
    """Return the keyword arguments for from_pretrained."""
    return {} if code is None else {"config": trusted_config(code)}


def trusted_config(code: Path) -> Any:
    """Return the configuration in `code`, whose class may come from the same folder. Raises ConfigError for code that
    would come from elsewhere, before any code is run, and for a folder without a configuration."""
    _refuse_elsewhere(code)
    with loaded(code):
        return AutoConfig.from_pretrained(code, trust_remote_code=True)


def plain_config(folder: Path) -> Any:
    """Return the configuration in a folder without running its code. Raises ConfigError if it needs its own code."""
    with loaded(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


@contextmanager
def loaded(folder: Path, key: str = "model.path", passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert errors of transformers about an unloadable folder into a ConfigError that names the setting `key`;
    exceptions of the types `passing` pass through."""
    try:
        refuse_endless_layers(folder)
        refuse_outer_weights(folder)
        yield
    except AgentGrpoError:
        raise
    except passing:
        raise
    except Exception as e:  # transformers raises any exception if the files are not those of a model
        reason = next(iter(str(e).splitlines()), "") or type(e).__name__
        if "trust_remote_code" in str(e):
            reason = "it brings Python code of its own, which is not run here; give a model of transformers' own kinds"
        raise ConfigError(f"{key}={folder} cannot be loaded: {reason}") from e


def _refuse_elsewhere(code: Path) -> None:
    for name in _FILES:
        for reference in _references(code / name):
            if "--" in reference:
                raise ConfigError(
                    f"{code / name}: {reference} is code of another repository, which no revision here pins; put its "
                    "files beside the model"
                )


def _own_class(code: Path) -> str | None:
    found = _read(code / "config.json").get("auto_map") or {}
    own = found.get("AutoModelForCausalLM")
    return own if isinstance(own, str) else None


def _references(file: Path) -> list[str]:
    found = _read(file).get("auto_map") or {}
    values = found.values() if isinstance(found, dict) else [found]
    return [text for v in values for text in (v if isinstance(v, list) else [v]) if isinstance(text, str)]


def _read(file: Path) -> dict[str, Any]:
    row = json.loads(file.read_bytes()) if file.is_file() else {}
    return row if isinstance(row, dict) else {}
