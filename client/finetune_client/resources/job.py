"""One job as its service describes it, and what can be done to it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from finetune_client import types
from finetune_client.errors import JobFailedError
from finetune_client.model import Model
from finetune_client.resources.job_calls import POLL_SECONDS, PREDICT_SECONDS, Rows, Step
from finetune_client.resources.job_methods import AsyncJobMethods, JobMethods, Patch, Paths
from finetune_client.tables import MOST_ROWS, Table


class ListedJob(types.JobSummary):
    """A job of a list: its main fields, and what can be done to it. Methods that change the job
    return it in full."""

    _jobs: "JobMethods[Job]" = PrivateAttr()

    def refresh(self) -> "Job":
        """The job in full, as it is now; of a `Job` the same object."""
        return self._take(self._jobs.retrieve(self.id))

    def wait(
        self,
        timeout: float | None = None,
        poll: float = POLL_SECONDS,
        *,
        progress: bool = False,
    ) -> "Job":
        """Return when it has ended, in whatever state, with its page. Raises WaitTimeoutError after
        `timeout` seconds; with `progress` it shows how far the job is."""
        return self._take(self._jobs.wait(self.id, timeout, poll, progress=progress))

    def raise_for_failure(self) -> Self:
        """The job. Raises JobFailedError if it has failed or was cancelled."""
        _raise_for_failure(self)
        return self

    def stream(self, after: int = 0, poll: float = POLL_SECONDS) -> Iterator[types.Event]:
        """Its events after the one with the number `after` as they happen, each once, until it has
        ended. A lost connection is made again; while too many streams are open, it asks every
        `poll` seconds instead."""
        return self._jobs.stream(self.id, after, poll)

    def stream_logs(self, offset: int = 0, poll: float = POLL_SECONDS) -> Iterator[types.LogPart]:
        """What its stages print, from byte `offset` on, until it has ended."""
        return self._jobs.stream_logs(self.id, offset, poll)

    def events(self) -> Iterator[types.Event]:
        """What has happened so far."""
        return self._jobs.events(self.id)

    def logs(self, offset: int = 0) -> types.LogPart:
        """A part of what its stages printed; the next starts at `next_offset`, in bytes."""
        return self._jobs.logs(self.id, offset)

    def metrics(self) -> Iterator[types.MetricPoint]:
        return self._jobs.metrics(self.id)

    def metrics_table(self, most: int = MOST_ROWS) -> Table[dict[str, Any]]:
        """The latest metrics of training and evaluation, a row for each step."""
        return self._jobs.metrics_table(self.id, most)

    def checkpoints(self) -> Iterator[types.Checkpoint]:
        return self._jobs.checkpoints(self.id)

    def checkpoint(self, step: int) -> types.CheckpointDetail:
        """One checkpoint with its evaluation and its files."""
        return self._jobs.checkpoint(self.id, step)

    def artifacts(self) -> Iterator[types.Artifact]:
        return self._jobs.artifacts(self.id)

    def deliveries(self, state: types.DeliveryState | None = None) -> Iterator[types.Delivery]:
        """Webhook deliveries about it, the newest first."""
        return self._jobs.deliveries(self.id, state)

    def download(self, folder: str | Path, *, step: int | None = None) -> Paths:
        """All that it made, or the checkpoint of a step, below `folder`: every sha256 is checked,
        files that are there already are kept, interrupted ones continued."""
        return self._jobs.download(self.id, folder, step=step)

    def predict(
        self, rows: Rows, *, step: Step = None, timeout: float = PREDICT_SECONDS
    ) -> types.Prediction:
        """What its model, or that of a checkpoint, answers to a few rows: see `answers`. Raises
        PredictionFailedError, and WaitTimeoutError after `timeout` seconds."""
        return self._jobs.predict(self.id, rows, step=step, timeout=timeout)

    def cancel(self) -> "Job":
        return self._take(self._jobs.cancel(self.id))

    def pause(self) -> "Job":
        return self._take(self._jobs.pause(self.id))

    def resume(self) -> "Job":
        return self._take(self._jobs.resume(self.id))

    def retry(self) -> "Job":
        return self._take(self._jobs.retry(self.id))

    def promote(self, step: int) -> "Job":
        """Make the checkpoint of this step its model."""
        return self._take(self._jobs.promote(self.id, step))

    def publish(self, hub: Patch = None, **fields: Any) -> "Job":
        """Push the finished model; `hub` is that section of a spec, or its fields by name."""
        return self._take(self._jobs.publish(self.id, hub, **fields))

    def clone(
        self,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> "Job":
        """A new job from the spec of this one; this one does not change."""
        return self._jobs.clone(
            self.id, patch, idempotency_key=idempotency_key, force=force, **sections
        )

    def delete(self) -> types.JobDeleted:
        return self._jobs.delete(self.id)

    def _take(self, newer: "Job") -> "Job":
        return newer


class _Page(types.Job):
    ignored: list[types.IgnoredOption] = Field(default_factory=list)
    """Options of the spec that do nothing; of a new job."""
    warnings: list[types.SpecWarning] = Field(default_factory=list)
    """About the spec of a new job."""


class Job(_Page, ListedJob):
    """A job's page as it was last read, and what can be done to it: methods that change the job
    update this object and return it."""

    def _take(self, newer: "Job") -> "Job":
        _replace(self, newer)
        return self


class AsyncListedJob(types.JobSummary):
    """The methods of `ListedJob`, to await or to iterate over with `async for`."""

    _jobs: "AsyncJobMethods[AsyncJob]" = PrivateAttr()

    async def refresh(self) -> "AsyncJob":
        return self._take(await self._jobs.retrieve(self.id))

    async def wait(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - of the job, as in `Job.wait`
        poll: float = POLL_SECONDS,
        *,
        progress: bool = False,
    ) -> "AsyncJob":
        return self._take(await self._jobs.wait(self.id, timeout, poll, progress=progress))

    def raise_for_failure(self) -> Self:
        _raise_for_failure(self)
        return self

    def stream(self, after: int = 0, poll: float = POLL_SECONDS) -> AsyncIterator[types.Event]:
        return self._jobs.stream(self.id, after, poll)

    def stream_logs(
        self, offset: int = 0, poll: float = POLL_SECONDS
    ) -> AsyncIterator[types.LogPart]:
        return self._jobs.stream_logs(self.id, offset, poll)

    def events(self) -> AsyncIterator[types.Event]:
        return self._jobs.events(self.id)

    async def logs(self, offset: int = 0) -> types.LogPart:
        return await self._jobs.logs(self.id, offset)

    def metrics(self) -> AsyncIterator[types.MetricPoint]:
        return self._jobs.metrics(self.id)

    async def metrics_table(self, most: int = MOST_ROWS) -> Table[dict[str, Any]]:
        return await self._jobs.metrics_table(self.id, most)

    def checkpoints(self) -> AsyncIterator[types.Checkpoint]:
        return self._jobs.checkpoints(self.id)

    async def checkpoint(self, step: int) -> types.CheckpointDetail:
        return await self._jobs.checkpoint(self.id, step)

    def artifacts(self) -> AsyncIterator[types.Artifact]:
        return self._jobs.artifacts(self.id)

    def deliveries(self, state: types.DeliveryState | None = None) -> AsyncIterator[types.Delivery]:
        return self._jobs.deliveries(self.id, state)

    async def download(self, folder: str | Path, *, step: int | None = None) -> Paths:
        return await self._jobs.download(self.id, folder, step=step)

    async def predict(
        self,
        rows: Rows,
        *,
        step: Step = None,
        timeout: float = PREDICT_SECONDS,  # noqa: ASYNC109 - of the work, not of a request
    ) -> types.Prediction:
        return await self._jobs.predict(self.id, rows, step=step, timeout=timeout)

    async def cancel(self) -> "AsyncJob":
        return self._take(await self._jobs.cancel(self.id))

    async def pause(self) -> "AsyncJob":
        return self._take(await self._jobs.pause(self.id))

    async def resume(self) -> "AsyncJob":
        return self._take(await self._jobs.resume(self.id))

    async def retry(self) -> "AsyncJob":
        return self._take(await self._jobs.retry(self.id))

    async def promote(self, step: int) -> "AsyncJob":
        return self._take(await self._jobs.promote(self.id, step))

    async def publish(self, hub: Patch = None, **fields: Any) -> "AsyncJob":
        return self._take(await self._jobs.publish(self.id, hub, **fields))

    async def clone(
        self,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> "AsyncJob":
        return await self._jobs.clone(
            self.id, patch, idempotency_key=idempotency_key, force=force, **sections
        )

    async def delete(self) -> types.JobDeleted:
        return await self._jobs.delete(self.id)

    def _take(self, newer: "AsyncJob") -> "AsyncJob":
        return newer


class AsyncJob(_Page, AsyncListedJob):
    """The methods of `Job`, to await or to iterate over with `async for`."""

    def _take(self, newer: "AsyncJob") -> "AsyncJob":
        _replace(self, newer)
        return self


def _replace(job: Model, newer: Model) -> None:
    """The fields of the newer page, in the same object. Fields that only the answer to a new job
    has, such as `warnings`, stay."""
    fields = newer.model_fields_set
    job.__dict__.update({name: newer.__dict__[name] for name in newer.__dict__ if name in fields})
    job.__pydantic_fields_set__.update(fields)
    if job.__pydantic_extra__ is not None:
        job.__pydantic_extra__.update(newer.__pydantic_extra__ or {})


def _raise_for_failure(job: types.JobSummary) -> None:
    if job.failure is not None and job.state in ("failed", "cancelled"):
        failure = job.failure
        raise JobFailedError(job.id, failure.code, failure.message, failure.action)
    if job.state in ("failed", "cancelled"):
        raise JobFailedError(job.id, job.state, f"The job is {job.state}.", "See its events.")
