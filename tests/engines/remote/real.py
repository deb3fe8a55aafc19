"""A real vLLM server on this machine's CPU: `make test-vllm` installs it in an environment of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[3]
VLLM = ROOT / ".bench" / "vllm" / "bin" / "vllm"
START_S = 600.0
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # torch's compiler fails beneath a folder whose name has a space
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_MAX_STOP_STRINGS": "16",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),  # of the worker extension
}


class RealServer:
    """Serves the model in `folder` at `url`, which stays the same over restarts."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._folder, self._log, self._options = folder, log, options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(VLLM), "serve", str(self._folder), "--served-model-name", "tiny", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--enforce-eager", "--dtype", "float32", "--max-model-len", "512"]
        command += ["--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, to all of its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def wait(self) -> None:
        late = time.monotonic() + START_S
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < late, self._log.read_text()[-4000:]
            time.sleep(0.5)

    async def restart(self) -> None:
        """Killed and started anew; other tasks go on meanwhile."""
        self.kill()
        self.start()
        await asyncio.to_thread(self.wait)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
