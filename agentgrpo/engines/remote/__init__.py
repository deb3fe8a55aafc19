"""Engines that sample on external servers, over HTTP.

engine    the Engine: writes weights, updates and checks servers, distributes calls and retries them
pool      (in server) picks the least loaded server; an episode stays on it; a failed one is left out until it is back
server    one server: its requests
dialect   (in server) the differences between kinds of servers: vllm and sglang each have one
transfer  sends weights over the network to code that runs in the processes of a vLLM server
tempered  checks whether a server's log-probs are those of the distribution that it samples from
openai    a separate Engine: an endpoint that returns only text, for evaluation
"""
