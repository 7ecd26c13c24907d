"""The requests of the HTTP API: their paths, and which of them may safely arrive twice."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode

from finetune_client.errors import InvalidArgumentError

SLOW_SECONDS: Final = 60.0
"""For a request that the service answers after some work."""
MOST_WAIT: Final = 30.0
"""Seconds that the service may keep a request until there is an answer."""
UPLOAD_SECONDS: Final = 600.0
PAGE: Final = 100
MOST_EVENTS: Final = 1000


@dataclass(frozen=True)
class Upload:
    """A file to send; `progress` is called with the number of bytes of each part that is sent."""

    name: str
    file: BinaryIO
    purpose: str
    progress: Callable[[int], None] | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the form."""


@dataclass(frozen=True)
class Call:
    """One request. A repeatable one changes nothing more when it arrives twice."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False
    timeout: float | None = None
    """Seconds; None: the client's."""
    most_seconds: float = math.inf
    """Shortens `timeout`, and the client's."""
    upload: Upload | None = None


def get(path: str, params: Mapping[str, Any] | None = None, most_seconds: float = math.inf) -> Call:
    return Call("GET", path, params=params, is_repeatable=True, most_seconds=most_seconds)


def change(method: str, path: str, body: Any = None) -> Call:
    """Not repeatable: a lost answer may have changed something."""
    return Call(method, path, json=body)


def job(job_id: str, *parts: str | int) -> str:
    """The path of a job, or of something that belongs to it."""
    return _path("v1", "jobs", job_id, *parts)


def file(file_id: str, *parts: str) -> str:
    return _path("v1", "files", file_id, *parts)


def _path(*parts: str | int) -> str:
    if "" in parts:  # it would be the path of another resource
        raise InvalidArgumentError("an id is empty")
    # A part of dots would climb in the path.
    return "/" + "/".join(quote(str(part), safe="").replace(".", "%2E") for part in parts)


def artifact(job_id: str, name: str) -> str:
    return f"{job(job_id, 'artifacts')}/{quote(name)}"


def log_part(job_id: str, offset: int) -> Call:
    return get(job(job_id, "logs"), {"offset": offset})


def create_job(spec: Any, idempotency_key: str, *, force: bool = False) -> Call:
    """Repeated with the same key after a lost answer, so it makes one job."""
    return _create("/v1/jobs", spec, idempotency_key, force=force)


def clone_job(job_id: str, patch: Any, idempotency_key: str, *, force: bool = False) -> Call:
    return _create(job(job_id, "clone"), patch, idempotency_key, force=force)


def _create(path: str, body: Any, idempotency_key: str, *, force: bool) -> Call:
    headers = {"Idempotency-Key": idempotency_key}
    return Call("POST", path, params=forced(force), json=body, headers=headers, is_repeatable=True)


def forced(force: bool) -> dict[str, Any]:  # noqa: FBT001
    """The parameter that makes warnings of what no live worker has."""
    return {"force": True} if force else {}


def validate_job(spec: Any, pending_file: str | None = None, *, force: bool = False) -> Call:
    return _validate("/v1/jobs/validate", spec, pending_file, force=force)


def _validate(path: str, spec: Any, pending_file: str | None, *, force: bool) -> Call:
    params = forced(force) | ({"pending_file": pending_file} if pending_file else {})
    return Call("POST", path, json=spec, params=params, is_repeatable=True)


def preview_job(spec: Any, params: Mapping[str, Any]) -> Call:
    """Asking twice makes two previews, which does no harm."""
    return Call(
        "POST",
        "/v1/jobs/preview",
        json=spec,
        params=params,
        is_repeatable=True,
        timeout=SLOW_SECONDS,
    )


def search(search_id: str, *parts: str) -> str:
    """The path of a search, or of something that belongs to it."""
    return _path("v1", "searches", search_id, *parts)


def create_search(spec: Any, idempotency_key: str, *, force: bool = False) -> Call:
    return _create("/v1/searches", spec, idempotency_key, force=force)


def validate_search(spec: Any, pending_file: str | None = None, *, force: bool = False) -> Call:
    return _validate("/v1/searches/validate", spec, pending_file, force=force)


def act_on_search(search_id: str, action: str) -> Call:
    """Pause, resume or cancel: asking twice changes nothing more."""
    return Call("POST", search(search_id, action), is_repeatable=True)


def extend_search(search_id: str, max_trials: int) -> Call:
    """Asking twice for the same number changes nothing more."""
    body = {"max_trials": max_trials}
    return Call("POST", search(search_id, "extend"), json=body, is_repeatable=True)


def search_plot(search_id: str, name: str, kind: str, metric: str | None) -> str:
    """The path of a figure, as `html` or `json`."""
    query = {"format": kind} | ({} if metric is None else {"metric": metric})
    return f"{search(search_id, 'plots', name)}?{urlencode(query)}"


def act(job_id: str, action: str) -> Call:
    """Pause, resume or cancel: asking twice changes nothing more."""
    return Call("POST", job(job_id, action), is_repeatable=True)


def retry_job(job_id: str) -> Call:
    """Not repeatable: after a lost answer the job may have failed again meanwhile."""
    return Call("POST", job(job_id, "retry"))


def promote(job_id: str, step: int) -> Call:
    return Call("POST", job(job_id, "checkpoints", step, "promote"), is_repeatable=True)


def predict(job_id: str, rows: Any, step: str | int | None, wait: float) -> Call:
    """Asking twice makes two predictions, which does no harm."""
    body = {"rows": rows} | ({} if step is None else {"step": step})
    return Call(
        "POST",
        job(job_id, "predict"),
        params={"wait": wait},
        json=body,
        is_repeatable=True,
        timeout=SLOW_SECONDS,
    )


def publish_job(job_id: str, hub: Any) -> Call:
    """Asking twice pushes nothing that is there already."""
    return Call("POST", job(job_id, "publish"), json=hub, is_repeatable=True)


def expiry(seconds: float | None) -> dict[str, str]:
    """The form's fields for a file that is removed by itself."""
    if seconds is None:
        return {}
    return {
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": str(int(seconds)),
    }


def create_file(upload: Upload) -> Call:
    """Not repeatable: a lost answer may have left a file, and a second one costs space."""
    return Call("POST", "/v1/files", upload=upload, timeout=UPLOAD_SECONDS)


def check_file(file_id: str, params: Mapping[str, Any]) -> Call:
    """Repeated while other files are being checked."""
    path = file(file_id, "check")
    return Call("POST", path, params=params, is_repeatable=True, timeout=SLOW_SECONDS)


def webhook(webhook_id: str, *parts: str) -> str:
    return _path("v1", "webhooks", webhook_id, *parts)


def set_secret(name: str, value: str) -> Call:
    return Call("PUT", _path("v1", "secrets", name), json={"value": value}, is_repeatable=True)


def delete_secret(name: str) -> Call:
    return Call("DELETE", _path("v1", "secrets", name))
