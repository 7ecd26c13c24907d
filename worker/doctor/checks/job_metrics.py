"""Whether what a worker reports of a running job is the job's own: its GPU, its CPU and memory."""

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


_LEAST = 32 * 1024**2
"""Memory that a process takes of a GPU by computing on it at all."""


def job_metrics(context: Context) -> Finding:
    """The job gets the last of several GPUs: a worker that reports the first is found out."""
    jobs = Jobs.of(context)
    own = list(jobs.gpus[-1:])
    idle = {uuid: _memory_used(uuid) for uuid in own}
    watch = _Sampling(context, own)
    ended = jobs.train(gpus=own, watch=watch, max_steps=60, logging_steps=1000)
    watch.stop()
    if not ended.finished:
        return failed("a job failed", reason=ended.how, remedy="See the line `tasks`.")
    values = watch.most()
    wrong = _wrong(values, list(idle.values()))
    if wrong:
        return failed("the job's metrics are not its own", reason=wrong, remedy=_REMEDY, **values)
    return ok(
        f"CPU {values['cpu_percent']:.0f} %, memory {values['memory_rss_bytes'] / 2**20:.0f} MiB"
        + "".join(f", {name}" for name in sorted(values) if name.startswith("gpu_")),
        **values,
    )


class _Sampling:
    """Samples the stage from its first event on, as its supervisor does."""

    def __init__(self, context: Context, gpus: list[str]) -> None:
        self._disk = context.scratch
        self._gpus = gpus
        self._samples: list[dict[str, float]] = []
        self._sampler: SystemSampler | None = None

    def __call__(self, child: Child, _event: StageEvent) -> None:
        if self._sampler is None:
            now = datetime.now(UTC)
            self._sampler = SystemSampler(
                child.pid, self._note, now, _INTERVAL, disk=self._disk, gpus=self._gpus
            )
            self._sampler.start()

    def _note(self, metric: Metric) -> None:
        self._samples.append(metric.values)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def most(self) -> dict[str, Any]:
        """The largest value of each name."""
        names = {name for sample in self._samples for name in sample}
        return {n: max(s[n] for s in self._samples if n in s) for n in sorted(names)}


def _wrong(values: dict[str, Any], idle: list[int]) -> str:
    """Why the numbers cannot be the job's; empty if they can. `idle`: memory in use on each of its
    GPUs before it began."""
    if not values.get("cpu_percent") or not values.get("memory_rss_bytes"):
        return f"a running job shows no CPU or no memory: {values}"
    shown = {name.split("_")[1] for name in values if name.startswith("gpu_")}
    if shown != {str(number) for number in range(len(idle))}:
        return f"the job has {len(idle)} GPUs, and the metrics show {len(shown)}"
    for number, before in enumerate(idle):
        used = values[f"gpu_{number}_memory_used_bytes"] - before
        if used < _LEAST:
            return f"the job runs, and its GPU's memory in use grew by {used:,.0f} bytes only"
    return ""


def _memory_used(uuid: str) -> int:
    with nvml():
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)
