"""Webhooks: a project's endpoints, their secrets, and what was sent to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.api.http.dependencies import DatabaseDep, JobId, SettingsDep, path_id
from service.api.http.principal import WebhooksRead, WebhooksWrite
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.problems import Fault
from service.api.schemas.webhooks import (
    Delivery,
    DeliveryPage,
    NewWebhook,
    SecretRotation,
    Webhook,
    WebhookChanges,
    WebhookDeleted,
    WebhookList,
    WebhookWithSecret,
)
from service.contract.fields import patterns
from service.contract.webhooks import DeliveryState
from service.errors import DeliveryNotFoundError, SecretsKeyError, WebhookNotFoundError
from service.settings import Settings
from service.store.jobs import queries
from service.store.projects import audit
from service.store.webhooks import endpoints
from service.system.secret_box import SecretBox, SecretUnreadableError
from service.webhooks import signatures
from service.webhooks.addresses import Allowed, ReceiverNotAllowedError, check_url

router = APIRouter(prefix="/v1", tags=["webhooks"])


WebhookId = Annotated[str, Depends(path_id("webhook", patterns.WEBHOOK_ID, WebhookNotFoundError))]
DeliveryId = Annotated[
    str, Depends(path_id("delivery", patterns.DELIVERY_ID, DeliveryNotFoundError))
]
After = Annotated[
    str | None,
    Query(pattern=patterns.DELIVERY_ID, description="The last id of the previous page."),
]
Limit = Annotated[int, Query(ge=1, le=100)]
OfState = Annotated[DeliveryState | None, Query(description="Deliveries in this state.")]


def _require_allowed(url: str, settings: Settings) -> None:
    """Raises InvalidRequestError for a receiver that nothing would be sent to."""
    try:
        check_url(url, Allowed.parse(settings.webhook_allow))
    except ReceiverNotAllowedError as error:
        fault = Fault(path="url", code="receiver_not_allowed", message=str(error))
        raise InvalidRequestError([fault]) from error


@contextmanager
def _sealing(settings: Settings, secret: str) -> Iterator[Callable[[str, str], str]]:
    """Seals the secret. Raises SecretsKeyError."""
    box = SecretBox(settings.secrets_file)
    try:
        yield lambda project, name: box.seal(project, name, secret)
    except (SecretUnreadableError, OSError) as error:
        raise SecretsKeyError(str(error)) from error


@router.get("/webhooks", summary="List webhooks", responses=problems(401, 403, 422, 503))
def list_webhooks(principal: WebhooksRead, database: DatabaseDep) -> WebhookList:
    """The oldest first, without their secrets."""
    with database.read() as session:
        rows = endpoints.list_all(session, principal.scope)
        return WebhookList(data=[Webhook.from_row(row) for row in rows])


@router.post(
    "/webhooks",
    status_code=201,
    summary="Make a webhook",
    responses=problems(400, 401, 409, 413, 422, 429, 503),
)
def create_webhook(
    principal: WebhooksWrite, new: NewWebhook, database: DatabaseDep, settings: SettingsDep
) -> WebhookWithSecret:
    """Events of the project's jobs are sent to the URL from now on, signed as Standard Webhooks
    says. The answer shows the secret this once."""
    _require_allowed(new.url, settings)
    secret = signatures.new_secret()
    with _sealing(settings, secret) as seal, database.write() as session:
        row = endpoints.create(session, principal.project, new.model_dump(), seal)
        audit.about(row.id)
        audit.inside(row.project_id)
        return WebhookWithSecret.from_row(row, secret=secret)


@router.get("/webhooks/{webhook_id}", summary="One webhook", responses=problems(401, 404, 422, 503))
def get_webhook(principal: WebhooksRead, webhook_id: WebhookId, database: DatabaseDep) -> Webhook:
    """Whether it is enabled, and since when it fails."""
    with database.read() as session:
        return Webhook.from_row(endpoints.get(session, principal.scope, webhook_id))


@router.patch(
    "/webhooks/{webhook_id}",
    summary="Change a webhook",
    responses=problems(400, 401, 404, 413, 422, 503),
)
def change_webhook(
    principal: WebhooksWrite,
    webhook_id: WebhookId,
    changes: WebhookChanges,
    database: DatabaseDep,
    settings: SettingsDep,
) -> Webhook:
    """Its URL, events or description; or disable it, or enable it again."""
    if changes.url is not None:
        _require_allowed(changes.url, settings)
    given = changes.model_dump(exclude_unset=True)
    kept = {name for name, value in given.items() if value is None and name != "description"}
    wanted = {name: value for name, value in given.items() if name not in kept}
    with database.write() as session:
        row = endpoints.change(session, principal.scope, webhook_id, wanted)
        audit.inside(row.project_id)
        return Webhook.from_row(row)


@router.delete(
    "/webhooks/{webhook_id}", summary="Delete a webhook", responses=problems(401, 404, 422, 503)
)
def delete_webhook(
    principal: WebhooksWrite, webhook_id: WebhookId, database: DatabaseDep
) -> WebhookDeleted:
    """With its deliveries; what has not been sent is not sent any more."""
    with database.write() as session:
        audit.inside(endpoints.remove(session, principal.scope, webhook_id))
    return WebhookDeleted(id=webhook_id)


@router.post(
    "/webhooks/{webhook_id}/rotate",
    summary="Rotate a webhook's secret",
    responses=problems(400, 401, 404, 413, 422, 503),
)
def rotate_webhook(
    principal: WebhooksWrite,
    webhook_id: WebhookId,
    database: DatabaseDep,
    settings: SettingsDep,
    rotation: SecretRotation = SecretRotation(),  # noqa: B008
) -> WebhookWithSecret:
    """Makes a new secret, which the answer shows this once. For `overlap_seconds` each request
    has a signature by the old one as well."""
    secret = signatures.new_secret()
    with _sealing(settings, secret) as seal, database.write() as session:
        row = endpoints.rotate(session, principal.scope, webhook_id, seal, rotation.overlap_seconds)
        audit.inside(row.project_id)
        return WebhookWithSecret.from_row(row, secret=secret)


@router.post(
    "/webhooks/{webhook_id}/test",
    status_code=202,
    summary="Send a test event",
    responses=problems(401, 404, 409, 422, 503),
)
def send_test_event(
    principal: WebhooksWrite, webhook_id: WebhookId, database: DatabaseDep
) -> Delivery:
    """An event `webhook.test`, sent within seconds like any other; the list of deliveries shows
    what came of it."""
    with database.write() as session:
        row = endpoints.test(session, principal.scope, webhook_id)
        audit.inside(row.project_id)
        return Delivery.from_row(row)


@router.get(
    "/webhooks/{webhook_id}/deliveries",
    summary="A webhook's deliveries",
    responses=problems(401, 404, 422, 503),
)
def list_deliveries(
    principal: WebhooksRead,
    webhook_id: WebhookId,
    database: DatabaseDep,
    after: After = None,
    limit: Limit = 20,
    state: OfState = None,
) -> DeliveryPage:
    """Newest first. Those that have ended are kept for 30 days, and at most 1,000."""
    with database.read() as session:
        endpoints.get(session, principal.scope, webhook_id)
        rows, has_more = endpoints.deliveries(
            session, principal.scope, webhook_id=webhook_id, state=state, after=after, limit=limit
        )
        return DeliveryPage.from_items([Delivery.from_row(row) for row in rows], has_more=has_more)


@router.post(
    "/webhooks/{webhook_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    summary="Send an event again",
    responses=problems(401, 404, 409, 422, 503),
)
def replay_delivery(
    principal: WebhooksWrite, webhook_id: WebhookId, delivery_id: DeliveryId, database: DatabaseDep
) -> Delivery:
    """A new delivery of the same event, with the same `webhook-id`."""
    with database.write() as session:
        row = endpoints.replay(session, principal.scope, webhook_id, delivery_id)
        audit.inside(row.project_id)
        return Delivery.from_row(row)


@router.get(
    "/jobs/{job_id}/deliveries",
    summary="What webhooks were sent of a job",
    responses=problems(401, 404, 422, 503),
)
def list_deliveries_of_job(
    principal: WebhooksRead,
    job_id: JobId,
    database: DatabaseDep,
    after: After = None,
    limit: Limit = 20,
    state: OfState = None,
) -> DeliveryPage:
    """Newest first, to the project's webhooks and to the receivers in the job's spec."""
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = endpoints.deliveries(
            session, principal.scope, job_id=job_id, state=state, after=after, limit=limit
        )
        return DeliveryPage.from_items([Delivery.from_row(row) for row in rows], has_more=has_more)


@router.post(
    "/jobs/{job_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    summary="Send an event of a job again",
    responses=problems(401, 404, 409, 422, 503),
)
def replay_delivery_of_job(
    principal: WebhooksWrite, job_id: JobId, delivery_id: DeliveryId, database: DatabaseDep
) -> Delivery:
    """A new delivery of the same event, with the same `webhook-id`, also to a receiver in the
    job's spec; signed by the secret as it is now."""
    with database.write() as session:
        row = endpoints.replay_of_job(session, principal.scope, job_id, delivery_id)
        audit.inside(row.project_id)
        return Delivery.from_row(row)
