"""The checks in the order in which they run: later ones depend on what earlier ones test."""

from typing import Final

from worker.doctor.check import GPU, IDLE_GPU, LINUX, TORCH, Check
from worker.doctor.checks.tasks import TABLE
from worker.doctor.checks.trainings import PAIRS

_COMPUTES: Final = (IDLE_GPU, TORCH)
CHECKS: Final[tuple[Check, ...]] = (
    Check("driver", "NVIDIA driver", "gpus:driver", 30, quick=True),
    Check("torch", "torch and CUDA", "gpus:torch_build", 30, quick=True),
    Check("devices", "NVML against CUDA", "gpus:devices", 30, quick=True, needs=(GPU,)),
    Check(
        "products",
        "a product in each precision",
        "kernels:products",
        90,
        quick=True,
        needs=_COMPUTES,
    ),
    Check("compiler", "C and C++ compilers", "compilers:compiler", 120, quick=True),
    Check("compile", "torch.compile", "kernels:torch_compile", 300, needs=(TORCH,)),
    Check("out-of-memory", "a full GPU", "kernels:out_of_memory", 60, needs=(GPU,)),
    Check("shared-memory", "shared memory", "limits:shared_memory", 30, quick=True),
    Check("disk", "disk", "limits:disk", 30, quick=True),
    Check("memory", "memory", "limits:memory", 30, quick=True),
    Check("open-files", "open files", "limits:open_files", 30, quick=True, needs=(LINUX,)),
    Check("allocator", "memory allocator", "stages:memory_allocator", 60, quick=True),
    Check("sandbox", "sandbox of stages", "stages:sandbox", 120, quick=True),
    Check("stage-limits", "limits of stages", "stages:limits", 30, quick=True, needs=(LINUX,)),
    Check("home", "FINETUNE_HOME", "storage:home", 60, quick=True, needs=(LINUX,)),
    *(
        Check(name, pair.title, "trainings:compare", 300, trains=True, needs=(TORCH, *pair.needs))
        for name, pair in PAIRS.items()
    ),
    *(
        Check(task, f"task {task}", "tasks:task", 300, trains=True, thorough=True, needs=(TORCH,))
        for task in TABLE
    ),
)
