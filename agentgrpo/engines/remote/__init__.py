"""Engines that sample on servers elsewhere, over HTTP.

engine    the Engine: weights written, servers told and checked, calls handed out and repeated
pool      which server: the least loaded; an episode stays where it is; a dead one is left out and comes back
server    one of them: its requests
dialect   what kinds of servers differ in: vllm and sglang each have one
transfer  weights over the network, to whatever runs in a vLLM server's own processes
tempered  whether a server's log-probs are those that it samples by
openai    an Engine of its own: an endpoint that gives text alone, for evaluation
"""
