"""One request and its answer: reading it, faults, routing, and who may do what."""

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.hub.content import Commit, Repo, RepoType
from tests.support.hub.state import HubState, Request
from tests.support.servers.local_http import BodyReader

REPO = r"(?P<kind>model|dataset)s/(?P<repo>[^/]+/[^/]+|[^/]+)"
Route = tuple[str, re.Pattern[str], str]
"""HTTP method, pattern of the whole path, name of the method here without its underscore."""


def routes(*given: tuple[str, str, str]) -> list[Route]:
    return [(verb, re.compile(pattern + "$"), name) for verb, pattern, name in given]


class HttpError(Exception):
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.body = {"error": message}


class Exchange(BodyReader):
    """Base of the families of routes; `ROUTES` are those of all of them."""

    protocol_version = "HTTP/1.1"
    hub: HubState
    ROUTES: ClassVar[list[Route]]

    def setup(self) -> None:
        super().setup()
        self.hub = self.server.owner  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: `hub.requests` is the record."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    # ---- one request --------------------------------------------------------------------------

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.body = self.read_body()
        self.hub.requests.append(Request(method, url.path, self.headers.get("Authorization")))
        fault = self.hub.next_fault(method, url.path)
        self.truncate = fault.truncate if fault else None
        if fault and fault.delay:
            time.sleep(fault.delay)
        try:
            if fault and fault.status is not None:
                error = HttpError(fault.status, fault.message)
                error.headers |= fault.headers
                raise error
            with self.hub.lock:
                status, headers, content = self._route(method, url.path)
            if fault and fault.halve:
                content = content[: len(content) // 2]
        except HttpError as error:
            status, headers, content = error.status, error.headers, json.dumps(error.body).encode()
        if fault and fault.drop_after:
            self.close_connection = True
            return
        self._send(method, status, headers, content)

    def _send(self, method: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        if self.truncate is not None:
            content, self.close_connection = content[: self.truncate], True
        with suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
            self.end_headers()
            self.wfile.write(b"" if method == "HEAD" else content)

    def _route(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        for verb, pattern, name in self.ROUTES:
            match = pattern.match(path)
            if match and (verb == method or (verb, method) == ("GET", "HEAD")):
                self.arguments = {k: unquote(v) for k, v in match.groupdict().items() if v}
                result = getattr(self, f"_{name}")()
                if isinstance(result, tuple):
                    return result
                return 200, {"Content-Type": "application/json"}, json.dumps(result).encode()
        raise HttpError(404, f"no such route: {method} {path}")

    # ---- who may do what ----------------------------------------------------------------------

    def _token(self) -> str | None:
        authorization = self.headers.get("Authorization")
        if authorization is None:
            return None
        token = authorization.removeprefix("Bearer ")
        if token not in self.hub.tokens:
            raise HttpError(401, "Invalid credentials in Authorization header")
        return token

    def _may_write(self, repo_id: str) -> None:
        token = self._token()
        if token is None:
            raise HttpError(401, "Invalid username or password.")
        namespace = repo_id.split("/")[0]
        if namespace not in self.hub.tokens[token] or token in self.hub.read_only:
            message = f'You don\'t have the rights to write under the namespace "{namespace}"'
            raise HttpError(403, message)

    def _repo(self) -> Repo:
        """The repository of the request, if its token may see it."""
        token = self._token()
        kind: RepoType = "dataset" if self.arguments.get("kind") == "dataset" else "model"
        repo = self.hub.find(kind, self.arguments["repo"])
        if repo is None or (repo.private and token is None):
            # The real one does not tell strangers whether a repository exists.
            raise HttpError(404 if token else 401, "Repository not found", "RepoNotFound")
        return repo

    def _commit_at(self, repo: Repo) -> Commit:
        commit = repo.at(self.arguments.get("revision", "main"))
        if commit is None:
            raise HttpError(404, "Invalid rev id", "RevisionNotFound")
        return commit

    def _pass_gate(self, repo: Repo) -> None:
        token = self._token()
        if repo.gated and token not in self.hub.gate_passes:
            message = f"Access to model {repo.id} is restricted"
            raise HttpError(403 if token else 401, message, "GatedRepo")
