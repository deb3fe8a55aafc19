"""An agent as people write them with OpenAI's SDK: a tool over several turns, streamed or not."""

import json

from openai import AsyncOpenAI

from tests.environments.program.agents.calculating import compute

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


async def run(task, base_url):
    return await converse(task, base_url, whole)


async def stream(task, base_url):
    return await converse(task, base_url, in_pieces)


async def converse(task, base_url, ask):
    messages = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for _ in range(3):
            message = await ask(client, messages)
            messages.append(message)
            calls = message.get("tool_calls", [])
            for call in calls:
                result = compute(str(json.loads(call["function"]["arguments"])))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not calls:
                messages.append({"role": "user", "content": "Call the tool."})
    return message.get("content") or ""


async def whole(client, messages):
    answer = await client.chat.completions.create(model="any", messages=messages, tools=[CALCULATOR])
    return answer.choices[0].message.model_dump(exclude_none=True)


async def in_pieces(client, messages):
    content, calls = "", {}
    chunks = await client.chat.completions.create(model="any", messages=messages, tools=[CALCULATOR], stream=True)
    async for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        calls |= {call.index: call.model_dump(exclude={"index"}) for call in delta.tool_calls or ()}
    message = {"role": "assistant", "content": content or None}
    return message | {"tool_calls": list(calls.values())} if calls else message
