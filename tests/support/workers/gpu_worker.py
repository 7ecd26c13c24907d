"""A real worker on two simulated GPUs (a stand-in for NVML), with stub stages."""

import pytest

from tests.support import forked_stubs
from tests.support.gpus.nvml import Gpu, Nvml
from tests.support.workers import worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    worker.run(forked_stubs.command)
