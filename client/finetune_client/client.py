"""`Client` and `AsyncClient`: one connection pool each, and the resources of the service."""

import os
from functools import partial
from typing import Any

from pydantic import SecretStr

from finetune_client import local_stack
from finetune_client.errors import InvalidArgumentError
from finetune_client.http.flows import Policy
from finetune_client.http.transport import AsyncTransport, SyncTransport
from finetune_client.resources.files import AsyncFiles, Files
from finetune_client.resources.jobs import AsyncJobs, Jobs
from finetune_client.resources.searches import AsyncSearches, Searches
from finetune_client.resources.webhooks import AsyncWebhooks, Webhooks

TIMEOUT = 30.0
"""Seconds that the service has for each answer."""
MAX_RETRIES = 2


class _Client:
    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        project: str | None = None,
        *,
        timeout: float = TIMEOUT,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        """Raises InvalidArgumentError."""
        # What is not given comes from the environment, then from the stack of this home.
        if timeout <= 0 or max_retries < 0:
            raise InvalidArgumentError("`timeout` must be above 0 s, and `max_retries` 0 or more")
        home = local_stack.home()
        url = local_stack.find_url(base_url or os.environ.get("FINETUNE_URL"), home)
        key = api_key or os.environ.get("FINETUNE_API_KEY") or local_stack.find_key(home, url)
        secret = SecretStr(key) if isinstance(key, str) else key
        chosen = project or os.environ.get("FINETUNE_PROJECT") or None
        self._connect(url, secret, chosen, timeout, partial(Policy, max_retries=max_retries))

    def _connect(self, *connection: Any) -> None:
        """Make the transport of these arguments, and the resources."""
        raise NotImplementedError


class Client(_Client):
    """The service; use as a context manager, or close it.

    `base_url`, `api_key` and `project` come from FINETUNE_URL, FINETUNE_API_KEY and
    FINETUNE_PROJECT where they are not given; without these, the service that `finetune up` runs
    from FINETUNE_HOME is found with its key. `timeout` is in seconds for each answer. Requests that
    may safely arrive twice are sent again up to `max_retries` times.
    """

    def _connect(self, *connection: Any) -> None:
        self._transport = SyncTransport(*connection)
        self.jobs = Jobs(self._transport)
        self.files = Files(self._transport)
        self.searches = Searches(self._transport)
        self.webhooks = Webhooks(self._transport)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()


class AsyncClient(_Client):
    """As `Client`, with methods to await and lists to iterate over with `async for`."""

    def _connect(self, *connection: Any) -> None:
        self._transport = AsyncTransport(*connection)
        self.jobs = AsyncJobs(self._transport)
        self.files = AsyncFiles(self._transport)
        self.searches = AsyncSearches(self._transport)
        self.webhooks = AsyncWebhooks(self._transport)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()
