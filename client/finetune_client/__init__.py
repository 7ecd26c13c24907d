"""Client of a Finetune service.

from finetune_client import Client

with Client() as client:
    job = client.jobs.create(spec).wait(progress=True)
    job.download("model")
"""

from finetune_client import types
from finetune_client.client import AsyncClient, Client
from finetune_client.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    DamagedDownloadError,
    FineTuneError,
    GoneError,
    InvalidArgumentError,
    InvalidRequestError,
    InvalidSpecError,
    JobFailedError,
    NotFoundError,
    PermissionDeniedError,
    PredictionFailedError,
    RateLimitError,
    ServerError,
    UnexpectedAnswerError,
    UnsafeNameError,
    WaitTimeoutError,
)
from finetune_client.resources.job import AsyncJob, AsyncListedJob, Job, ListedJob
from finetune_client.tables import Table

__all__ = [
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "AsyncClient",
    "AsyncJob",
    "AsyncListedJob",
    "AuthenticationError",
    "BadRequestError",
    "Client",
    "ConflictError",
    "DamagedDownloadError",
    "FineTuneError",
    "GoneError",
    "InvalidArgumentError",
    "InvalidRequestError",
    "InvalidSpecError",
    "Job",
    "JobFailedError",
    "ListedJob",
    "NotFoundError",
    "PermissionDeniedError",
    "PredictionFailedError",
    "RateLimitError",
    "ServerError",
    "Table",
    "UnexpectedAnswerError",
    "UnsafeNameError",
    "WaitTimeoutError",
    "types",
]
