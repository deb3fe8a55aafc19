"""An agent of pydantic-ai."""

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.environments.program.agents.calculating import compute


async def run(task, base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, system_prompt="Use the tool.")

        @agent.tool_plain
        def calculator(expression: str) -> str:
            """Computes."""
            return compute(expression)

        return (await agent.run(task["question"])).output
