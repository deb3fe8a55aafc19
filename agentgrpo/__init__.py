"""agentgrpo: train LLM agents that search, call tools and remember, with GRPO."""

from agentgrpo.core.reproducible import ask_for_exact_products

__version__ = "0.1.0"
__all__ = ["__version__"]

ask_for_exact_products()  # before anything loads the library that reads it
