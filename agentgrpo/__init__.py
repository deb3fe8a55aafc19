"""agentgrpo: train LLM agents that search, call tools and remember, with GRPO."""

__version__ = "0.1.0"
__all__ = ["__version__"]
