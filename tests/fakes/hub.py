"""A Hub of our own on the loopback, for the real `huggingface_hub` client.

`with HubDouble() as hub:` serves the routes that the client calls with HF_HUB_DISABLE_XET=1:
creating, committing (regular and LFS files), branches, and all reading. Content lives in memory.
`hub.requests` and `hub.repo(...).commits` record what happened; `hub.fail(...)` injects faults.
"""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

RepoType = Literal["model", "dataset"]
_LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".arrow", ".pt", ".model")
_LFS_BYTES = 10 * 1024**2


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    files: Mapping[str, bytes]
    """The whole tree at this commit: path → content."""


@dataclass
class Repo:
    id: str
    private: bool = False
    gated: bool = False
    commits: list[Commit] = field(default_factory=list)
    """All commits of all branches, oldest first; the first one is the repository's creation."""
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, title: str, files: Mapping[str, bytes]) -> Commit:
        """Put a commit with exactly `files` on `branch`."""
        parent = self.branches.get(branch)
        seed = f"{self.id}{parent}{len(self.commits)}{title}".encode()
        commit = Commit(hashlib.sha1(seed).hexdigest(), parent, title, dict(files))
        self.commits.append(commit)
        self.branches[branch] = commit.sha
        return commit

    def at(self, revision: str) -> Commit | None:
        """The commit that a branch or a (full) hash names."""
        sha = self.branches.get(revision, revision)
        return next((commit for commit in self.commits if commit.sha == sha), None)


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
    drop_after: bool

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and self.path.search(path) is not None


