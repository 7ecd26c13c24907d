"""The checks, in the order in which they run: what a later one needs, an earlier one has tried."""

from typing import Final

from worker.doctor.check import GPU, LINUX, Check

CHECKS: Final[tuple[Check, ...]] = (
    Check("driver", "NVIDIA driver", "driver:driver", 30, quick=True),
    Check("torch", "torch and CUDA", "torch_build:torch_build", 30, quick=True),
    Check("devices", "NVML against CUDA", "devices:devices", 30, quick=True, needs=(GPU,)),
    Check(
        "products",
        "a product in each precision",
        "precisions:products",
        90,
        quick=True,
        on_device=True,
    ),
    Check("precision-auto", "`precision: auto`", "precisions:automatic", 90, quick=True),
    Check("compiler", "C and C++ compilers", "compilers:compiler", 120, quick=True),
    Check("triton", "a Triton kernel", "kernels:triton_kernel", 180, needs=(GPU, "triton")),
    Check("compile", "torch.compile", "kernels:torch_compile", 300),
    Check("matmul-speed", "speed of large products", "matmul_speed:matmul_speed", 120),
    Check("forked-stage", "a forked stage", "forked_stage:forked_stage", 240, needs=(LINUX,)),
    Check("shared-memory", "shared memory", "limits:shared_memory", 30, quick=True),
    Check("disk", "disk", "limits:disk", 30, quick=True),
    Check("memory", "memory", "limits:memory", 30, quick=True),
    Check("open-files", "open files", "limits:open_files", 30, quick=True, needs=(LINUX,)),
    Check("allocator", "memory allocator", "allocation:memory_allocator", 60, quick=True),
    Check("home", "FINETUNE_HOME", "storage:home", 60, quick=True, needs=(LINUX,)),
)
