"""What torch reports about CUDA."""

import warnings

from worker.doctor.check import Context, TorchView


def query(_: Context) -> TorchView:
    """Starts CUDA if it is available, so only a process that does nothing else may call it."""
    try:
        import torch
    except ImportError as error:
        return TorchView(reason=str(error))

    version, build = str(torch.__version__), torch.version.cuda
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        return TorchView(version=version, cuda_build=build, reason=_reason(caught))
    try:
        devices = [_device(index) for index in range(torch.cuda.device_count())]
    except RuntimeError as error:  # CUDA may count devices that it cannot start
        return TorchView(version=version, cuda_build=build, reason=str(error))
    return TorchView(
        version=version,
        cuda_build=build,
        available=True,
        devices=devices,
        architectures=torch.cuda.get_arch_list(),
    )


def _reason(caught: list[warnings.WarningMessage]) -> str:
    """torch's own words: its warnings, and the error from starting CUDA."""
    import torch

    reasons = [str(warning.message) for warning in caught]
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reasons.append(str(error))
    return "; ".join(dict.fromkeys(reasons))


def _device(index: int) -> dict[str, object]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
    }