class HubDouble:
    """`tokens`: token → namespaces it may write to. Every known token may read what is private."""

    def __init__(self, tokens: Mapping[str, set[str]] | None = None) -> None:
        self.tokens = dict(tokens or {})
        self.gate_passes: set[str] = set()
        """Tokens that were let into gated repositories."""
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self._repos: dict[tuple[RepoType, str], Repo] = {}
        self._faults: list[Fault] = []
        self.lfs: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Variables that turn the client in a child process to this Hub, with its own cache."""
        variables = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": str(home),
        }
        return variables | ({"HF_TOKEN": token} if token else {})

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
        drop_after: bool = False,
    ) -> None:
        """Requests whose path matches the regex `path` get `status`, or come late (`delay`), or
        cut off after `truncate` bytes, or are obeyed but never answered (`drop_after`)."""
        pattern = re.compile(path)
        extra = dict(headers or {})
        self._faults.append(
            Fault(method, pattern, times, status, extra, message, delay, truncate, drop_after)
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


class _HttpError(Exception):
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.body = {"error": message}


_REPO = r"(?P<kind>model|dataset)s/(?P<repo>[^/]+/[^/]+|[^/]+)"
_ROUTES: list[tuple[str, re.Pattern[str], str]] = [
    (method, re.compile(pattern + "$"), name)
    for method, pattern, name in (
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate_yaml"),
        ("POST", rf"/api/{_REPO}/preupload/(?P<revision>[^/]+)", "preupload"),
        ("POST", rf"/api/{_REPO}/commit/(?P<revision>[^/]+)", "commit"),
        ("POST", rf"/api/{_REPO}/branch/(?P<revision>[^/]+)", "branch"),
        ("POST", rf"/api/{_REPO}/paths-info/(?P<revision>[^/]+)", "paths_info"),
        ("GET", rf"/api/{_REPO}/refs", "refs"),
        ("GET", rf"/api/{_REPO}/commits/(?P<revision>[^/]+)", "commits"),
        ("GET", rf"/api/{_REPO}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
        ("GET", rf"/api/{_REPO}/revision/(?P<revision>[^/]+)", "info"),
        ("GET", rf"/api/{_REPO}", "info"),
        ("POST", r"/(?P<repo>.+)\.git/info/lfs/objects/batch", "lfs_batch"),
        ("PUT", r"/lfs/(?P<path>[0-9a-f]{64})", "lfs_put"),
        ("POST", r"/lfs/verify", "lfs_verify"),
        (
            "GET",
            r"/(?:(?P<kind>dataset)s/)?(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
            "resolve",
        ),
    )
]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubDouble

    def setup(self) -> None:
        super().setup()
        self.hub = self.server.hub  # type: ignore[attr-defined]

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
        self.body = self._read_body()
        self.hub.requests.append(Request(method, url.path, self.headers.get("Authorization")))
        fault = self.hub.next_fault(method, url.path)
        self.truncate = fault.truncate if fault else None
        if fault and fault.delay:
            time.sleep(fault.delay)
        try:
            if fault and fault.status is not None:
                error = _HttpError(fault.status, fault.message)
                error.headers |= fault.headers
                raise error
            with self.hub.lock:
                status, headers, content = self._route(method, url.path)
        except _HttpError as error:
            status, headers, content = error.status, error.headers, json.dumps(error.body).encode()
        if fault and fault.drop_after:
            self.close_connection = True
            return
        self._send(method, status, headers, content)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _send(self, method: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if method == "HEAD":
            return
        if self.truncate is not None:
            content, self.close_connection = content[: self.truncate], True
        self.wfile.write(content)

    def _route(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        for verb, pattern, name in _ROUTES:
            match = pattern.match(path)
            if match and (verb == method or (verb, method) == ("GET", "HEAD")):
                self.arguments = {k: unquote(v) for k, v in match.groupdict().items() if v}
                result = getattr(self, f"_{name}")()
                if isinstance(result, tuple):
                    return result
                return 200, {"Content-Type": "application/json"}, json.dumps(result).encode()
        raise _HttpError(404, f"no such route: {method} {path}")

    # ---- who may do what ----------------------------------------------------------------------

    def _token(self) -> str | None:
        authorization = self.headers.get("Authorization")
        if authorization is None:
            return None
        token = authorization.removeprefix("Bearer ")
        if token not in self.hub.tokens:
            raise _HttpError(401, "Invalid credentials in Authorization header")
        return token

    def _may_write(self, repo_id: str) -> None:
        token = self._token()
        if token is None:
            raise _HttpError(401, "Invalid username or password.")
        if repo_id.split("/")[0] not in self.hub.tokens[token]:
            raise _HttpError(403, "You don't have the rights to write to this namespace")

    def _repo(self) -> Repo:
        """The repository of the request, if its token may see it."""
        token = self._token()
        kind: RepoType = "dataset" if self.arguments.get("kind") == "dataset" else "model"
        repo = self.hub.find(kind, self.arguments["repo"])
        if repo is None or (repo.private and token is None):
            # The real one does not tell strangers whether a repository exists.
            raise _HttpError(404 if token else 401, "Repository not found", "RepoNotFound")
        return repo

    def _commit_at(self, repo: Repo) -> Commit:
        commit = repo.at(self.arguments.get("revision", "main"))
        if commit is None:
            raise _HttpError(404, "Invalid rev id", "RevisionNotFound")
        return commit

    def _pass_gate(self, repo: Repo) -> None:
        token = self._token()
        if repo.gated and token not in self.hub.gate_passes:
            message = f"Access to model {repo.id} is restricted"
            raise _HttpError(403 if token else 401, message, "GatedRepo")

    # ---- writing ------------------------------------------------------------------------------

    def _whoami(self) -> Any:
        token = self._token()
        if token is None:
            raise _HttpError(401, "Invalid username or password.")
        names = sorted(self.hub.tokens[token]) or ["nobody"]
        return {"type": "user", "name": names[0], "orgs": [{"name": name} for name in names[1:]]}

    def _create(self) -> Any:
        wish = json.loads(self.body)
        repo_id = f"{wish.get('organization') or 'me'}/{wish['name']}"
        kind: RepoType = wish.get("type") or "model"
        self._may_write(repo_id)
        url = f"{self.hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
        if self.hub.find(kind, repo_id) is not None:
            error = _HttpError(409, "You already created this repo")
            error.body["url"] = url
            raise error
        private = bool(wish.get("private")) or wish.get("visibility") == "private"
        self.hub.create(kind, repo_id, private)
        return {"url": url, "name": repo_id}

    def _validate_yaml(self) -> Any:
        return {"errors": [], "warnings": []}

    def _preupload(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        tree = self._commit_at(repo).files
        return {"files": [_preupload_entry(file, tree) for file in json.loads(self.body)["files"]]}

    def _commit(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        branch = self.arguments["revision"]
        parent = self._commit_at(repo)
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        header = lines[0]["value"]
        if header.get("parentCommit", parent.sha) != parent.sha:
            raise _HttpError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)
        for line in lines[1:]:
            self._apply(files, line["key"], line["value"])
        commit = repo.commit(branch, header["summary"], files)
        url = f"{self.hub.endpoint}/{repo.id}/commit/{commit.sha}"
        return {"success": True, "commitOid": commit.sha, "commitUrl": url, "hookOutput": ""}

    def _apply(self, files: dict[str, bytes], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            if value["oid"] not in self.hub.lfs:
                raise _HttpError(400, f"LFS pointer pointed to a file that does not exist: {path}")
            files[path] = self.hub.lfs[value["oid"]]
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise _HttpError(404, "A file with this name doesn't exist", "EntryNotFound")
        else:
            raise _HttpError(400, f"unknown operation {key}")

    def _branch(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        name = self.arguments["revision"]
        if name in repo.branches:
            raise _HttpError(409, f"Reference already exists: {name}")
        start = repo.at(json.loads(self.body or b"{}").get("startingPoint", "main"))
        if start is None:
            raise _HttpError(404, "Invalid rev id", "RevisionNotFound")
        repo.branches[name] = start.sha
        return {}

    def _lfs_batch(self) -> Any:
        repo_id = self.arguments["repo"].removeprefix("datasets/")
        self._may_write(repo_id)
        objects = [self._lfs_action(item) for item in json.loads(self.body)["objects"]]
        return {"transfer": "basic", "objects": objects}

    def _lfs_action(self, item: dict[str, Any]) -> dict[str, Any]:
        known = {"oid": item["oid"], "size": item["size"]}
        if item["oid"] in self.hub.lfs:
            return known
        upload = {"href": f"{self.hub.endpoint}/lfs/{item['oid']}"}
        verify = {"href": f"{self.hub.endpoint}/lfs/verify"}
        return known | {"actions": {"upload": upload, "verify": verify}}

    def _lfs_put(self) -> Any:
        if hashlib.sha256(self.body).hexdigest() != self.arguments["path"]:
            raise _HttpError(400, "the content is not what its oid says")
        self.hub.lfs[self.arguments["path"]] = self.body
        return {}

    def _lfs_verify(self) -> Any:
        wish = json.loads(self.body)
        if len(self.hub.lfs.get(wish["oid"], b"")) != wish["size"]:
            raise _HttpError(404, "no such object")
        return {}

    # ---- reading ------------------------------------------------------------------------------

    def _refs(self) -> Any:
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in self._repo().branches.items()
        ]
        return {"branches": branches, "tags": [], "converts": []}

    def _info(self) -> Any:
        repo = self._repo()
        commit = self._commit_at(repo)
        return {
            "_id": repo.id,
            "id": repo.id,
            "sha": commit.sha,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "lastModified": _now(),
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }

    def _commits(self) -> Any:
        repo = self._repo()
        history, commit = [], repo.at(self.arguments["revision"])
        while commit is not None:
            entry = {"id": commit.sha, "title": commit.title, "message": ""}
            history.append(entry | {"date": _now(), "authors": []})
            commit = repo.at(commit.parent) if commit.parent else None
        return history

    def _tree(self) -> Any:
        repo = self._repo()
        files = self._commit_at(repo).files
        folder = self.arguments.get("path", "")
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = list(_entries(files, folder, recursive))
        if folder and not entries:
            raise _HttpError(404, f"{folder} does not exist", "EntryNotFound")
        return entries

    def _paths_info(self) -> Any:
        files = self._commit_at(self._repo()).files
        wish = parse_qs(self.body.decode())
        found = [_file_entry(path, files[path]) for path in wish.get("paths", []) if path in files]
        folders = [
            {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest()}
            for path in wish.get("paths", [])
            if any(name.startswith(f"{path}/") for name in files)
        ]
        return found + folders

    def _resolve(self) -> tuple[int, dict[str, str], bytes]:
        repo = self._repo()
        commit = self._commit_at(repo)
        self._pass_gate(repo)
        content = commit.files.get(self.arguments["path"])
        if content is None:
            error = _HttpError(404, "Entry not found", "EntryNotFound")
            error.headers["X-Repo-Commit"] = commit.sha
            raise error
        etag = f'"{_oid(self.arguments["path"], content)}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit.sha, "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content))}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, headers, content
        start, end = int(wanted[1]), int(wanted[2] or len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        return 206, headers, content[start : end + 1]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _is_lfs(path: str, size: int) -> bool:
    return path.endswith(_LFS_SUFFIXES) or size > _LFS_BYTES


def _oid(path: str, content: bytes) -> str:
    """sha256 of an LFS file, git's blob hash of any other."""
    if _is_lfs(path, len(content)):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _preupload_entry(file: dict[str, Any], tree: Mapping[str, bytes]) -> dict[str, Any]:
    path = file["path"]
    mode = "lfs" if _is_lfs(path, file["size"]) else "regular"
    entry = {"path": path, "uploadMode": mode, "shouldIgnore": False}
    return entry | ({"oid": _oid(path, tree[path])} if path in tree else {})


def _file_entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    if not _is_lfs(path, len(content)):
        return entry | {"oid": _oid(path, content)}
    lfs = {"oid": _oid(path, content), "size": len(content), "pointerSize": 134}
    return entry | {"oid": hashlib.sha1(content).hexdigest(), "lfs": lfs}


def _entries(files: Mapping[str, bytes], folder: str, recursive: bool) -> Iterator[dict[str, Any]]:
    """Files and folders under `folder` as the tree route lists them."""
    prefix = f"{folder}/" if folder else ""
    folders: set[str] = set()
    for path, content in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        parents = {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts))}
        shown = parents if recursive else set(sorted(parents, key=len)[:1])
        for name in sorted(shown - folders):
            yield {
                "type": "directory",
                "path": name,
                "oid": hashlib.sha1(name.encode()).hexdigest(),
            }
        folders |= shown
        if recursive or not parents:
            yield _file_entry(path, content)
