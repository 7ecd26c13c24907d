"""The resources a stage uses: CPU and memory of its process tree, disk, GPUs."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pynvml
import structlog

from service.contract.stage.events import Metric
from service.settings import get_settings
from worker.devices.gpus import nvml

log = structlog.get_logger(__name__)

_STOP_SECONDS: Final = 5.0
_FIRST_SECONDS: Final = 1.0
"""Until the first sample, so that a short stage has one too."""


class SystemSampler:
    """Samples the stage `pid` and its descendants on a thread, every `interval` seconds.

    `emit` is called with Metric(kind="system"); its step is whole seconds since `created_at`,
    so that the numbers of all attempts share one axis. `gpus`: UUIDs of the stage's GPUs; no
    other is sampled.
    """

    def __init__(
        self,
        pid: int,
        emit: Callable[[Metric], None],
        created_at: datetime,
        interval: float = 10.0,
        *,
        disk: Path | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        self._pid = pid
        self._emit = emit
        self._created_at = created_at
        self._interval = interval
        self._disk = disk or get_settings().home
        self._gpus = gpus
        self._processes: dict[int, psutil.Process] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        with _gpus(self._gpus) as gpus:
            self._usage()  # psutil measures CPU time between two calls
            wait = min(self._interval, _FIRST_SECONDS)
            while not self._stop.wait(wait):
                wait = self._interval
                values = self._usage()
                if values is None:
                    return
                values["disk_free_bytes"] = float(psutil.disk_usage(str(self._disk)).free)
                values |= gpus.usage()
                step = max(0, int((datetime.now(UTC) - self._created_at).total_seconds()))
                self._emit(Metric(kind="system", step=step, values=values))

    def _usage(self) -> dict[str, float] | None:
        """Sums over the process tree; None if the stage has ended."""
        cpu, memory, alive = 0.0, 0, False
        for process in self._tree():
            try:
                with process.oneshot():
                    cpu += process.cpu_percent(None)
                    memory += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            alive = True
        return {"cpu_percent": cpu, "memory_rss_bytes": float(memory)} if alive else None

    def _tree(self) -> Iterator[psutil.Process]:
        """The same objects at each call, because each remembers its last CPU time."""
        try:
            root = self._processes.get(self._pid) or psutil.Process(self._pid)
            found = {process.pid: process for process in [root, *root.children(recursive=True)]}
        except psutil.NoSuchProcess:
            return
        self._processes = {pid: self._processes.get(pid, found[pid]) for pid in found}
        yield from self._processes.values()


class _Gpus:
    """A job's GPUs, numbered in its own order, as `cuda:0`, `cuda:1` are."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = uuids
        self._reported: set[str] = set()

    def usage(self) -> dict[str, float]:
        """The values that NVML reports; others are left out."""
        values: dict[str, float] = {}
        for index, uuid in enumerate(self._uuids):
            for name, read in _VALUES.items():
                with self._reporting(f"gpu_{index}_{name}"):
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                    values[f"gpu_{index}_{name}"] = read(handle)
        return values

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Log the first error of each value: the sampling continues without it."""
        try:
            yield
        except pynvml.NVMLError as error:
            if name not in self._reported:
                log.warning("nvml.value_missing", name=name, error=str(error))
            self._reported.add(name)


_VALUES: Final[dict[str, Callable[[Any], float]]] = {
    "memory_used_bytes": lambda handle: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
    # Not supported by MIG instances.
    "utilization_percent": lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
}


@contextmanager
def _gpus(uuids: Sequence[str]) -> Iterator[_Gpus]:
    """No GPUs if NVML does not work, which is logged."""
    with ExitStack() as stack:
        try:
            if uuids:
                stack.enter_context(nvml())
        except pynvml.NVMLError as error:
            log.warning("nvml.unavailable", error=str(error))
            uuids = ()
        yield _Gpus(uuids)
