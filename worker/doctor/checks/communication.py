"""How the processes of one training communicate: bandwidth and peer access."""

import json
import os
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from worker.doctor.check import Context, Finding, failed, ok

if TYPE_CHECKING:
    import torch

_SIZES: Final = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "16 MiB": 1 << 24}
_ROUNDS: Final = 5
_NCCL_REMEDY: Final = (
    "Set NCCL_DEBUG=INFO and run this again: NCCL then reports what is missing. Until it works, "
    "train with `resources.gpus: 1`."
)


def all_reduce(context: Context) -> Finding:
    """The speed of an all-reduce between two processes on the CPU, or one process per GPU."""
    count = max(2, len(context.torch.devices))
    backend = "nccl" if len(context.torch.devices) > 1 else "gloo"
    file = context.scratch / "bandwidth.json"
    try:
        _in_processes(backend, count, file)
    except (RuntimeError, OSError) as error:
        summary = f"all-reduce by {backend} in {count} processes failed"
        return failed(summary, reason=str(error)[-1500:], remedy=_NCCL_REMEDY)
    rates = json.loads(file.read_text())
    largest = list(_SIZES)[-1]
    return ok(
        f"{backend}, {count} processes: {rates[largest] / 1e9:.2f} GB/s at {largest}",
        backend=backend,
        processes=count,
        bytes_per_second=rates,
        peers=_peers(context),
    )


def _in_processes(backend: str, count: int, file: Path) -> None:
    """Fork this process, which has imported torch. RuntimeError if one of the forks fails."""
    from torch.multiprocessing.spawn import ProcessException, start_processes

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may not resolve
    try:
        arguments = (backend, count, str(file))
        start_processes(_rank, arguments, nprocs=count, start_method="fork")
    except ProcessException as error:
        raise RuntimeError(str(error)) from error


def _peers(context: Context) -> JsonValue:
    """Whether each pair of GPUs can read each other's memory directly."""
    if len(context.torch.devices) < 2:
        return None
    import torch

    pairs = combinations(range(len(context.torch.devices)), 2)
    return {f"{a}-{b}": bool(torch.cuda.can_device_access_peer(a, b)) for a, b in pairs}


# ---- in a forked process ------------------------------------------------------------------


def _rank(number: int, backend: str, count: int, file: str) -> None:
    import torch
    from torch import distributed

    device = torch.device("cuda", number) if backend == "nccl" else torch.device("cpu")
    distributed.init_process_group(
        backend, init_method=f"file://{file}.rendezvous", rank=number, world_size=count
    )
    rates = {name: _rate(size, count, device) for name, size in _SIZES.items()}
    if number == 0:
        Path(file).write_text(json.dumps(rates))
    distributed.destroy_process_group()


def _rate(size: int, count: int, device: "torch.device") -> float:
    """Bytes per second sent by each process in a ring, as NCCL's tests count them."""
    import torch
    from torch import distributed

    tensor = torch.ones(size // 4, device=device)
    distributed.all_reduce(tensor)
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(_ROUNDS):
        distributed.all_reduce(tensor)
    _synchronize(device)
    seconds = (time.perf_counter() - begin) / _ROUNDS
    return size * 2 * (count - 1) / count / seconds


def _synchronize(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
