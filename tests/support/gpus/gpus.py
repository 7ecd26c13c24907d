"""GPUs as a worker lists them (`worker.devices.gpus.gpus`), on a machine that has none."""

from worker.devices.gpus import Device


def gpus(*uuids: str) -> list[Device]:
    """MIG instances are those whose UUID begins with `MIG`."""
    return [
        {"type": "cuda", "index": index, "uuid": uuid, "mig": uuid.startswith("MIG-")}
        for index, uuid in enumerate(uuids)
    ]
