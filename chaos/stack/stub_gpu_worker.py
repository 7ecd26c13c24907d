"""As stub_worker, with two simulated GPUs (a stand-in for NVML)."""

import pytest

from chaos.stack.stub_worker import command
from tests.support.gpus.nvml import Gpu, Nvml
from tests.support.workers import worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    worker.run(command)
