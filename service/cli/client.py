"""Client of the service's HTTP API: JSON in, JSON out, errors as exceptions."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.cli import ids
from service.cli.exit_codes import UsageError
from service.cli.stack import local_key, lock
from service.contract.states import Action
from service.settings import Settings

Json = dict[str, Any]
RETRY_WAITS = (0.5, 1.0, 2.0)
"""Seconds before the second, third and fourth try of a request that may be repeated."""
_PASSING = (429, 502, 503, 504)
"""Statuses worth another try."""
_PAGE = 100
_BLOCK = 1024 * 1024
_LAST_PORT = 65535
GIVEN_PROJECT: ContextVar[str | None] = ContextVar("given_project", default=None)
"""Of `finetune --project`."""


class ApiError(Exception):
    """The service answered with an error; `problem` is its RFC 9457 document."""

    def __init__(self, status: int, problem: Json) -> None:
        parts = (problem.get(name) for name in ("message", "detail", "title"))
        super().__init__(next(filter(None, parts), f"HTTP {status}"))
        self.status = status
        self.problem = problem

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))


class UnreachableError(Exception):
    """No answer from the service."""


class AnotherServerError(UnreachableError):
    """Something answers, but not the service."""


class WrongContentError(UnreachableError):
    """A download arrived whole, but not as the service announced it."""


class ClientSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FINETUNE_", extra="ignore")

    url: str | None = Field(None, description="Default: the stack of FINETUNE_HOME, if it runs.")
    api_key: SecretStr | None = None
    project: str | None = Field(None, description="Name or id of the project to act in.")

    def base_url(self) -> str:
        """FINETUNE_URL, else where `finetune up` of this home listens, else the default port."""
        if self.url:
            return self.url.rstrip("/")
        address = lock.read_address(Settings().home)
        return address.url if address else "http://127.0.0.1:8000"


class Client:
    """One connection pool; use as a context manager."""

    def __init__(
        self, base_url: str, api_key: SecretStr | None = None, project: str | None = None
    ) -> None:
        """UsageError for an address, a key or a project that cannot be used."""
        self.project = project
        url = _checked_url(base_url)
        self._shown_url = str(url.copy_with(userinfo=b""))
        self._http = httpx.Client(
            base_url=url,
            headers=_headers(api_key, project),
            timeout=httpx.Timeout(30, connect=5),
            # Proxy settings are for the internet, not for the service.
            trust_env=False,
            # Loading the certificates takes 30 ms of each command; a plain address needs none.
            verify=url.scheme == "https",
        )

    @classmethod
    def from_environment(cls, project: str | None = None) -> "Client":
        settings = ClientSettings()
        url = settings.base_url()
        key = settings.api_key or local_key.find(Settings().home, url)
        return cls(url, key, project or chosen_project())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # ---- calls --------------------------------------------------------------------------------

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        return self._json(self._repeat(lambda: self._send("GET", path, params=params)))

    def pages(
        self, path: str, cursor: str = "id", params: Mapping[str, Any] | None = None
    ) -> Iterator[Json]:
        """Every item of a paged list; `cursor` names the field that the next page starts after."""
        after: dict[str, Any] = {}
        while True:
            page = self.get(path, {"limit": _PAGE, **(params or {}), **after})
            yield from page["data"]
            if not page["has_more"]:
                return
            after = {"after": page["data"][-1][cursor]}

    def job_id(self, text: str) -> str:
        """The id of the job that `text` names: an id, or the beginning of one."""
        return ids.find(self.get, ids.JOB, text)

    def file_id(self, text: str) -> str:
        """The id of the uploaded file that `text` names, as `job_id`."""
        return ids.find(self.get, ids.FILE, text)

    def validate(self, spec: Json, pending_file: str | None = None) -> Json:
        """What the service says about a spec, without making a job; `pending_file` is an id that
        counts as uploaded."""
        params = {"pending_file": pending_file} if pending_file else None
        return self._json(
            self._repeat(lambda: self._send("POST", "/v1/jobs/validate", json=spec, params=params))
        )

    def preview(self, spec: Json, rows: int, shown: int) -> Json:
        """A preview, which may not have ended yet. Asking twice makes two, which does no harm."""
        params = {"rows": rows, "shown": shown}
        timeout = httpx.Timeout(60, connect=5)
        return self._json(
            self._repeat(
                lambda: self._send(
                    "POST", "/v1/jobs/preview", json=spec, params=params, timeout=timeout
                )
            )
        )

    def submit(self, spec: Json, idempotency_key: str) -> Json:
        """The new job. Repeated with the same key after a lost answer, so it makes one job."""
        return self._create("/v1/jobs", spec, idempotency_key)

    def clone(self, job_id: str, patch: Json, idempotency_key: str) -> Json:
        """The new job; repeated like `submit`."""
        return self._create(f"/v1/jobs/{job_id}/clone", patch, idempotency_key)

    def _create(self, path: str, body: Json, idempotency_key: str) -> Json:
        headers = {"Idempotency-Key": idempotency_key}
        return self._json(
            self._repeat(lambda: self._send("POST", path, json=body, headers=headers))
        )

    def act(self, job_id: str, action: Action) -> Json:
        """Pause, resume or cancel: asking twice changes nothing more."""
        return self._json(self._repeat(lambda: self._send("POST", f"/v1/jobs/{job_id}/{action}")))

    def retry(self, job_id: str) -> Json:
        """Not repeated: after a lost answer the job may have failed again meanwhile."""
        return self._json(self._send("POST", f"/v1/jobs/{job_id}/{Action.RETRY}"))

    def promote(self, job_id: str, step: int) -> Json:
        """Asking twice changes nothing more."""
        path = f"/v1/jobs/{job_id}/checkpoints/{step}/{Action.PROMOTE}"
        return self._json(self._repeat(lambda: self._send("POST", path)))

    def publish(self, job_id: str, hub: Json) -> Json:
        """Asking twice pushes nothing that is there already."""
        path = f"/v1/jobs/{job_id}/{Action.PUBLISH}"
        return self._json(self._repeat(lambda: self._send("POST", path, json=hub)))

    def delete_job(self, job_id: str) -> Json:
        return self._json(self._send("DELETE", f"/v1/jobs/{job_id}"))

    def upload(
        self, path: Path, purpose: str, progress: Callable[[int], None] | None = None
    ) -> Json:
        """Not repeated: a lost answer may have left a file, and a second one costs space.

        `progress` is called with the number of bytes of each part that is sent.
        """
        with path.open("rb") as opened:
            file = opened if progress is None else _Counted(opened, progress)
            answer = self._send(
                "POST",
                "/v1/files",
                files={"file": (path.name, file)},
                data={"purpose": purpose},
                timeout=httpx.Timeout(600, connect=5),
            )
        return self._json(answer)

    def check_file(self, file_id: str, parameters: Json) -> Json:
        """Repeated while other files are being checked."""
        return self._json(
            self._repeat(
                lambda: self._send(
                    "POST",
                    f"/v1/files/{file_id}/check",
                    params=parameters,
                    timeout=httpx.Timeout(60, connect=5),
                )
            )
        )

    def change(self, method: str, path: str, body: Json | None = None) -> Json:
        """Not repeated."""
        return self._json(self._send(method, path, json=body))

    def set_secret(self, name: str, value: str) -> Json:
        """Asking twice changes nothing more."""
        path = f"/v1/secrets/{quote(name, safe='')}"
        return self._json(self._repeat(lambda: self._send("PUT", path, json={"value": value})))

    def delete_secret(self, name: str) -> Json:
        return self._json(self._send("DELETE", f"/v1/secrets/{quote(name, safe='')}"))

    def delete_file(self, file_id: str) -> Json:
        return self._json(self._send("DELETE", f"/v1/files/{file_id}"))

    def download(self, path: str, target: Path, sha256: str | None = None) -> None:
        """Write what `path` answers to `target`, which appears only when it is complete. Raises
        WrongContentError if it has another sha256 than the given one."""
        digest = hashlib.sha256()
        partial = target.with_name(target.name + ".part")
        try:
            with self._http.stream("GET", path) as answer:
                if answer.is_error:
                    answer.read()
                _raise_for_problem(answer)
                target.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("wb") as file:
                    for block in answer.iter_bytes(_BLOCK):
                        digest.update(block)
                        file.write(block)
            if sha256 not in (None, digest.hexdigest()):
                raise WrongContentError(
                    f"{path} arrived with another sha256 than it was announced with: the job has "
                    "changed it meanwhile, or it is damaged on the server. Try again."
                )
            partial.replace(target)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            partial.unlink(missing_ok=True)

    # ---- how they are sent --------------------------------------------------------------------

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            request = self._http.build_request(method, path, **arguments)
        except UnicodeEncodeError as error:
            wrong = error.object[error.start : error.end]
            raise UsageError(f"the request holds {wrong!r}, which is not Unicode text") from error
        except ValueError as error:
            raise UsageError("NaN and the infinities are not numbers of JSON") from error
        try:
            answer = self._http.send(request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        _raise_for_problem(answer)
        return answer

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        return UnreachableError(
            f"no answer from {self._shown_url} ({error}). Start it with `finetune up`, or set "
            "FINETUNE_URL."
        )

    def _json(self, answer: httpx.Response) -> Json:
        if answer.has_redirect_location:
            raise AnotherServerError(
                f"{self._shown_url} redirects to {answer.headers['Location']}: set FINETUNE_URL to "
                "the address of the service itself"
            )
        try:
            content = answer.json()
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise AnotherServerError(
                f"{self._shown_url} does not answer like the service: does FINETUNE_URL name "
                "another server?"
            )
        return content

    def _repeat(self, call: Callable[[], httpx.Response]) -> httpx.Response:
        """Only for requests that change nothing, or nothing more, when they arrive twice."""
        for wait in RETRY_WAITS:
            try:
                return call()
            except UnreachableError:
                time.sleep(wait)
            except ApiError as error:
                if error.code != "idempotency_in_flight" and error.status not in _PASSING:
                    raise
                time.sleep(wait)
        return call()


def chosen_project() -> str | None:
    """Of `finetune --project`, else FINETUNE_PROJECT; None: the key's own."""
    return GIVEN_PROJECT.get() or ClientSettings().project


