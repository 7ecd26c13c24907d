"""A real worker on two simulated GPUs (a stand-in for NVML), with stub stages."""

import pytest

from tests.fakes.nvml import Gpu, Nvml
from tests.stubs import stage, worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    worker.run(stage.command)
