"""agentgrpo: train LLM agents that search, call tools and remember, with GRPO."""

from agentgrpo.core.compute_threads import wait_asleep
from agentgrpo.core.reproducible import ask_for_exact_products

TYPE_CHECKING = False
if TYPE_CHECKING:  # stands in for typing.TYPE_CHECKING: importing typing would double this module's import time
    from agentgrpo.api import evaluate, resume, train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "resume", "train"]

ask_for_exact_products()  # before loading libraries that read the setting
wait_asleep()


def __getattr__(name: str) -> object:
    """Import the Python API on first use, so that the command line handles Ctrl-C before the heavy imports."""
    if name not in __all__:
        raise AttributeError(f"module 'agentgrpo' has no attribute '{name}'; it has {', '.join(__all__)}")
    from agentgrpo import api

    return getattr(api, name)
