"""`client.jobs`: making, finding and steering jobs."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from finetune_client import tables, types
from finetune_client.http import bodies, calls, flows
from finetune_client.resources import job_calls
from finetune_client.resources.job import AsyncJob, AsyncListedJob, Job, ListedJob
from finetune_client.resources.job_calls import PREDICT_SECONDS
from finetune_client.resources.job_methods import AsyncJobMethods, JobMethods
from finetune_client.tables import MOST_ROWS, Table

Spec = types.JobSpec | Mapping[str, Any] | None
States = list[str] | None
J = TypeVar("J", bound=ListedJob)
A = TypeVar("A", bound=AsyncListedJob)


class Jobs(JobMethods[Job]):
    def create(
        self,
        spec: Spec = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> Job:
        """Submit a spec, or its sections by name. Sent again with the same key after a lost answer,
        so that it makes one job; the `warnings` about the spec are on the job. `force`: also a spec
        that every live worker would fail at, for lack of a GPU or of a package. Raises
        InvalidSpecError."""
        body = bodies.spec(spec, sections)
        return self._job(calls.create_job(body, bodies.key(idempotency_key), force=force))

    def validate(
        self, spec: Spec = None, *, force: bool = False, **sections: Any
    ) -> types.Validation:
        """What the service says about a spec, without making a job."""
        call = calls.validate_job(bodies.spec(spec, sections), force=force)
        return self._read(types.Validation, call)

    def preview(
        self,
        spec: Spec = None,
        *,
        rows: int = 100,
        shown: int = 3,
        timeout: float = PREDICT_SECONDS,
        force: bool = False,
        **sections: Any,
    ) -> types.Preview:
        """The first rows of the data as the model would see them, without making a job. Raises
        WaitTimeoutError after `timeout` seconds."""
        body = bodies.spec(spec, sections)
        params = {"rows": rows, "shown": shown, **calls.forced(force)}
        return self._transport.run(job_calls.previewed(self._policy, body, params, timeout))

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

    def _job_of(self, page: dict[str, Any]) -> Job:
        return self._bound(Job, page)

    def _bound(self, model: type[J], page: dict[str, Any]) -> J:
        job = bodies.read(model, page)
        job._jobs = self
        return job


class AsyncJobs(AsyncJobMethods[AsyncJob]):
    """The methods of `Jobs`, to await or to iterate over with `async for`."""

    async def create(
        self,
        spec: Spec = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> AsyncJob:
        body = bodies.spec(spec, sections)
        return await self._job(calls.create_job(body, bodies.key(idempotency_key), force=force))

    async def validate(
        self, spec: Spec = None, *, force: bool = False, **sections: Any
    ) -> types.Validation:
        call = calls.validate_job(bodies.spec(spec, sections), force=force)
        return await self._read(types.Validation, call)

    async def preview(
        self,
        spec: Spec = None,
        *,
        rows: int = 100,
        shown: int = 3,
        timeout: float = PREDICT_SECONDS,  # noqa: ASYNC109 - of the work, not of a request
        force: bool = False,
        **sections: Any,
    ) -> types.Preview:
        body = bodies.spec(spec, sections)
        params = {"rows": rows, "shown": shown, **calls.forced(force)}
        return await self._transport.run(job_calls.previewed(self._policy, body, params, timeout))

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

    def _job_of(self, page: dict[str, Any]) -> AsyncJob:
        return self._bound(AsyncJob, page)

    def _bound(self, model: type[A], page: dict[str, Any]) -> A:
        job = bodies.read(model, page)
        job._jobs = self
        return job
