"""An agent of openai-agents as it comes: it asks in Responses."""

from agents import Agent, AsyncOpenAI, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled

from tests.environments.program.agents.calculating import compute

set_tracing_disabled(True)


@function_tool
def calculator(expression: str) -> str:
    """Computes."""
    return compute(expression)


CLERK = Agent(name="Clerk", instructions="Use the tool.", model="any", tools=[calculator])


async def run(task, base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        at = RunConfig(model_provider=OpenAIProvider(openai_client=client))
        return (await Runner.run(CLERK, task["question"], max_turns=4, run_config=at)).final_output


async def stream(task, base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        at = RunConfig(model_provider=OpenAIProvider(openai_client=client))
        result = Runner.run_streamed(CLERK, task["question"], max_turns=4, run_config=at)
        async for _ in result.stream_events():
            pass
        return result.final_output
