"""An agent of smolagents, which writes its calls into its history as text of its own."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from tests.environments.program.agents.calculating import compute


@tool
def calculator(expression: str) -> str:
    """Computes.

    Args:
        expression: what to compute
    """
    return compute(expression)


def run(task, base_url):
    model = OpenAIServerModel(model_id="any", api_base=base_url, api_key="none")
    agent = ToolCallingAgent(tools=[calculator], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(task["question"]))
