"""An agent of LangGraph over langchain-openai, streamed or not."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from tests.environments.program.agents.calculating import compute


@tool
def calculator(expression: str) -> str:
    """Computes."""
    return compute(expression)


async def run(task, base_url, streaming=False):
    model = ChatOpenAI(model="any", base_url=base_url, api_key="none", streaming=streaming)
    agent = create_react_agent(model, [calculator], prompt="Use the tool.")
    state = await agent.ainvoke({"messages": [("user", task["question"])]})
    return state["messages"][-1].content


async def stream(task, base_url):
    return await run(task, base_url, streaming=True)
