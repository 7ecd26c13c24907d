"""Checks that the system metrics of a job describe this job: its GPUs, its CPU and its memory."""

from datetime import UTC, datetime
from typing import Any

import pynvml

from service.contract.events import Metric, StageEvent
from worker.devices.gpus import nvml
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs
from worker.processes.child import Child
from worker.supervision.system_metrics import SystemSampler

_INTERVAL = 0.1
_REMEDY = "Ignore the job's system metrics on this machine, and send this report."


_MIN_GPU_BYTES = 32 * 1024**2
"""GPU memory that any process uses that computes on the GPU."""


def job_metrics(context: Context) -> Finding:
    """Run a job on the last GPU, so that metrics of the first one are noticed."""
    jobs = Jobs.of(context)
    own = list(jobs.gpus[-1:])
    idle = {uuid: _memory_used(uuid) for uuid in own}
    sampling = _Sampling(context, own)
    ended = jobs.train(gpus=own, on_event=sampling, max_steps=60, logging_steps=1000)
    sampling.stop()
    if not ended.finished:
        return failed("a job failed", reason=ended.ending, remedy="See the check `tasks`.")
    values = sampling.maxima()
    problem = _problem(values, list(idle.values()))
    if problem:
        return failed(
            "the metrics are not those of the job", reason=problem, remedy=_REMEDY, **values
        )
    return ok(
        f"CPU {values['cpu_percent']:.0f} %, memory {values['memory_rss_bytes'] / 2**20:.0f} MiB"
        + "".join(f", {name}" for name in sorted(values) if name.startswith("gpu_")),
        **values,
    )


class _Sampling:
    """Samples the stage from its first event on, as the supervisor does."""

    def __init__(self, context: Context, gpus: list[str]) -> None:
        self._disk = context.scratch
        self._gpus = gpus
        self._samples: list[dict[str, float]] = []
        self._sampler: SystemSampler | None = None

    def __call__(self, child: Child, _event: StageEvent) -> None:
        if self._sampler is None:
            now = datetime.now(UTC)
            self._sampler = SystemSampler(
                child.pid, self._append, now, _INTERVAL, disk=self._disk, gpus=self._gpus
            )
            self._sampler.start()

    def _append(self, metric: Metric) -> None:
        self._samples.append(metric.values)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def maxima(self) -> dict[str, Any]:
        """The largest value of each name."""
        names = {name for sample in self._samples for name in sample}
        return {n: max(s[n] for s in self._samples if n in s) for n in sorted(names)}


def _problem(values: dict[str, Any], idle: list[int]) -> str:
    """Why the values cannot describe the job; empty if they can. `idle`: the memory in use on each
    of its GPUs before it started."""
    if not values.get("cpu_percent") or not values.get("memory_rss_bytes"):
        return f"a running job shows no CPU or no memory: {values}"
    shown = {name.split("_")[1] for name in values if name.startswith("gpu_")}
    if shown != {str(number) for number in range(len(idle))}:
        return f"the job has {len(idle)} GPUs, and the metrics show {len(shown)}"
    for number, before in enumerate(idle):
        used = values[f"gpu_{number}_memory_used_bytes"] - before
        if used < _MIN_GPU_BYTES:
            return f"the job ran, but the memory in use on its GPU grew by only {used:,.0f} bytes"
    return ""


def _memory_used(uuid: str) -> int:
    with nvml():
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)
