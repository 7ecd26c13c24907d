"""Webhooks and their deliveries, as their readers see them."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.api.schemas.rows import Page, model_from_row
from service.contract.fields import patterns
from service.contract.webhooks import (
    LONGEST_OVERLAP_SECONDS,
    OVERLAP_SECONDS,
    DeliveryState,
    DisabledReason,
    EventFilters,
    WebhookUrl,
)
from service.store.tables.webhooks import DeliveryRow, WebhookRow

Description = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=patterns.ONE_LINE)
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewWebhook(_Body):
    url: WebhookUrl = Field(
        description="Where events are sent by POST; https, and a public address.",
        examples=["https://ci.example.com/hooks/finetune"],
    )
    events: EventFilters = Field(
        default=["job.*"],
        description="Which events are sent: types, `job.*`, `fine_tuning.job.*` or `*`.",
    )
    description: Description | None = None


class WebhookChanges(_Body):
    url: WebhookUrl | None = Field(None, description="null: it stays.")
    events: EventFilters | None = Field(None, description="null: they stay.")
    description: Description | None = Field(None, description="null: none.")
    enabled: bool | None = Field(
        None,
        description="true: enable one that was disabled; its deliveries of that time can be "
        "replayed. null: it stays.",
    )


class SecretRotation(_Body):
    overlap_seconds: Annotated[int, Field(ge=0, le=LONGEST_OVERLAP_SECONDS)] = Field(
        OVERLAP_SECONDS, description="How long the old secret signs as well."
    )


class Webhook(BaseModel):
    id: str = Field(examples=["webhook-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    object: Literal["webhook"] = "webhook"
    project: str
    url: str
    events: list[str]
    description: str | None
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: DisabledReason | None = Field(
        description="`user`; `gone`: the receiver answered 410; `failing`: it has failed for days."
    )
    failing_since: datetime | None = Field(description="The first failure since the last success.")
    previous_secret_until: datetime | None = Field(
        description="Until then the secret before the last rotation signs as well."
    )
    created_at: datetime
    updated_at: datetime

    @classmethod
    def from_row(cls, row: WebhookRow, **more: Any) -> Self:
        return model_from_row(
            cls,
            row,
            project=row.project_id,
            enabled=row.disabled_at is None,
            previous_secret_until=row.previous_until,
            **more,
        )


class WebhookWithSecret(Webhook):
    secret: str = Field(
        description="What signs its events. It is shown this once.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )


class WebhookList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Webhook]


class WebhookDeleted(BaseModel):
    id: str
    deleted: Literal[True] = True


class Delivery(BaseModel):
    id: str = Field(examples=["delivery-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    object: Literal["webhook.delivery"] = "webhook.delivery"
    webhook: str | None = Field(description="null: the job's spec names the receiver.")
    job: str | None = Field(description="null: a test.")
    url: str | None = Field(description="Of a receiver that the job's spec names.")
    event: str = Field(description="The event's id, which is sent as `webhook-id`.")
    type: str = Field(examples=["job.succeeded"])
    state: DeliveryState
    tries: int
    created_at: datetime
    next_try_at: datetime | None
    ended_at: datetime | None
    status: int | None = Field(description="HTTP status of the last answer.")
    answer: str | None = Field(description="The beginning of the last answer.")
    error: str | None = Field(description="Why the last try failed.")
    payload: dict[str, Any]

    @classmethod
    def from_row(cls, row: DeliveryRow) -> Self:
        return model_from_row(
            cls,
            row,
            webhook=row.webhook_id,
            job=row.job_id,
            event=row.event_id,
            type=row.event_type,
            next_try_at=row.due_at if row.state == DeliveryState.PENDING else None,
        )


class DeliveryPage(Page):
    object: Literal["list"] = "list"
    data: list[Delivery]
    first_id: str | None
    last_id: str | None
    has_more: bool
