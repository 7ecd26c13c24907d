"""Routes that large files take, named by their sha256."""

import hashlib
import json
from typing import Any

from tests.support.hub.exchange import Exchange, HttpError, routes

ROUTES = routes(
    ("POST", r"/(?P<repo>.+)\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", r"/lfs/(?P<path>[0-9a-f]{64})", "lfs_put"),
    ("POST", r"/lfs/verify", "lfs_verify"),
)


class Lfs(Exchange):
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
            raise HttpError(400, "the content is not what its oid says")
        self.hub.lfs[self.arguments["path"]] = self.body
        return {}

    def _lfs_verify(self) -> Any:
        request = json.loads(self.body)
        if len(self.hub.lfs.get(request["oid"], b"")) != request["size"]:
            raise HttpError(404, "no such object")
        return {}
