"""Routes that describe repositories and serve their files."""

import hashlib
import re
from typing import Any
from urllib.parse import parse_qs

from tests.support.hub.content import entries as entries_of
from tests.support.hub.content import file_entry, now, oid
from tests.support.hub.exchange import REPO, Exchange, HttpError, routes

ROUTES = routes(
    ("POST", rf"/api/{REPO}/paths-info/(?P<revision>[^/]+)", "paths_info"),
    ("GET", rf"/api/{REPO}/refs", "refs"),
    ("GET", rf"/api/{REPO}/commits/(?P<revision>[^/]+)", "commits"),
    ("GET", rf"/api/{REPO}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
    ("GET", rf"/api/{REPO}/revision/(?P<revision>[^/]+)", "info"),
    ("GET", rf"/api/{REPO}", "info"),
    (
        "GET",
        r"/(?:(?P<kind>dataset)s/)?(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
        "resolve",
    ),
)


class Reading(Exchange):
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
            "lastModified": now(),
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }

    def _commits(self) -> Any:
        repo = self._repo()
        history, commit = [], repo.at(self.arguments["revision"])
        while commit is not None:
            entry = {"id": commit.sha, "title": commit.title, "message": commit.description}
            history.append(entry | {"date": now(), "authors": []})
            commit = repo.at(commit.parent) if commit.parent else None
        return history

    def _tree(self) -> Any:
        repo = self._repo()
        files = self._commit_at(repo).files
        folder = self.arguments.get("path", "")
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = list(entries_of(files, folder, recursive))
        if folder and not entries:
            raise HttpError(404, f"{folder} does not exist", "EntryNotFound")
        return entries

    def _paths_info(self) -> Any:
        files = self._commit_at(self._repo()).files
        request = parse_qs(self.body.decode())
        found = [
            file_entry(path, files[path]) for path in request.get("paths", []) if path in files
        ]
        folders = [
            {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest()}
            for path in request.get("paths", [])
            if any(name.startswith(f"{path}/") for name in files)
        ]
        return found + folders

    def _resolve(self) -> tuple[int, dict[str, str], bytes]:
        repo = self._repo()
        commit = self._commit_at(repo)
        self._pass_gate(repo)
        content = commit.files.get(self.arguments["path"])
        if content is None:
            error = HttpError(404, "Entry not found", "EntryNotFound")
            error.headers["X-Repo-Commit"] = commit.sha
            raise error
        etag = f'"{oid(self.arguments["path"], content)}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit.sha, "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content))}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, headers, content
        start, end = int(wanted[1]), int(wanted[2] or len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        return 206, headers, content[start : end + 1]
