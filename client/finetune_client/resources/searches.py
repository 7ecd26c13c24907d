"""`client.searches`: hyper-parameter searches, and the trials that they make."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from finetune_client import types
from finetune_client.http import bodies, calls, flows
from finetune_client.http.transport import AsyncResource, Resource
from finetune_client.resources.job_calls import POLL_SECONDS

_ALL = "/v1/searches"
Spec = types.SearchSpec | Mapping[str, Any] | None
States = list[str] | None
Trials = list[types.Trial]
Figure = dict[str, Any]


def _creation(
    spec: Spec, sections: dict[str, Any], idempotency_key: str | None, *, force: bool
) -> calls.Call:
    body = bodies.spec(spec, sections)
    return calls.create_search(body, bodies.key(idempotency_key), force=force)


def _ended(
    policy: flows.Policy, search_id: str, timeout: float | None, poll: float
) -> flows.Flow[types.Search]:
    page = yield from flows.ended(
        policy, search_id, poll, timeout, lambda _page: None, calls.search
    )
    return bodies.read(types.Search, page)


def _page(policy: flows.Policy, search_id: str, plot: str, metric: str | None) -> flows.Flow[str]:
    answer = yield from flows.answered(
        policy, calls.get(calls.search_plot(search_id, plot, "html", metric))
    )
    return answer.text


class Searches(Resource):
    def create(
        self,
        spec: Spec = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> types.SubmittedSearch:
        """Submit a search, or its sections by name. Sent again with the same key after a lost
        answer, so that it makes one search. Raises InvalidSpecError."""
        call = _creation(spec, sections, idempotency_key, force=force)
        return self._read(types.SubmittedSearch, call)

    def validate(
        self, spec: Spec = None, *, force: bool = False, **sections: Any
    ) -> types.SearchValidation:
        """What the service says about a search, without making one."""
        call = calls.validate_search(bodies.spec(spec, sections), force=force)
        return self._read(types.SearchValidation, call)

    def retrieve(self, search_id: str) -> types.Search:
        return self._read(types.Search, calls.get(calls.search(search_id)))

    def list(
        self, *, state: States = None, task: str | None = None, name: str | None = None
    ) -> Iterator[types.SearchSummary]:
        """All searches that match, the newest first; further pages are read as they are needed."""
        return self._pages(types.SearchSummary, _ALL, state=state, task=task, name=name)

    def trials(self, search_id: str, *, state: States = None) -> Iterator[types.Trial]:
        """Its trials by number. Each is a job as well: `client.jobs.retrieve(trial.job_id)`."""
        return self._pages(types.Trial, calls.search(search_id, "trials"), "trial", state=state)

    def best(self, search_id: str) -> Trials:
        """The best trial so far, if there is one; with several objectives, those that no other
        trial beats in all of them."""
        return self._read(types.BestTrials, calls.get(calls.search(search_id, "best"))).data

    def cancel(self, search_id: str) -> types.SearchStateOf:
        """Its trials that have not ended are cancelled too."""
        return self._read(types.SearchStateOf, calls.act_on_search(search_id, "cancel"))

    def pause(self, search_id: str) -> types.SearchStateOf:
        return self._read(types.SearchStateOf, calls.act_on_search(search_id, "pause"))

    def resume(self, search_id: str) -> types.SearchStateOf:
        return self._read(types.SearchStateOf, calls.act_on_search(search_id, "resume"))

    def extend(self, search_id: str, max_trials: int) -> types.SearchStateOf:
        """Raise the number of trials, the earlier included; a search that has ended continues."""
        return self._read(types.SearchStateOf, calls.extend_search(search_id, max_trials))

    def delete(self, search_id: str) -> types.SearchDeleted:
        """Delete an ended search with its trials' jobs."""
        return self._read(types.SearchDeleted, calls.change("DELETE", calls.search(search_id)))

    def wait(
        self, search_id: str, timeout: float | None = None, poll: float = POLL_SECONDS
    ) -> types.Search:
        """Return when it has ended, in whatever state, with its page. Raises WaitTimeoutError after
        `timeout` seconds."""
        return self._transport.run(_ended(self._policy, search_id, timeout, poll))

    def plot(self, search_id: str, name: str, *, metric: str | None = None) -> Figure:
        """A figure for Plotly: `plotly.graph_objects.Figure(**figure)`. `metric`: of several
        objectives the one to show."""
        call = calls.get(calls.search_plot(search_id, name, "json", metric))
        return self._json(call)

    def plot_html(self, search_id: str, name: str, *, metric: str | None = None) -> str:
        """The figure as a page of its own."""
        return self._transport.run(_page(self._policy, search_id, name, metric))


class AsyncSearches(AsyncResource):
    """The methods of `Searches`, to await or to iterate over with `async for`."""

    async def create(
        self,
        spec: Spec = None,
        *,
        idempotency_key: str | None = None,
        force: bool = False,
        **sections: Any,
    ) -> types.SubmittedSearch:
        call = _creation(spec, sections, idempotency_key, force=force)
        return await self._read(types.SubmittedSearch, call)

    async def validate(
        self, spec: Spec = None, *, force: bool = False, **sections: Any
    ) -> types.SearchValidation:
        call = calls.validate_search(bodies.spec(spec, sections), force=force)
        return await self._read(types.SearchValidation, call)

    async def retrieve(self, search_id: str) -> types.Search:
        return await self._read(types.Search, calls.get(calls.search(search_id)))

    def list(
        self, *, state: States = None, task: str | None = None, name: str | None = None
    ) -> AsyncIterator[types.SearchSummary]:
        return self._pages(types.SearchSummary, _ALL, state=state, task=task, name=name)

    def trials(self, search_id: str, *, state: States = None) -> AsyncIterator[types.Trial]:
        return self._pages(types.Trial, calls.search(search_id, "trials"), "trial", state=state)

    async def best(self, search_id: str) -> Trials:
        return (await self._read(types.BestTrials, calls.get(calls.search(search_id, "best")))).data

    async def cancel(self, search_id: str) -> types.SearchStateOf:
        return await self._read(types.SearchStateOf, calls.act_on_search(search_id, "cancel"))

    async def pause(self, search_id: str) -> types.SearchStateOf:
        return await self._read(types.SearchStateOf, calls.act_on_search(search_id, "pause"))

    async def resume(self, search_id: str) -> types.SearchStateOf:
        return await self._read(types.SearchStateOf, calls.act_on_search(search_id, "resume"))

    async def extend(self, search_id: str, max_trials: int) -> types.SearchStateOf:
        return await self._read(types.SearchStateOf, calls.extend_search(search_id, max_trials))

    async def delete(self, search_id: str) -> types.SearchDeleted:
        call = calls.change("DELETE", calls.search(search_id))
        return await self._read(types.SearchDeleted, call)

    async def wait(
        self,
        search_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 - of the search, as in `Searches.wait`
        poll: float = POLL_SECONDS,
    ) -> types.Search:
        return await self._transport.run(_ended(self._policy, search_id, timeout, poll))

    async def plot(self, search_id: str, name: str, *, metric: str | None = None) -> Figure:
        call = calls.get(calls.search_plot(search_id, name, "json", metric))
        return await self._json(call)

    async def plot_html(self, search_id: str, name: str, *, metric: str | None = None) -> str:
        return await self._transport.run(_page(self._policy, search_id, name, metric))
