"""What torch reports about CUDA."""

import warnings

from worker.doctor.check import Context, TorchView


def query(_: Context) -> TorchView:
    """Starts CUDA if it is available, so only a process that does nothing else may call it."""
    try:
        import torch
    except ImportError as error:
        return TorchView(reason=str(error))

    view = TorchView(version=str(torch.__version__), cuda_build=torch.version.cuda)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    # In torch's own words: its warnings, and the error from starting CUDA.
    reasons = [str(warning.message) for warning in caught]
    try:
        torch.cuda.init()
        properties = [*map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]
    except (RuntimeError, AssertionError) as error:  # CUDA may count devices that it cannot start
        reasons.append(str(error))
        available = False
    if not available:
        return view.model_copy(update={"reason": "; ".join(dict.fromkeys(reasons))})
    devices = [
        {
            "index": index,
            "name": gpu.name,
            "uuid": f"GPU-{gpu.uuid}",
            "capability": [gpu.major, gpu.minor],
            "memory_bytes": gpu.total_memory,
        }
        for index, gpu in enumerate(properties)
    ]
    known = {"available": True, "devices": devices, "architectures": torch.cuda.get_arch_list()}
    return view.model_copy(update=known)
