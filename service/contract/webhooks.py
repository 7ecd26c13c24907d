"""Webhooks: which events are sent, in which form, and how often one is tried."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from service.contract.fields import patterns
from service.contract.fields.section import SpecModel
from service.contract.fields.types import SecretName
from service.contract.states import JobState

DAY_SECONDS: Final = 86400.0
RETRIED_SECONDS: Final = 3 * DAY_SECONDS
"""From the event to the last try of its delivery."""
FAILING_SECONDS: Final = 3 * DAY_SECONDS
"""An endpoint that has failed for so long is disabled."""
FIRST_WAIT_SECONDS: Final = 5.0
LONGEST_WAIT_SECONDS: Final = 8 * 3600.0
OVERLAP_SECONDS: Final = 86400
"""How long an earlier secret signs as well, unless the rotation says otherwise."""
LONGEST_OVERLAP_SECONDS: Final = 7 * 86400
MOST_ENDPOINTS: Final = 20
"""Of a project."""
MOST_OF_JOB: Final = 3
"""In the spec of a job."""
LONGEST_URL: Final = 2048
KEPT_DAYS: Final = 30
"""Deliveries that have ended are removed after so long."""
MOST_KEPT: Final = 1000
"""Of one endpoint; the oldest that have ended are removed first."""
LONGEST_ANSWER: Final = 2048
"""Bytes of a receiver's answer that are read and kept."""


class EventType(StrEnum):
    JOB_SUBMITTED = "job.submitted"
    JOB_QUEUED = "job.queued"
    JOB_RUNNING = "job.running"
    JOB_ATTEMPT_FAILED = "job.attempt_failed"
    JOB_CHECKPOINT = "job.checkpoint"
    JOB_PAUSED = "job.paused"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    FINE_TUNING_SUCCEEDED = "fine_tuning.job.succeeded"
    FINE_TUNING_FAILED = "fine_tuning.job.failed"
    FINE_TUNING_CANCELLED = "fine_tuning.job.cancelled"
    TEST = "webhook.test"


_ALL: Final = "*"
_GROUPS: Final = {"job.*": "job.", "fine_tuning.job.*": "fine_tuning.job."}
EventFilter = Literal[
    "*",
    "job.*",
    "fine_tuning.job.*",
    "job.submitted",
    "job.queued",
    "job.running",
    "job.attempt_failed",
    "job.checkpoint",
    "job.paused",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "fine_tuning.job.succeeded",
    "fine_tuning.job.failed",
    "fine_tuning.job.cancelled",
]
EventFilters = Annotated[list[EventFilter], Field(min_length=1, max_length=16)]


def passes(filters: list[str], event_type: str) -> bool:
    """Whether an endpoint with these filters is sent events of this type."""
    return any(
        each in (_ALL, event_type) or (each in _GROUPS and event_type.startswith(_GROUPS[each]))
        for each in filters
    )


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class DisabledReason(StrEnum):
    USER = "user"
    GONE = "gone"
    """The receiver answered 410."""
    FAILING = "failing"
    """Every delivery has failed for days."""


def _no_user(url: str) -> str:
    if "@" in url.split("://", 1)[-1].split("/", 1)[0]:
        raise ValueError("must not hold a user name or a password")
    return url


WebhookUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=LONGEST_URL, pattern=patterns.WEBHOOK_URL),
    AfterValidator(_no_user),
]


class JobWebhook(SpecModel):
    """A receiver of this job's events alone."""

    url: WebhookUrl = Field(
        examples=["https://ci.example.com/hooks/finetune"],
        description="Where events are sent by POST; https, and a public address.",
    )
    secret: SecretName = Field(
        examples=["ci-webhook"],
        description="The secret of the project that signs them. Its value is `whsec_` and base64.",
    )
    events: EventFilters = Field(
        default=["job.succeeded", "job.failed", "job.cancelled"],
        description="Which events are sent: types, `job.*`, `fine_tuning.job.*` or `*`.",
    )


_QUEUED_BY: Final = frozenset({"retried", "promote_requested", "publish_requested"})
_BY_STATE: Final = {
    JobState.PAUSED: (EventType.JOB_PAUSED,),
    JobState.SUCCEEDED: (EventType.JOB_SUCCEEDED, EventType.FINE_TUNING_SUCCEEDED),
    JobState.FAILED: (EventType.JOB_FAILED, EventType.FINE_TUNING_FAILED),
    JobState.CANCELLED: (EventType.JOB_CANCELLED, EventType.FINE_TUNING_CANCELLED),
}
_BY_KIND: Final = {
    "submitted": (EventType.JOB_SUBMITTED,),
    "checkpoint": (EventType.JOB_CHECKPOINT,),
    "stage_started": (EventType.JOB_RUNNING,),
    "attempt_failed": (EventType.JOB_ATTEMPT_FAILED,),
    "lease_expired": (EventType.JOB_ATTEMPT_FAILED,),
}


def types_of(kind: str, data: dict[str, Any]) -> tuple[EventType, ...]:
    """The types of webhook events that an event of a job's history becomes; none for most of
    them."""
    to = data.get("to")
    if to in _BY_STATE:
        return _BY_STATE[JobState(to)]
    if kind in _QUEUED_BY or (kind == "resume_requested" and to == JobState.QUEUED):
        return (EventType.JOB_QUEUED,)
    return _BY_KIND.get(kind, ())


def event_id(job_id: str, seq: int, event_type: EventType) -> str:
    """The same for every delivery and every try of an event."""
    of_openai = "_ft" if event_type.startswith("fine_tuning.") else ""
    return f"evt_{job_id.removeprefix('job-')}_{seq}{of_openai}"


def envelope(event_id: str, event_type: str, at: datetime, data: dict[str, Any]) -> dict[str, Any]:
    """The body of a request. OpenAI's events have these five fields and no other."""
    body: dict[str, Any] = {
        "id": event_id,
        "object": "event",
        "created_at": int(at.timestamp()),
        "type": event_type,
        "data": data,
    }
    if not event_type.startswith("fine_tuning."):
        body["timestamp"] = at.isoformat().replace("+00:00", "Z")
    return body


def wait_seconds(tries: int, jitter: float) -> float:
    """Between the failure of try number `tries`, from 1, and the next one. `jitter`: 0 to 1."""
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 3.0 ** min(tries - 1, 20))
    return wait * (0.8 + 0.4 * jitter)


def secret_name(webhook_id: str) -> str:
    """Under which an endpoint's secret is sealed; no secret of a project is called so."""
    return f"webhooks/{webhook_id}"
