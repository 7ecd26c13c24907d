"""Keys of a project, through the API."""

from typing import Any

from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError


def create(project: str, name: str, given: dict[str, Any]) -> Json:
    with Client.from_environment(project) as client:
        return client.change("POST", _path(project), {"name": name, **given})


def list_all(project: str) -> list[Json]:
    with Client.from_environment(project) as client:
        found: list[Json] = client.get(_path(project))["data"]
    return found


def revoke(project: str, key: str) -> Json:
    with Client.from_environment(project) as client:
        return client.change("DELETE", f"{_path(project)}/{_the_one(client, project, key)}")


def rotate(project: str, key: str, grace_seconds: int) -> Json:
    with Client.from_environment(project) as client:
        path = f"{_path(project)}/{_the_one(client, project, key)}/rotate"
        return client.change("POST", path, {"grace_seconds": grace_seconds})


def _path(project: str) -> str:
    return f"/v1/projects/{project}/keys"


def _the_one(client: Client, project: str, key: str) -> str:
    """The id of the key that works and has this id, or else this name."""
    working = [each for each in client.get(_path(project))["data"] if each["revoked_at"] is None]
    ids = [each["id"] for each in working if each["id"] == key]
    ids = ids or [each["id"] for each in working if each["name"] == key]
    if not ids:
        raise UsageError(f"the project has no active key {key!r}; see `finetune keys list`")
    if len(ids) > 1:
        raise UsageError(f"several keys are called {key!r}; give the id of one: {', '.join(ids)}")
    return str(ids[0])