def _headers(key: SecretStr | None, project: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {_checked_key(key)}"} if key else {}
    if project is not None:
        if not (project.isascii() and project.isprintable()):
            raise UsageError("--project holds a character that no project's name has")
        headers["FineTune-Project"] = project
    return headers


class _Counted:
    """A file that reports what is read of it; httpx needs its descriptor for the length."""

    def __init__(self, file: BinaryIO, progress: Callable[[int], None]) -> None:
        self._file = file
        self._progress = progress

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._progress(len(block))
        return block


def _raise_for_problem(answer: httpx.Response) -> None:
    if not answer.is_error:
        return
    try:
        problem = answer.json()
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict):  # a proxy's page, not ours
        problem = {"title": answer.reason_phrase, "detail": answer.text[:500]}
    raise ApiError(answer.status_code, {"status": answer.status_code, **problem})


def _checked_url(text: str) -> httpx.URL:
    """UsageError without the text, which may hold a password."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise UsageError(f"FINETUNE_URL is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > _LAST_PORT:
        raise UsageError("FINETUNE_URL must be http://HOST:PORT or https://HOST")
    return url


def _checked_key(key: SecretStr) -> str:
    """Without the line's end of the file that it was read from. An error of httpx would show it."""
    text = key.get_secret_value().strip()
    if not (text.isascii() and text.isprintable()):
        raise UsageError("FINETUNE_API_KEY holds a character that no key has")
    return text
