"""The checks in the order in which they run: later ones depend on what earlier ones test."""

from typing import Final

from worker.doctor.check import GPU, LINUX, TWO_GPUS, Check


def _jobs(name: str, title: str, run: str, seconds: float, *needs: str) -> Check:
    """A check that runs the stages of tiny jobs."""
    return Check(name, title, run, seconds, forks=True, needs=(LINUX, *needs))


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
    Check("sandbox", "sandbox of stages", "sandbox:sandbox", 120, quick=True),
    Check("stage-limits", "limits of stages", "sandbox:limits", 30, quick=True, needs=(LINUX,)),
    Check("home", "FINETUNE_HOME", "storage:home", 60, quick=True, needs=(LINUX,)),
    _jobs("lora-8-bit", "8-bit LoRA", "quantization:eight_bits", 120, "bitsandbytes", "peft"),
    _jobs("lora-4-bit", "4-bit LoRA", "quantization:four_bits", 120, GPU, "bitsandbytes", "peft"),
    _jobs("optimizers-paged", "paged optimizers", "optimizers:paged", 120, GPU, "bitsandbytes"),
    _jobs("optimizers-torchao", "torchao's optimizers", "optimizers:torchao", 300, "torchao"),
    _jobs("tasks", "a tiny job of every task", "tasks:tasks", 300),
    _jobs("overflow", "fp16 with an overflow", "overflow:overflow", 120),
    _jobs("oom-training", "out of memory: training", "out_of_memory:training", 120),
    _jobs("oom-evaluation", "out of memory: evaluation", "out_of_memory:evaluation", 120),
    _jobs("oom-cublas", "out of memory: cuBLAS", "out_of_memory:cublas", 120, GPU),
    _jobs("checkpoint-background", "checkpoints in the background", "checkpoints:background", 120),
    _jobs("checkpoint-resumed", "killed and resumed", "checkpoints:resumed", 120),
    _jobs("checkpoint-devices", "resumed with one GPU", "checkpoints:devices", 180, TWO_GPUS),
    _jobs("determinism", "the same twice", "determinism:determinism", 180),
    _jobs("packing", "batches without padding", "packing:packing", 180),
    _jobs("packing-chat", "packed conversations", "packing:conversations", 180),
    _jobs("packing-preference", "pairs without padding", "packing:preferences", 180),
    _jobs("all-reduce", "all-reduce", "communication:all_reduce", 120),
    _jobs("ranks-ddp", "two processes: DDP", "ranks:data_parallel", 180),
    _jobs("ranks-fsdp", "two processes: FSDP", "ranks:sharded", 180),
    _jobs("ranks-killed", "two processes: one is killed", "ranks:killed", 180),
    _jobs("nccl-error", "an NCCL error", "ranks:nccl_error", 180, TWO_GPUS),
    _jobs("speed", "speed", "speed:speed", 300),
    _jobs("job-metrics", "a job's metrics", "job_metrics:job_metrics", 120),
)
