"""An agent of openai-agents, streamed or not."""

from agents import Agent, AsyncOpenAI, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

from tests.environments.program.agents.calculating import compute

set_tracing_disabled(True)


@function_tool
def calculator(expression: str) -> str:
    """Computes."""
    return compute(expression)


def agent_at(client):
    model = OpenAIChatCompletionsModel(model="any", openai_client=client)
    return Agent(name="Clerk", instructions="Use the tool.", model=model, tools=[calculator])


async def run(task, base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        result = await Runner.run(agent_at(client), task["question"], max_turns=4)
        return result.final_output


async def stream(task, base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        result = Runner.run_streamed(agent_at(client), task["question"], max_turns=4)
        async for _ in result.stream_events():
            pass
        return result.final_output
