"""As stub_worker, on a machine with two GPUs: NVML is a stand-in, and the stages are stubs."""

import pytest

from tests.fakes.nvml import Gpu, Nvml
from tests.worker import stub_stage, stub_worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    stub_worker.run(stub_stage.command)
