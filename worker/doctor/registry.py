"""The checks, in the order in which they run: what a later one needs, an earlier one has tried."""

from typing import Final

from worker.doctor.check import Check

CHECKS: Final[tuple[Check, ...]] = (
    Check("driver", "NVIDIA driver", "driver:driver", 20, quick=True),
    Check("torch", "torch and CUDA", "torch_build:torch_build", 60, quick=True),
)
