"""The specs of `examples/`, made short enough for a test."""

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


def example_spec(name: str) -> dict[str, Any]:
    """The example with its files as paths, on the CPU, at most five steps."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    dataset = body["dataset"]
    dataset["source"] = "path"
    for split in ("train", "validation", "test"):
        if split in dataset:
            dataset[split] = str((EXAMPLES / dataset[split]).resolve())
    body["training"] |= {"max_steps": 5, "logging_steps": 1, "use_cpu": True}
    return body
