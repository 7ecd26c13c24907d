"""Domain errors: each has an HTTP status and a stable code; one handler renders them all."""

import math
from typing import Any, ClassVar


class DomainError(Exception):
    """Base class of errors that a request causes; `detail` is shown to the user."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "bad_request"
    title: str = "Bad request"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class UnknownIdError(DomainError):
    status = 404
    text: ClassVar[str]
    """An error whose text has a place for the id."""

    def __init__(self, unknown: str) -> None:
        super().__init__(self.text.format(repr(unknown[:100])))


class JobNotFoundError(UnknownIdError):
    code, title = "job_not_found", "Job not found"
    text = "There is no job {}."


class PreviewNotFoundError(UnknownIdError):
    code, title = "preview_not_found", "Preview not found"
    text = (
        "There is no preview {}. Previews are removed after an hour, and older ones of a project "
        "earlier."
    )


class SearchNotFoundError(UnknownIdError):
    code, title = "search_not_found", "Search not found"
    text = "There is no search {}."


class SearchEndedError(DomainError):
    status, code, title = 409, "search_ended", "The search has already ended"


class SearchStateError(DomainError):
    status, code, title = 409, "wrong_state", "The search's state does not allow this"


class TooManySearchesError(DomainError):
    status, code, title = 429, "too_many_searches", "The project has too many unfinished searches"


class PlotNotFoundError(DomainError):
    status, code, title = 404, "plot_not_found", "There is no such plot"


class NoPlotError(DomainError):
    status, code, title = 409, "no_plot", "The search has no such plot, or not yet"


class JobEndedError(DomainError):
    status, code, title = 409, "job_ended", "The job has already ended"


class WrongStateError(DomainError):
    status, code, title = 409, "wrong_state", "The job's state does not allow this"


class DataGoneError(DomainError):
    status, code, title = 409, "data_gone", "The job's data does not exist any more"


class SourceJobError(DomainError):
    """The job would start from something that does not exist; `reason` is the fault's code."""

    status, code, title = 409, "source_job", "The other job does not have what this one starts from"


class JobInUseError(DomainError):
    status, code, title = 409, "job_in_use", "Jobs that have not ended need this one"


class IdempotencyKeyReusedError(DomainError):
    status, code, title = 422, "idempotency_key_reused", "Idempotency-Key used with another body"


class IdempotencyInFlightError(DomainError):
    status, code, title = 409, "idempotency_in_flight", "The first request is still in flight"


class ArtifactNotFoundError(DomainError):
    status, code, title = 404, "artifact_not_found", "Artifact not found"


class ArtifactGoneError(DomainError):
    status, code, title = 410, "artifact_gone", "The job's files were removed to make room"


class CheckpointNotFoundError(DomainError):
    status, code, title = 404, "checkpoint_not_found", "Checkpoint not found"


class CheckpointGoneError(DomainError):
    status, code, title = 410, "checkpoint_gone", "The checkpoint was removed to make room"


class UploadNotFoundError(DomainError):
    status, code, title = 404, "file_not_found", "File not found"


class UploadSessionNotFoundError(UnknownIdError):
    """Of an upload in parts; `UploadNotFoundError` is about files."""

    code, title = "upload_not_found", "Upload not found"
    text = "There is no upload {}."


class UploadNotPendingError(DomainError):
    status, code, title = 409, "upload_not_pending", "The upload has ended"


class UploadPartsError(DomainError):
    status, code, title = 400, "invalid_parts", "The parts do not make up the file"


class ChecksumMismatchError(DomainError):
    status, code, title = 400, "checksum_mismatch", "The content is not what was sent"


class TooManyOpenUploadsError(DomainError):
    status, code, title = 429, "too_many_open_uploads", "The project has too many open uploads"


class UploadInUseError(DomainError):
    status, code, title = 409, "file_in_use", "A job that has not ended needs the file"


class ResultFileError(UploadInUseError):
    title = "The results file belongs to its job"


class QuotaExceededError(DomainError):
    """`quota`, `limit` and `used` say which quota of the project, and its numbers."""

    status, code, title = 429, "quota_exceeded", "The project's quota is used up"


class QueueQuotaError(QuotaExceededError):
    title = "The project has too many queued jobs"


class PredictionNotFoundError(UnknownIdError):
    code, title = "prediction_not_found", "Prediction not found"
    text = "There is no prediction {}. Predictions are removed an hour after they were asked for."


class ModelNotFoundError(DomainError):
    status, code, title = 404, "model_not_found", "Model not found"


class InvalidPredictionError(DomainError):
    status, code, title = 422, "invalid_prediction", "The model cannot answer this"


class NoWorkerError(DomainError):
    status, code, title = 503, "no_worker", "No worker can answer now"


class PredictionFailedError(DomainError):
    status, code, title = 503, "prediction_failed", "The prediction has failed"


class PredictionTimeoutError(DomainError):
    status, code, title = 504, "prediction_timeout", "The answer takes too long"


class TooManyPredictionsError(DomainError):
    status, code = 429, "too_many_predictions"
    title = "The project has too many unfinished predictions"


class TooManyPreviewsError(DomainError):
    status, code, title = 429, "too_many_previews", "The project has too many unfinished previews"


class TooManyWebhooksError(QuotaExceededError):
    title = "The project has too many webhooks"


class RateQuotaError(QuotaExceededError):
    title = "The project sends too many requests"

    def __init__(self, wait_seconds: float) -> None:
        self.retry_after = math.ceil(wait_seconds)
        super().__init__(
            "The project's requests per second are used up: wait, and send fewer at once.",
            quota="max_requests_per_second",
        )


class PriorityQuotaError(QuotaExceededError):
    status, title = 422, "The project may not ask for this priority"


class StorageQuotaError(QuotaExceededError):
    status, title = 413, "The project's storage is used up"


class SecretNotFoundError(UnknownIdError):
    code, title = "secret_not_found", "Secret not found"
    text = "The project has no secret {}."


class WebhookNotFoundError(UnknownIdError):
    code, title = "webhook_not_found", "Webhook not found"
    text = "There is no webhook {}."


class DeliveryNotFoundError(UnknownIdError):
    code, title = "delivery_not_found", "Delivery not found"
    text = "The webhook has no delivery {}. Those that have ended are removed after 30 days."


class WebhookDisabledError(DomainError):
    status, code, title = 409, "webhook_disabled", "The webhook is disabled"


class SecretsKeyError(DomainError):
    status, code, title = 503, "secrets_key_unreadable", "The key of the secrets cannot be used"


class ForbiddenError(DomainError):
    status, code, title = 403, "forbidden", "The key does not allow this"


class ProjectNotFoundError(UnknownIdError):
    code, title = "project_not_found", "Project not found"
    text = "There is no project {}."


class ProjectExistsError(DomainError):
    status, code, title = 409, "project_exists", "The name is taken"


class ProjectRenameError(DomainError):
    status, code, title = 409, "project_name_fixed", "The project cannot be renamed"


class ProjectArchivedError(DomainError):
    status, code, title = 409, "project_archived", "The project is archived"


class MemberNotFoundError(DomainError):
    status, code, title = 404, "member_not_found", "Member not found"


class MemberExistsError(DomainError):
    status, code, title = 409, "member_exists", "The name is taken"


class KeyNotFoundError(DomainError):
    status, code, title = 404, "key_not_found", "Key not found"
