"""Device and software, which the exact bits of a training's numbers depend on."""

from collections.abc import Mapping

import torch

from service.contract.stage.events import Notice
from worker.devices.cpus import cpu_name

Facts = Mapping[str, str | None]
"""Stored in each checkpoint, so that a resumed training knows where it began."""


def facts(device: torch.device) -> Facts:
    """`device` is the first process's; the names of GPUs are torch's."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if on_gpu else None,
    }


def moved(before: Facts, now: Facts) -> Notice | None:
    """The notice for a training that is resumed elsewhere."""
    differ = [name for name, value in before.items() if now.get(name, value) != value]
    if not differ:
        return None
    changes = ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in differ)
    return Notice(
        message=f"Resumed on another kind of machine ({changes}): the last bits of the numbers may "
        "differ from those of an uninterrupted training",
        data={"before": dict(before), "now": dict(now)},
    )
