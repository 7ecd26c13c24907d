"""Routes that make repositories, commits and branches."""

import base64
import json
from typing import Any

from tests.support.hub.content import RepoType, preupload_entry
from tests.support.hub.exchange import REPO, Exchange, HttpError, routes

ROUTES = routes(
    ("GET", r"/api/whoami-v2", "whoami"),
    ("GET", rf"/api/{REPO}/auth-check/write", "auth_check"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("POST", rf"/api/{REPO}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/api/{REPO}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", rf"/api/{REPO}/branch/(?P<revision>[^/]+)", "branch"),
)


class Writing(Exchange):
    def _whoami(self) -> Any:
        token = self._token()
        if token is None:
            raise HttpError(401, "Invalid username or password.")
        account = self.hub.account(token)
        role = "read" if token in self.hub.read_only else "write"
        organizations = sorted(self.hub.tokens[token] - {account})
        return {
            "type": "user",
            "name": account,
            "orgs": [{"type": "org", "name": name, "roleInOrg": role} for name in organizations],
            "auth": {"type": "access_token", "accessToken": {"displayName": "a", "role": role}},
        }

    def _auth_check(self) -> Any:
        self._may_write(self._repo().id)
        return {}

    def _create(self) -> Any:
        request = json.loads(self.body)
        token = self._token()
        namespace = request.get("organization") or (token and self.hub.account(token))
        repo_id = f"{namespace}/{request['name']}"
        kind: RepoType = request.get("type") or "model"
        self._may_write(repo_id)
        url = f"{self.hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
        if self.hub.find(kind, repo_id) is not None:
            error = HttpError(409, "You already created this repo")
            error.body["url"] = url
            raise error
        private = bool(request.get("private")) or request.get("visibility") == "private"
        self.hub.create(kind, repo_id, private)
        return {"url": url, "name": repo_id}

    def _validate_yaml(self) -> Any:
        return {"errors": [], "warnings": []}

    def _preupload(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        tree = self._commit_at(repo).files
        return {"files": [preupload_entry(file, tree) for file in json.loads(self.body)["files"]]}

    def _commit(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        branch = self.arguments["revision"]
        parent = self._commit_at(repo)
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        header = lines[0]["value"]
        if header.get("parentCommit", parent.sha) != parent.sha:
            raise HttpError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)
        for line in lines[1:]:
            self._apply(files, line["key"], line["value"])
        commit = repo.commit(branch, header["summary"], files, header["description"])
        url = f"{self.hub.endpoint}/{repo.id}/commit/{commit.sha}"
        return {"success": True, "commitOid": commit.sha, "commitUrl": url, "hookOutput": ""}

    def _apply(self, files: dict[str, bytes], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            if value["oid"] not in self.hub.lfs:
                raise HttpError(400, f"LFS pointer pointed to a file that does not exist: {path}")
            files[path] = self.hub.lfs[value["oid"]]
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise HttpError(404, "A file with this name doesn't exist", "EntryNotFound")
        else:
            raise HttpError(400, f"unknown operation {key}")

    def _branch(self) -> Any:
        repo = self._repo()
        self._may_write(repo.id)
        name = self.arguments["revision"]
        if name in repo.branches:
            raise HttpError(409, f"Reference already exists: {name}")
        start = repo.at(json.loads(self.body or b"{}").get("startingPoint", "main"))
        if start is None:
            raise HttpError(404, "Invalid rev id", "RevisionNotFound")
        repo.branches[name] = start.sha
        return {}
