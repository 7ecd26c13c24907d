"""NVIDIA's driver, as NVML tells it."""

import pynvml

from worker.doctor.check import Context, Finding, failed, not_run, ok
from worker.doctor.machine import driver_version


def driver(context: Context) -> Finding:
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        return not_run("not run", reason=f"no NVIDIA driver is loaded here ({error})")
    except pynvml.NVMLError as error:
        return failed(
            "NVIDIA's driver does not answer",
            reason=str(error),
            remedy="Restart the machine; if that does not help, install the driver again.",
        )
    pynvml.nvmlShutdown()
    return ok(f"driver {driver_version()}, {len(context.gpus)} GPU(s)")
