"""`client.jobs`: making, finding and steering jobs."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from finetune_client import bodies, calls, flows, job_calls, streams, tables, types
from finetune_client.job import AsyncJob, AsyncListedJob, Job, ListedJob, Patch, Paths
from finetune_client.job_calls import POLL_SECONDS, PREDICT_SECONDS, Rows, Step
from finetune_client.progress import shown
from finetune_client.tables import MOST_ROWS, Table
from finetune_client.transport import AsyncResource, Resource

Spec = types.JobSpec | Mapping[str, Any] | None
States = list[str] | None
J = TypeVar("J", bound=ListedJob)
A = TypeVar("A", bound=AsyncListedJob)


class Jobs(Resource):
    def create(
        self, spec: Spec = None, *, idempotency_key: str | None = None, **sections: Any
    ) -> Job:
        """Submit a spec, or its sections by name. Sent again with the same key after a lost answer,
        so that it makes one job; the `warnings` about the spec are on the job. Raises
        InvalidSpecError."""
        body = bodies.spec(spec, sections)
        return self._job(calls.create_job(body, bodies.key(idempotency_key)))

    def validate(self, spec: Spec = None, **sections: Any) -> types.Validation:
        """What the service says about a spec, without making a job."""
        return self._read(types.Validation, calls.validate_job(bodies.spec(spec, sections)))

    def preview(
        self,
        spec: Spec = None,
        *,
        rows: int = 100,
        shown: int = 3,
        timeout: float = PREDICT_SECONDS,
        **sections: Any,
    ) -> types.Preview:
        """The first rows of the data as the model would see them, without making a job. Raises
        WaitTimeoutError after `timeout` seconds."""
        body = bodies.spec(spec, sections)
        return self._transport.run(job_calls.previewed(self._policy, body, rows, shown, timeout))

    def retrieve(self, job_id: str) -> Job:
        return self._job(calls.get(calls.job(job_id)))

    def list(
        self,
        *,
        state: States = None,
        task: str | None = None,
        name: str | None = None,
        metadata: dict[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[ListedJob]:
        """All jobs that match, the newest first; further pages are read as they are needed."""
        call = job_calls.listing(state, task, name, metadata, created_after, created_before)
        return self._transport.iterate(
            flows.pages(self._policy, call, "id", partial(self._bound, ListedJob))
        )

    def table(self, most: int = MOST_ROWS) -> Table[ListedJob]:
        """The newest jobs as a list that is shown as a table."""
        return Table(islice(self.list(), most), tables.OF_JOBS, "jobs")

    def cancel(self, job_id: str) -> Job:
        return self._job(calls.act(job_id, "cancel"))

    def pause(self, job_id: str) -> Job:
        return self._job(calls.act(job_id, "pause"))

    def resume(self, job_id: str) -> Job:
        return self._job(calls.act(job_id, "resume"))

    def retry(self, job_id: str) -> Job:
        """Not sent again after a lost answer: the job may have failed again meanwhile."""
        return self._job(calls.retry_job(job_id))

    def clone(
        self,
        job_id: str,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        **sections: Any,
    ) -> Job:
        """A new job from the spec of this one, with a JSON merge patch applied, or its sections by
        name."""
        body = bodies.spec(patch, sections)
        return self._job(calls.clone_job(job_id, body, bodies.key(idempotency_key)))

    def publish(self, job_id: str, hub: Patch = None, **fields: Any) -> Job:
        """Push the finished model; `hub` is that section of a spec, or its fields by name."""
        return self._job(calls.publish_job(job_id, bodies.spec(hub, fields)))

    def promote(self, job_id: str, step: int) -> Job:
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
        return tables.of_metrics(self.metrics(job_id), most)

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
    ) -> Job:
        """As `Job.wait`."""
        with shown(wanted=progress) as show:
            flow = flows.ended(self._policy, job_id, poll, timeout, show)
            return self._bound(Job, self._transport.run(flow))

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

    def _job(self, call: calls.Call) -> Job:
        return self._bound(Job, self._json(call))

    def _bound(self, model: type[J], page: dict[str, Any]) -> J:
        job = bodies.read(model, page)
        job._jobs = self
        return job


class AsyncJobs(AsyncResource):
    """The methods of `Jobs`, to await or to iterate over with `async for`."""

    async def create(
        self, spec: Spec = None, *, idempotency_key: str | None = None, **sections: Any
    ) -> AsyncJob:
        body = bodies.spec(spec, sections)
        return await self._job(calls.create_job(body, bodies.key(idempotency_key)))

    async def validate(self, spec: Spec = None, **sections: Any) -> types.Validation:
        return await self._read(types.Validation, calls.validate_job(bodies.spec(spec, sections)))

    async def preview(
        self,
        spec: Spec = None,
        *,
        rows: int = 100,
        shown: int = 3,
        timeout: float = PREDICT_SECONDS,  # noqa: ASYNC109 - of the work, not of a request
        **sections: Any,
    ) -> types.Preview:
        body = bodies.spec(spec, sections)
        return await self._transport.run(
            job_calls.previewed(self._policy, body, rows, shown, timeout)
        )

    async def retrieve(self, job_id: str) -> AsyncJob:
        return await self._job(calls.get(calls.job(job_id)))

    def list(
        self,
        *,
        state: States = None,
        task: str | None = None,
        name: str | None = None,
        metadata: dict[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[AsyncListedJob]:
        call = job_calls.listing(state, task, name, metadata, created_after, created_before)
        return self._transport.iterate(
            flows.pages(self._policy, call, "id", partial(self._bound, AsyncListedJob))
        )

    async def table(self, most: int = MOST_ROWS) -> Table[AsyncListedJob]:
        found: list[AsyncListedJob] = []
        async for job in self.list():
            found.append(job)
            if len(found) >= most:
                break
        return Table(found, tables.OF_JOBS, "jobs")

    async def cancel(self, job_id: str) -> AsyncJob:
        return await self._job(calls.act(job_id, "cancel"))

    async def pause(self, job_id: str) -> AsyncJob:
        return await self._job(calls.act(job_id, "pause"))

    async def resume(self, job_id: str) -> AsyncJob:
        return await self._job(calls.act(job_id, "resume"))

    async def retry(self, job_id: str) -> AsyncJob:
        return await self._job(calls.retry_job(job_id))

    async def clone(
        self,
        job_id: str,
        patch: Patch = None,
        *,
        idempotency_key: str | None = None,
        **sections: Any,
    ) -> AsyncJob:
        body = bodies.spec(patch, sections)
        return await self._job(calls.clone_job(job_id, body, bodies.key(idempotency_key)))

    async def publish(self, job_id: str, hub: Patch = None, **fields: Any) -> AsyncJob:
        return await self._job(calls.publish_job(job_id, bodies.spec(hub, fields)))

    async def promote(self, job_id: str, step: int) -> AsyncJob:
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
        return tables.of_metrics([point async for point in self.metrics(job_id)], most)

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
    ) -> AsyncJob:
        with shown(wanted=progress) as show:
            flow = flows.ended(self._policy, job_id, poll, timeout, show)
            return self._bound(AsyncJob, await self._transport.run(flow))

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

    async def _job(self, call: calls.Call) -> AsyncJob:
        return self._bound(AsyncJob, await self._json(call))

    def _bound(self, model: type[A], page: dict[str, Any]) -> A:
        job = bodies.read(model, page)
        job._jobs = self
        return job
