"""Turns a body into a search: validated in full, created once per Idempotency-Key."""

from collections.abc import Collection
from typing import Any

from starlette.responses import Response

from service.api.http.dependencies import Services
from service.api.jobs import submission, warnings
from service.api.jobs.submission import digest_of
from service.api.problems.errors import InvalidSpecError
from service.api.schemas.jobs import SpecWarning
from service.api.schemas.searches import Search, SubmittedSearch
from service.api.search_checks.examine import Findings, examine_search
from service.searches import commands
from service.store.scope import Scope
from service.store.searches import state


def examine(
    body: Any,
    services: Services,
    scope: Scope,
    pending_files: Collection[str] = (),
    *,
    force: bool = False,
) -> Findings:
    """Every fault of a search's spec. `scope`: what its jobs may use; `pending_files` and `force`
    are those of a job."""
    return examine_search(
        body,
        lambda job: submission.examine(job, services, scope, pending_files, force=force),
        lambda job: warnings.warnings(job, services.settings, services.database),
    )


def submit(
    services: Services, project_id: str, body: Any, key: str | None, *, force: bool = False
) -> Response:
    """Create a search, or find the one that `key` created; answers with its page. Raises
    InvalidSpecError with every fault, and the errors of `commands.submit`."""
    search_id, digest, warned = None, None, list[SpecWarning]()
    if key is not None:
        digest = digest_of(body)
        with services.database.read() as session:
            search_id = state.of_key(session, project_id, key, digest)
    if search_id is None:
        found = examine(body, services, Scope(project_id), force=force)
        if found.spec is None or found.faults:
            raise InvalidSpecError(found.faults)
        made = commands.submit(
            services.database,
            project_id,
            found.spec,
            idempotency_key=key,
            request_sha256=digest,
        )
        search_id, warned = made.search_id, found.warnings
    with services.database.read() as session:
        page = Search.from_row(state.get(session, Scope(project_id), search_id), services.settings)
    answer = SubmittedSearch.model_construct(**dict(page), warnings=warned)
    headers = {"Location": f"/v1/searches/{search_id}"}
    content = answer.model_dump_json()
    return Response(content, 201, headers, media_type="application/json")
