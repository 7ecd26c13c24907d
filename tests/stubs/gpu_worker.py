"""As stub_worker, on a machine with two GPUs: NVML is a stand-in, and the stages are stubs."""

import pytest

from tests.fakes.nvml import Gpu, Nvml
from tests.stubs import stage, worker

if __name__ == "__main__":
    Nvml([Gpu("GPU-a"), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
    worker.run(stage.command)
