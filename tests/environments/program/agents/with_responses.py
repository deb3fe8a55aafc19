"""An agent of OpenAI's SDK over Responses: a tool over several turns, streamed or not."""

from openai import AsyncOpenAI

from tests.environments.program.agents.calculating import compute

CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Computes.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


async def run(task, base_url):
    return await converse(task, base_url, whole)


async def stream(task, base_url):
    return await converse(task, base_url, in_pieces)


async def converse(task, base_url, ask):
    said = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for _ in range(3):
            answer = await ask(client, {"model": "any", "instructions": "Use the tool.", "input": said})
            said += [item.model_dump(exclude_none=True) for item in answer.output]
            results = [
                {"type": "function_call_output", "call_id": item.call_id, "output": compute(item.arguments)}
                for item in answer.output
                if item.type == "function_call"
            ]
            said += results or [{"role": "user", "content": "Call the tool."}]
    return answer.output_text


async def whole(client, body):
    return await client.responses.create(**body, tools=[CALCULATOR])


async def in_pieces(client, body):
    async for event in await client.responses.create(**body, tools=[CALCULATOR], stream=True):
        if event.type in ("response.completed", "response.incomplete"):
            final = event.response
    return final
