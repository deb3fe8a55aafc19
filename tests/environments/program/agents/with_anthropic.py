"""An agent as people write them with Anthropic's SDK: a tool over several turns, streamed or not."""

from anthropic import AsyncAnthropic

from tests.environments.program.agents.calculating import compute

CALCULATOR = {
    "name": "calculator",
    "description": "Computes.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


async def run(task, base_url):
    return await converse(task, base_url, whole)


async def stream(task, base_url):
    return await converse(task, base_url, in_pieces)


async def converse(task, base_url, ask):
    messages = [{"role": "user", "content": task["question"]}]
    async with AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key="none") as client:
        for _ in range(3):
            answer = await ask(client, messages)
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": compute(str(block.input))}
                for block in answer.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results or "Call the tool."})
    return "".join(block.text for block in answer.content if block.type == "text")


def request(messages):
    return {"model": "any", "max_tokens": 500, "system": "Use the tool.", "messages": messages, "tools": [CALCULATOR]}


async def whole(client, messages):
    return await client.messages.create(**request(messages))


async def in_pieces(client, messages):
    async with client.messages.stream(**request(messages)) as events:
        async for _ in events:
            pass
        return await events.get_final_message()
