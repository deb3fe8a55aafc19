"""`agentgrpo serve-environment`: a run's composed environment as an OpenEnv server, for other trainers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from transformers import AutoTokenizer

from agentgrpo.cli.retriever import number_of, opened
from agentgrpo.config.build import ModelPath
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.records.screen import Screen
from agentgrpo.retrieval.server.questions import RequestLimits
from agentgrpo.rollout.hosted import Host
from agentgrpo.run.build import Inputs, build_environment, build_renderer, load_inputs, prepare_start, trusted_code
from agentgrpo.run.settings import settings_of
from agentgrpo.training.process_group import Alone

SESSIONS, IDLE_S = 64, 600
LIMITS = RequestLimits(body_bytes=2**20)
"""A message holds a single turn."""


def serve(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Run `agentgrpo serve-environment`: serves until it is stopped, then exit code 0."""
    if find_spec("openenv") is None:
        raise ConfigError("serve-environment needs openenv: pip install 'agentgrpo[openenv-server]'")
    if config["suite"]:
        raise ConfigError("serve-environment serves one environment; leave the suite out: suite=none environment=...")
    logging.captureWarnings(True)
    with Screen(config["run"]["screen"]) as screen:
        inputs = load_inputs(settings_of(config), command.snapshot, screen, Alone())
        host = _host(inputs)
    asyncio.run(_serve(inputs, host, command.arguments))
    return VerbResult()


def _host(inputs: Inputs) -> Host:
    """Build the host. Call it outside any event loop: a warm start may have to make the tokenizer first."""
    model, start = inputs.settings.model, prepare_start(inputs)
    code = trusted_code(model, start)
    tokenizer = AutoTokenizer.from_pretrained(code or start.folder, trust_remote_code=code is not None)
    said = model.describe_tools if isinstance(model, ModelPath) else None
    describes = True if said is None else said  # the client's model has had no warm start
    renderer = build_renderer(inputs, tokenizer, describes=describes)
    environment = build_environment(inputs, renderer, inputs.equipment.for_environment, describes=describes)
    return Host(environment=environment, renderer=renderer, reward=inputs.reward, sampling=inputs.sampling)


async def _serve(inputs: Inputs, host: Host, given: Mapping[str, Any]) -> None:
    from agentgrpo.environments.openenv.sessions import held_to
    from agentgrpo.retrieval.server.running import serve, url_of
    from agentgrpo.run.openenv import app_of

    sessions, idle_s = number_of(given, "max_sessions"), number_of(given, "idle_s")
    for flag, number in (("max-sessions", sessions), ("idle-s", idle_s)):
        if number is not None and number < 1:
            raise ConfigError(f"--{flag} {number}; at least 1 is allowed")
    name = inputs.settings.task.name
    with opened(given) as (bound, gate):
        try:
            has_tools = await host.has_tools(inputs.dataset.split("train")[0])
            app = app_of(host, inputs.dataset, name=name, has_tools=has_tools, max_sessions=sessions or SESSIONS)
            held = held_to(app, idle_s=idle_s or IDLE_S, body_bytes=LIMITS.body_bytes)

            def ready() -> None:
                actions = "text and tool_calls" if has_tools else "text"
                print(f"serving {name} at {url_of(bound)}: {actions}", flush=True)

            await serve(held, bound, gate=gate, limits=LIMITS, grace_s=5, ready=ready, websockets=True)
        finally:
            for part in (*inputs.equipment.closing, host.environment, inputs.meter):
                await part.close()
