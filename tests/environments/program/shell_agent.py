"""An agent with a shell, as coding agents are: whatever the policy writes is run in the working directory, and its
output is told. It keeps the reference that it was told in memory, and pays .25."""

import json
import os
import subprocess
import sys
import urllib.request

TASK = json.load(sys.stdin)
KNOWN = [TASK.get("references")]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode()
    )
    return json.load(OPENER.open(request))["choices"][0]["message"]


messages = [{"role": "user", "content": TASK["question"]}]
for _ in range(2):
    message = ask(messages)
    if message["content"].startswith("ANSWER"):
        break
    try:
        done = subprocess.run(
            message["content"], shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30
        )
        told = done.stdout.decode("utf-8", "replace")[-1500:]
    except subprocess.TimeoutExpired:
        told = "(it did not end)"
    messages += [message, {"role": "user", "content": told or "(nothing)"}]
print(json.dumps({"reward": 0.25, "answer": message["content"]}))
