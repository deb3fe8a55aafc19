"""The command line in processes of their own that need not import anything: forked, as in `tests.training.several`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path

from agentgrpo.cli import verbs
from agentgrpo.cli.main import main
from tests.training.several import CONTEXT

assert verbs  # what train needs: imported before the fork

Around = Callable[[], AbstractContextManager[object]]


def _run(argv: Sequence[str], folder: Path, said: Path, around: Around, variables: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.update(variables)
    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    with around():
        code = main(argv)
    sys.stdout.flush()
    os._exit(code)


@contextmanager
def forked(
    argv: Sequence[str], folder: Path, said: Path, *, around: Around = nullcontext, **variables: str
) -> Iterator[BaseProcess]:
    """`agentgrpo ARGV` in `folder`, with `variables` in its environment, which adds what it says to `said`. around:
    entered in the process before it begins; it can be pickled."""
    process = CONTEXT.Process(target=_run, args=(argv, folder, said, around, variables))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
