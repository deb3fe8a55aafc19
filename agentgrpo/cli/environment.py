"""`agentgrpo serve-environment`: what was composed for a run, as an OpenEnv server for whoever trains on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from transformers import AutoTokenizer

from agentgrpo.cli.retriever import number_of, say
from agentgrpo.config.build import ModelPath
from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.records.screen import Screen
from agentgrpo.rollout.hosted import Host
from agentgrpo.run.build import Inputs, build_environment, build_renderer, load_inputs, prepare_start, trusted_code
from agentgrpo.run.settings import settings_of
from agentgrpo.training.process_group import Alone

SESSIONS = 64


def serve(config: Mapping[str, Any], command: Command) -> VerbResult:
    """`agentgrpo serve-environment`: answers until it is told to stop; exit code 0 then."""
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
    """Call it outside of any event loop: a tokenizer may have to be made first, by a warm start."""
    model, start = inputs.settings.model, prepare_start(inputs)
    code = trusted_code(model, start)
    tokenizer = AutoTokenizer.from_pretrained(code or start.folder, trust_remote_code=code is not None)
    said = model.describe_tools if isinstance(model, ModelPath) else None
    describes = True if said is None else said  # whoever acts has had no warm start
    renderer = build_renderer(inputs, tokenizer, describes=describes)
    environment = build_environment(inputs, renderer, inputs.equipment.for_environment, describes=describes)
    return Host(environment=environment, renderer=renderer, reward=inputs.reward, sampling=inputs.sampling)


async def _serve(inputs: Inputs, host: Host, given: Mapping[str, Any]) -> None:
    from agentgrpo.retrieval.server.running import listening, serve, url_of
    from agentgrpo.run.openenv import app_of

    address, port, sessions = given["host"] or "127.0.0.1", number_of(given, "port"), number_of(given, "max_sessions")
    if sessions is not None and sessions < 1:
        raise ConfigError(f"--max-sessions {sessions}; at least 1 is allowed")
    name = inputs.settings.task.name
    with listening(address, 8000 if port is None else port) as bound:
        try:
            has_tools = await host.has_tools(inputs.dataset.split("train")[0])
            app = app_of(host, inputs.dataset, name=name, has_tools=has_tools, max_sessions=sessions or SESSIONS)

            def ready() -> None:
                print(
                    f"serving {name} at {url_of(bound)}: {'text and tool_calls' if has_tools else 'text'}", flush=True
                )
                if not address.startswith("127.") and address not in ("localhost", "::1"):
                    say("note: whoever reaches this machine may act in it; nobody is asked for a password")

            await serve(app, bound, grace_s=5, ready=ready, websockets=True)
        finally:
            for part in (*inputs.equipment.closing, host.environment, inputs.meter):
                await part.close()
