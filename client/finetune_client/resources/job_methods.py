"""The methods that `client.jobs` and a job have in common, by the job's id."""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from finetune_client import types
from finetune_client.http import bodies, calls, flows, streams
from finetune_client.http.transport import AsyncResource, Resource
from finetune_client.model import Model
from finetune_client.progress import shown
from finetune_client.resources import job_calls
from finetune_client.resources.job_calls import POLL_SECONDS, PREDICT_SECONDS, Rows, Step
from finetune_client.tables import MOST_ROWS, Table

Patch = Mapping[str, Any] | Model | None
Paths = list[Path]
J = TypeVar("J", bound=types.Job)


class JobMethods(Resource, Generic[J]):
    """`J`: the class of the jobs that the methods return."""

    def retrieve(self, job_id: str) -> J:
        return self._job(calls.get(calls.job(job_id)))

    def cancel(self, job_id: str) -> J:
        return self._job(calls.act(job_id, "cancel"))

    def pause(self, job_id: str) -> J:
        return self._job(calls.act(job_id, "pause"))

    def resume(self, job_id: str) -> J:
        return self._job(calls.act(job_id, "resume"))

    def retry(self, job_id: str) -> J:
        """Not sent again after a lost answer: the job may have failed again meanwhile."""
        return self._job(calls.retry_job(job_id))

    def clone(
        self,
        job_id: str,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> J:
        """A new job from the spec of this one, with a JSON merge patch applied, or its sections by
        name."""
        body = bodies.spec(patch, sections)
        return self._job(calls.clone_job(job_id, body, bodies.key(idempotency_key), force=force))

    def publish(self, job_id: str, hub: Patch = None, **fields: Any) -> J:
        """Push the finished model; `hub` is that section of a spec, or its fields by name."""
        return self._job(calls.publish_job(job_id, bodies.spec(hub, fields)))

    def promote(self, job_id: str, step: int) -> J:
        """Make the checkpoint of this step the job's model."""
        return self._job(calls.promote(job_id, step))

    def delete(self, job_id: str) -> types.JobDeleted:
        return self._read(types.JobDeleted, calls.change("DELETE", calls.job(job_id)))

    def events(self, job_id: str) -> Iterator[types.Event]:
        """What has happened so far."""
        path = calls.job(job_id, "events")
        return self._pages(types.Event, path, "seq", limit=calls.MOST_EVENTS)

    def stream(
        self, job_id: str, after: int = 0, poll: float = POLL_SECONDS
    ) -> Iterator[types.Event]:
        """As `Job.stream`."""
        return self._transport.iterate(streams.events(self._policy, job_id, after, poll))

    def stream_logs(
        self, job_id: str, offset: int = 0, poll: float = POLL_SECONDS
    ) -> Iterator[types.LogPart]:
        """As `Job.stream_logs`."""
        return self._transport.iterate(streams.log(self._policy, job_id, offset, poll))

    def metrics(self, job_id: str) -> Iterator[types.MetricPoint]:
        path = calls.job(job_id, "metrics")
        return self._pages(types.MetricPoint, path, "seq", limit=calls.MOST_EVENTS)

    def metrics_table(self, job_id: str, most: int = MOST_ROWS) -> Table[dict[str, Any]]:
        """The latest metrics of training and evaluation, a row for each step."""
        return job_calls.metrics_table(self.metrics(job_id), most)

    def checkpoints(self, job_id: str) -> Iterator[types.Checkpoint]:
        return self._pages(types.Checkpoint, calls.job(job_id, "checkpoints"), "step")

    def checkpoint(self, job_id: str, step: int) -> types.CheckpointDetail:
        """One checkpoint with its evaluation and its files."""
        call = calls.get(calls.job(job_id, "checkpoints", step))
        return self._read(types.CheckpointDetail, call)

    def artifacts(self, job_id: str) -> Iterator[types.Artifact]:
        return self._pages(types.Artifact, calls.job(job_id, "artifacts"), "name")

    def deliveries(
        self, job_id: str, state: types.DeliveryState | None = None
    ) -> Iterator[types.Delivery]:
        """What webhooks were sent of a job, the newest first."""
        return self._pages(types.Delivery, calls.job(job_id, "deliveries"), state=state)

    def logs(self, job_id: str, offset: int = 0) -> types.LogPart:
        """A part of what the stages printed; the next starts at `next_offset`, in bytes."""
        return self._read(types.LogPart, calls.log_part(job_id, offset))

    def wait(
        self,
        job_id: str,
        timeout: float | None = None,
        poll: float = POLL_SECONDS,
        *,
        progress: bool = False,
    ) -> J:
        """As `Job.wait`."""
        with shown(wanted=progress) as show:
            flow = flows.ended(self._policy, job_id, poll, timeout, show)
            return self._job_of(self._transport.run(flow))

    def download(self, job_id: str, folder: str | Path, *, step: int | None = None) -> Paths:
        """As `Job.download`."""
        return self._transport.run(job_calls.download(self._policy, job_id, folder, step))

    def predict(
        self,
        job_id: str,
        rows: Rows,
        *,
        step: Step = None,
        timeout: float = PREDICT_SECONDS,
    ) -> types.Prediction:
        """As `Job.predict`."""
        return self._transport.run(job_calls.predicted(self._policy, job_id, rows, step, timeout))

    def _job(self, call: calls.Call) -> J:
        return self._job_of(self._json(call))

    def _job_of(self, page: dict[str, Any]) -> J:
        """The job with this page, on which these methods can be called."""
        raise NotImplementedError


class AsyncJobMethods(AsyncResource, Generic[J]):
    """The methods of `JobMethods`, to await or to iterate over with `async for`."""

    async def retrieve(self, job_id: str) -> J:
        return await self._job(calls.get(calls.job(job_id)))

    async def cancel(self, job_id: str) -> J:
        return await self._job(calls.act(job_id, "cancel"))

    async def pause(self, job_id: str) -> J:
        return await self._job(calls.act(job_id, "pause"))

    async def resume(self, job_id: str) -> J:
        return await self._job(calls.act(job_id, "resume"))

    async def retry(self, job_id: str) -> J:
        return await self._job(calls.retry_job(job_id))

    async def clone(
        self,
        job_id: str,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> J:
        body = bodies.spec(patch, sections)
        return await self._job(
            calls.clone_job(job_id, body, bodies.key(idempotency_key), force=force)
        )

    async def publish(self, job_id: str, hub: Patch = None, **fields: Any) -> J:
        return await self._job(calls.publish_job(job_id, bodies.spec(hub, fields)))

    async def promote(self, job_id: str, step: int) -> J:
        return await self._job(calls.promote(job_id, step))

    async def delete(self, job_id: str) -> types.JobDeleted:
        return await self._read(types.JobDeleted, calls.change("DELETE", calls.job(job_id)))

    def events(self, job_id: str) -> AsyncIterator[types.Event]:
        path = calls.job(job_id, "events")
        return self._pages(types.Event, path, "seq", limit=calls.MOST_EVENTS)

    def stream(
        self, job_id: str, after: int = 0, poll: float = POLL_SECONDS
    ) -> AsyncIterator[types.Event]:
        return self._transport.iterate(streams.events(self._policy, job_id, after, poll))

    def stream_logs(
        self, job_id: str, offset: int = 0, poll: float = POLL_SECONDS
    ) -> AsyncIterator[types.LogPart]:
        return self._transport.iterate(streams.log(self._policy, job_id, offset, poll))

    def metrics(self, job_id: str) -> AsyncIterator[types.MetricPoint]:
        path = calls.job(job_id, "metrics")
        return self._pages(types.MetricPoint, path, "seq", limit=calls.MOST_EVENTS)

    async def metrics_table(self, job_id: str, most: int = MOST_ROWS) -> Table[dict[str, Any]]:
        return job_calls.metrics_table([point async for point in self.metrics(job_id)], most)

    def checkpoints(self, job_id: str) -> AsyncIterator[types.Checkpoint]:
        return self._pages(types.Checkpoint, calls.job(job_id, "checkpoints"), "step")

    async def checkpoint(self, job_id: str, step: int) -> types.CheckpointDetail:
        call = calls.get(calls.job(job_id, "checkpoints", step))
        return await self._read(types.CheckpointDetail, call)

    def artifacts(self, job_id: str) -> AsyncIterator[types.Artifact]:
        return self._pages(types.Artifact, calls.job(job_id, "artifacts"), "name")

    def deliveries(
        self, job_id: str, state: types.DeliveryState | None = None
    ) -> AsyncIterator[types.Delivery]:
        return self._pages(types.Delivery, calls.job(job_id, "deliveries"), state=state)

    async def logs(self, job_id: str, offset: int = 0) -> types.LogPart:
        return await self._read(types.LogPart, calls.log_part(job_id, offset))

    async def wait(
        self,
        job_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 - of the job, as in `Jobs.wait`
        poll: float = POLL_SECONDS,
        *,
        progress: bool = False,
    ) -> J:
        with shown(wanted=progress) as show:
            flow = flows.ended(self._policy, job_id, poll, timeout, show)
            return self._job_of(await self._transport.run(flow))

    async def download(self, job_id: str, folder: str | Path, *, step: int | None = None) -> Paths:
        return await self._transport.run(job_calls.download(self._policy, job_id, folder, step))

    async def predict(
        self,
        job_id: str,
        rows: Rows,
        *,
        step: Step = None,
        timeout: float = PREDICT_SECONDS,  # noqa: ASYNC109 - of the work, not of a request
    ) -> types.Prediction:
        return await self._transport.run(
            job_calls.predicted(self._policy, job_id, rows, step, timeout)
        )

    async def _job(self, call: calls.Call) -> J:
        return self._job_of(await self._json(call))

    def _job_of(self, page: dict[str, Any]) -> J:
        """The job with this page, on which these methods can be called."""
        raise NotImplementedError
