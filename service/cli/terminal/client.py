"""The client of the commands: finetune_client's transport and requests, answers as JSON."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from finetune_client import local_stack
from finetune_client.errors import APIConnectionError as UnreachableError
from finetune_client.errors import APIError as ApiError
from finetune_client.errors import FineTuneError, InvalidArgumentError
from finetune_client.errors import UnexpectedAnswerError as AnotherServerError
from finetune_client.http import calls, downloads, flows, streams
from finetune_client.http.transport import SyncTransport
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.cli.terminal import ids, local_key
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec.model_names import FineTuned
from service.settings import Settings

__all__ = ["AnotherServerError", "ApiError", "Client", "UnreachableError"]

_T = TypeVar("_T")
Json = dict[str, Any]
ANSWER_SECONDS = 30.0
MAX_RETRIES = 3
LONGEST_WAIT = 10.0
"""Seconds that a command waits silently because the service asks it to."""
GIVEN_PROJECT: ContextVar[str | None] = ContextVar("given_project", default=None)
"""Of `finetune --project`."""


class ClientSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FINETUNE_", extra="ignore")

    url: str | None = Field(None, description="Default: the stack of FINETUNE_HOME, if it runs.")
    api_key: SecretStr | None = None
    project: str | None = Field(None, description="Name or id of the project to act in.")

    def base_url(self) -> str:
        """FINETUNE_URL, else where `finetune up` of this home listens, else the default port."""
        return local_stack.find_url(self.url, Settings().home)


def _policy(url: str) -> flows.Policy:
    return flows.Policy(url, MAX_RETRIES, LONGEST_WAIT)


class Client:
    """One connection pool; use as a context manager."""

    def __init__(
        self, base_url: str, api_key: SecretStr | None = None, project: str | None = None
    ) -> None:
        """UsageError for an address, a key or a project that cannot be used."""
        self.project = project
        with _usage():
            self._transport = SyncTransport(base_url, api_key, project, ANSWER_SECONDS, _policy)
        self._policy = self._transport.policy

    @classmethod
    def from_environment(cls, project: str | None = None) -> "Client":
        settings = ClientSettings()
        url = settings.base_url()
        key = settings.api_key or local_key.find(Settings().home, url)
        return cls(url, key, project or chosen_project())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        return self.send(calls.get(path, params))

    def pages(
        self, path: str, cursor: str = "id", params: Mapping[str, Any] | None = None
    ) -> Iterator[Json]:
        """Every item of a paged list; `cursor` names the field that the next page starts after."""
        call = calls.get(path, {"limit": calls.PAGE, **(params or {})})
        return self._transport.iterate(flows.pages(self._policy, call, cursor, lambda item: item))

    def messages(
        self, path: str, place: streams.Place, lost: Callable[[FineTuneError], None]
    ) -> Iterator[streams.Message]:
        """Those of a live stream after `place`, to the one that ends it; `lost` is called while
        the service does not answer. RateLimitError where too many are open: poll instead."""
        flow = streams.messages(self._policy, path, place, lambda message: message, lost)
        return self._transport.iterate(flow)

    def job_id(self, text: str) -> str:
        """The id of the job that `text` names: an id, the beginning of one, or a model's name."""
        return ids.find_job(self.get, text)

    def search_id(self, text: str) -> str:
        """The id of the search that `text` names, as `job_id`."""
        return ids.find(self.get, ids.SEARCH, text)

    def model(self, text: str) -> FineTuned:
        """As `job_id`, for a command that can do with a checkpoint: its step as well."""
        return ids.find_model(self.get, text)

    def file_id(self, text: str) -> str:
        """The id of the uploaded file that `text` names, as `job_id`."""
        return ids.find(self.get, ids.FILE, text)

    def validate(self, spec: Json, pending_file: str | None = None, *, force: bool = False) -> Json:
        """What the service says about a spec, without making a job; `pending_file` is an id that
        counts as uploaded."""
        return self.send(calls.validate_job(spec, pending_file, force=force))

    def completion(self, path: str, body: Json) -> Iterator[Json]:
        """The chunks of a text while it is generated. ApiError has OpenAI's form."""
        return self._transport.iterate(streams.completion(self._policy, path, body))

    def upload(
        self,
        path: Path,
        purpose: str,
        progress: Callable[[int], None] | None = None,
        expires_after: int | None = None,
    ) -> Json:
        """`progress` is called with the number of bytes of each part that is sent; the file is
        removed by itself after this many seconds."""
        with path.open("rb") as opened:
            upload = calls.Upload(path.name, opened, purpose, progress, calls.expiry(expires_after))
            return self.send(calls.create_file(upload))

    def change(self, method: str, path: str, body: Json | None = None) -> Json:
        """Is not repeated if the answer is lost."""
        return self.send(calls.change(method, path, body))

    def download(self, path: str, target: Path, sha256: str | None = None) -> None:
        """Write what `path` answers to `target`, which appears only when it is complete. Raises
        UnreachableError if it has another sha256 than the given one."""
        self._run(downloads.file(self._policy, path, target, sha256, keeps_partial=False))

    def send(self, call: calls.Call) -> Json:
        """The answer of a request; `finetune_client.http.calls` says which may be repeated."""
        return self._run(flows.json(self._policy, call))

    def _run(self, flow: flows.Flow[_T]) -> _T:
        with _usage():
            return self._transport.run(flow)


@contextmanager
def _usage() -> Iterator[None]:
    """Raises UsageError for arguments that cannot be sent."""
    try:
        yield
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error


def chosen_project() -> str | None:
    """Of `finetune --project`, else FINETUNE_PROJECT; None: the key's own."""
    return GIVEN_PROJECT.get() or ClientSettings().project
