"""As stub_worker, with two GPUs, which are NVML's stand-in."""

import pytest

from tests.fakes.nvml import Gpu, Nvml
from tests.faults.stub_worker import command
from tests.worker import stub_worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    stub_worker.run(command)
