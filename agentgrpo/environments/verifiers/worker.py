"""The process that runs a verifiers environment: a script that needs only verifiers and the standard library, so that
its interpreter may have other packages than the trainer's.

    worker.py ID            prints the rows as a line of JSON, {"train": [...], "eval": [...]}
    worker.py ID SOCKET     plays rollouts, each on a separate connection: a line with the row and the base
                            URL in, a line with the reward out. Closing the connection stops the rollout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

KEY = "AGENTGRPO_ENDPOINT_KEY"
ARGUMENTS = "AGENTGRPO_ARGUMENTS"
"""The variable with the package's arguments. They may hold secrets, and every user can list the words of a process."""
_LINE = 16 * 2**20


def load(name: str, arguments: dict[str, Any]) -> Any:
    import verifiers

    if not hasattr(verifiers, "load_environment"):
        raise SystemExit(
            f"verifiers {verifiers.__version__} has no load_environment; packages with a rubric need verifiers<0.2: "
            "pip install 'verifiers<0.2', in a separate environment that environment.python names"
        )
    return verifiers.load_environment(name, **arguments)


def rows_of(environment: Any) -> dict[str, list[Any]]:
    """Return the rows; "eval" is empty if the environment has no evaluation set of its own."""
    train = [dict(row) for row in environment.get_dataset()]
    environment.build_eval_dataset()
    own = environment.eval_dataset is not None and environment.eval_dataset is not environment.dataset
    return {"train": train, "eval": [dict(row) for row in environment.get_eval_dataset()] if own else []}


class _Rollouts:
    def __init__(self, environment: Any) -> None:
        from verifiers.types import ClientConfig

        self._environment, self._config = environment, ClientConfig
        self._rows = rows_of(environment)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play one rollout; it is stopped when its client disconnects."""
        with suppress(ConnectionError):
            line = await reader.readline()
            if line:
                playing = asyncio.ensure_future(self._played(json.loads(line)))
                left = asyncio.ensure_future(reader.read())
                await asyncio.wait((playing, left), return_when=asyncio.FIRST_COMPLETED)
                left.cancel()
                if playing.done():
                    writer.write(json.dumps(playing.result(), default=_plain).encode() + b"\n")
                    await writer.drain()
                playing.cancel()
                await asyncio.wait((playing,))
        writer.close()

    async def _played(self, asked: dict[str, Any]) -> dict[str, Any]:
        from verifiers.clients import resolve_client

        client = None
        try:
            row = self._rows[asked["split"]][asked["index"]]
            config = self._config(api_base_url=asked["base_url"], api_key_var=KEY, max_retries=0)
            client = resolve_client(config)
            said = await self._environment.run_rollout(row, client, asked["model"], {})
            if said.get("error") is not None:
                return {"error": str(said["error"])}
            return {"reward": said["reward"], "metrics": said["metrics"], "answer": _last(said.get("completion"))}
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}"}
        finally:
            if client is not None:
                await client.close()


def _plain(value: Any) -> Any:
    """Return a number of numpy or torch as Python's, any other value as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _last(completion: Any) -> str | None:
    """The text of the policy's last message."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion or []):
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            return str(message["content"])
    return None


async def serve(rollouts: _Rollouts, socket: str) -> None:
    # A child that an environment forks and that returns to this loop would answer in its parent's place.
    os.register_at_fork(after_in_child=partial(asyncio.get_running_loop().call_soon, os._exit, 1))
    server = await asyncio.start_unix_server(rollouts.answer, socket, limit=_LINE)
    async with server:
        await server.serve_forever()


def main(name: str, *socket: str) -> None:
    arguments = os.environ.pop(ARGUMENTS)
    os.environ[KEY] = "agentgrpo"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    out = os.dup(1)
    os.dup2(2, 1)  # output of packages goes to standard error
    sys.path.append(str(Path.cwd()))
    environment = load(name, json.loads(arguments))
    if socket:
        asyncio.run(serve(_Rollouts(environment), *socket))
    else:
        with os.fdopen(out, "w", encoding="utf-8") as told:
            told.write(json.dumps(rows_of(environment), default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
