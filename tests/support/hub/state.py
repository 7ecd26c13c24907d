"""What the Hub holds and remembers: repositories, large files, who may write, requests, faults."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.hub.content import Repo, RepoType


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Without the query."""
    authorization: str | None


@dataclass
class Fault:
    """What happens instead of, or around, the answer to requests that match."""

    method: str
    path: re.Pattern[str]
    times: int
    status: int | None
    headers: dict[str, str]
    message: str
    delay: float
    truncate: int | None
    halve: bool
    drop_after: bool

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and self.path.search(path) is not None


class HubState:
    """`tokens`: token → namespaces it may write to; its account is the first in the alphabet, the
    others are organizations. Every known token may read what is private."""

    endpoint: str

    def __init__(self, tokens: Mapping[str, set[str]] | None = None) -> None:
        self.tokens = dict(tokens or {})
        self.gate_passes: set[str] = set()
        """Tokens that were let into gated repositories."""
        self.read_only: set[str] = set()
        """Tokens with the role `read`: they may write nowhere."""
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self.lfs: dict[str, bytes] = {}
        self._repos: dict[tuple[RepoType, str], Repo] = {}
        self._faults: list[Fault] = []

    def account(self, token: str) -> str:
        return min(self.tokens[token], default="nobody")

    def add_repo(
        self,
        repo_id: str,
        files: Mapping[str, bytes] | Path,
        *,
        repo_type: RepoType = "model",
        private: bool = False,
        gated: bool = False,
    ) -> str:
        """A repository whose `main` holds `files` (or a folder's files); its commit hash."""
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes()
                for path in sorted(files.rglob("*"))
                if path.is_file()
            }
        repo = self.create(repo_type, repo_id, private)
        repo.gated = gated
        return repo.commit("main", "files", files).sha

    def create(self, repo_type: RepoType, repo_id: str, private: bool) -> Repo:
        repo = Repo(repo_id, private)
        repo.commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
        with self.lock:
            self._repos[repo_type, repo_id] = repo
        return repo

    def repo(self, repo_id: str, repo_type: RepoType = "model") -> Repo:
        return self._repos[repo_type, repo_id]

    def find(self, repo_type: RepoType, repo_id: str) -> Repo | None:
        return self._repos.get((repo_type, repo_id))

    def fail(
        self,
        path: str,
        status: int | None = None,
        *,
        method: str = "POST",
        times: int = 1_000_000,
        headers: Mapping[str, str] | None = None,
        message: str = "injected",
        delay: float = 0.0,
        truncate: int | None = None,
        halve: bool = False,
        drop_after: bool = False,
    ) -> None:
        """Requests whose path matches the regex `path` get `status`, or come late (`delay`), or
        cut off after `truncate` bytes, or as half of their JSON in a whole answer (`halve`), or are
        obeyed but never answered (`drop_after`)."""
        pattern = re.compile(path)
        extra = dict(headers or {})
        self._faults.append(
            Fault(
                method, pattern, times, status, extra, message, delay, truncate, halve, drop_after
            )
        )

    def heal(self) -> None:
        self._faults.clear()

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self._faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None
