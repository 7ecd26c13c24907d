from typing import Any

import pytest

from service.cli.stack.components import computes_on

CPU = {"type": "cpu", "name": "AMD EPYC", "cores": 2}
GPU = {"type": "cuda", "name": "NVIDIA A100", "uuid": "GPU-1"}


@pytest.mark.parametrize(
    ("devices", "queues", "shown"),
    [
        ([CPU], "cpu,gpu", "2 CPU cores (AMD EPYC), no GPU"),
        ([CPU | {"cores": 1}], "cpu", "1 CPU core (AMD EPYC)"),
        ([GPU], "gpu", "1 GPU (NVIDIA A100)"),
        ([GPU, GPU | {"uuid": "GPU-2"}], "cpu,gpu", "2 GPUs (NVIDIA A100)"),
        (
            [GPU | {"uuid": None, "problem": "GPU 0 does not answer"}, CPU],
            "cpu,gpu",
            "2 CPU cores (AMD EPYC), no GPU; GPU 0 does not answer",
        ),
    ],
)
def test_a_worker_says_what_it_computes_on(
    devices: list[dict[str, Any]], queues: str, shown: str
) -> None:
    assert computes_on(devices, queues) == shown
