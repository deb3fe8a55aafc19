"""agentgrpo: train LLM agents that search, call tools and remember, with GRPO."""

from agentgrpo.core.compute_threads import wait_asleep
from agentgrpo.core.reproducible import ask_for_exact_products

TYPE_CHECKING = False
if TYPE_CHECKING:  # as typing has it, which takes as long to import as all of this
    from agentgrpo.api import evaluate, resume, train

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "resume", "train"]

ask_for_exact_products()  # before anything loads the libraries that read it
wait_asleep()


def __getattr__(name: str) -> object:
    """What is called from Python is imported when it is first named: the command line must heed Ctrl-C before."""
    if name not in __all__:
        raise AttributeError(f"module 'agentgrpo' has no attribute '{name}'; it has {', '.join(__all__)}")
    from agentgrpo import api

    return getattr(api, name)
