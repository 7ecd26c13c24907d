"""Projects, members and keys over HTTP: who may make what, and when a key ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from service.contract.roles import Role
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.projects import keys, projects
from service.store.projects.keys import Grant
from service.store.scope import EVERYTHING
from service.store.tables.projects import ApiKeyRow
from service.store.tracking import jobs
from tests.api.conftest import code, running
from tests.api.factories import spec
from tests.support.servers import services


@pytest.fixture
def locked(api_settings: Settings, database: Database) -> Iterator[str]:
    """A service that needs keys, and a project in it."""
    settings = api_settings.model_copy(update={"auth": "required"})
    with database.write() as session:
        projects.create(session, "search", {})
    with running(settings) as url:
        yield url


def key_of(database: Database, role: Role, **given: Any) -> str:
    with database.write() as session:
        if role is not Role.OPERATOR:
            project = projects.find(session.connection(), EVERYTHING, "search")
            given["project"] = project
        return keys.create(session, role, Grant(role=role, **given))[1]


@dataclass(frozen=True)
class Caller:
    url: str
    key: str

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}", **given.pop("headers", {})}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=30, **given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.ask("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.ask("POST", path, **given)

    def patch(self, path: str, **given: Any) -> httpx.Response:
        return self.ask("PATCH", path, **given)

    def delete(self, path: str) -> httpx.Response:
        return self.ask("DELETE", path)


@pytest.fixture
def operator(database: Database, locked: str) -> Caller:
    return Caller(locked, key_of(database, Role.OPERATOR))


@pytest.fixture
def admin(database: Database, locked: str) -> Caller:
    """Of the project."""
    return Caller(locked, key_of(database, Role.ADMIN))


class TestProjects:
    def test_an_operator_makes_one_and_works_in_it(self, operator: Caller) -> None:
        made = operator.post("/v1/projects", json={"name": "new", "max_gpus": 2})
        assert (made.status_code, made.json()["max_gpus"]) == (201, 2)
        inside = {"FineTune-Project": "new"}
        job = operator.post("/v1/jobs", json=spec(), headers=inside).json()
        assert job["project"] == made.json()["id"]
        assert operator.post("/v1/jobs", json=spec()).json()["project"] == "default"
        assert len(operator.get("/v1/jobs").json()["data"]) == 2
        assert [each["id"] for each in operator.get("/v1/jobs", headers=inside).json()["data"]] == [
            job["id"]
        ]
        clone = operator.post(f"/v1/jobs/{job['id']}/clone", json={}).json()
        assert clone["project"] == job["project"]

    def test_an_operators_job_uses_nothing_of_another_project(self, operator: Caller) -> None:
        inside = {"FineTune-Project": "search"}
        file = operator.post(
            "/v1/files",
            files={"file": ("a.jsonl", b"{}")},
            data={"purpose": "fine-tune"},
            headers=inside,
        ).json()["id"]
        body = spec(dataset={"source": "upload", "train": file})
        assert operator.post("/v1/jobs", json=body, headers=inside).status_code == 201
        refused = operator.post("/v1/jobs", json=body).json()
        assert refused["errors"][0]["code"] == "unknown_file"

    def test_an_archived_one_takes_nothing_new(
        self, database: Database, operator: Caller, locked: str
    ) -> None:
        member = Caller(locked, key_of(database, Role.MEMBER))
        assert member.post("/v1/jobs", json=spec()).status_code == 201
        assert operator.patch("/v1/projects/search", json={"archived": True}).status_code == 200
        assert code(member.post("/v1/jobs", json=spec())) == (409, "project_archived")
        form: dict[str, Any] = {"files": {"file": ("a", b"{}")}, "data": {"purpose": "fine-tune"}}
        assert member.post("/v1/files", **form).status_code == 409
        assert len(member.get("/v1/jobs").json()["data"]) == 1
        operator.patch("/v1/projects/search", json={"archived": False})
        assert member.post("/v1/jobs", json=spec()).status_code == 201

    def test_names_that_are_refused(self, operator: Caller) -> None:
        for name in ("default", "search", "proj-1", "A", "a.b", "a/b", ""):
            made = operator.post("/v1/projects", json={"name": name})
            assert made.status_code in (409, 422), name


class TestRename:
    def test_the_project_has_the_new_name_alone(
        self, database: Database, operator: Caller, locked: str
    ) -> None:
        member = Caller(locked, key_of(database, Role.MEMBER))
        job = member.post("/v1/jobs", json=spec()).json()
        answer = operator.patch("/v1/projects/search", json={"name": "find"})
        changed = answer.json()
        assert (answer.status_code, changed["name"], changed["mlflow_name"]) == (
            200,
            "find",
            "search",
        )
        assert operator.get("/v1/projects/search").status_code == 404
        assert operator.get("/v1/projects/find").json()["id"] == job["project"]
        assert member.get(f"/v1/jobs/{job['id']}").status_code == 200

    def test_mlflow_keeps_the_first_one(self, database: Database, operator: Caller) -> None:
        operator.patch("/v1/projects/search", json={"name": "find"})
        job = operator.post("/v1/jobs", json=spec(), headers={"FineTune-Project": "find"}).json()
        with database.read() as session:
            tracked = jobs.load(session, job["id"])
        assert tracked is not None
        assert tracked.project == "search"

    def test_a_name_that_mlflow_knows_stays_its_owners(self, operator: Caller) -> None:
        operator.post("/v1/projects", json={"name": "other"})
        operator.patch("/v1/projects/search", json={"name": "find"})
        for answer in (
            operator.post("/v1/projects", json={"name": "search"}),
            operator.patch("/v1/projects/other", json={"name": "search"}),
            operator.patch("/v1/projects/other", json={"name": "find"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "project_exists")
        back = operator.patch("/v1/projects/find", json={"name": "search"})
        assert (back.status_code, back.json()["name"]) == (200, "search")

    def test_the_default_project_keeps_its_name(self, operator: Caller) -> None:
        refused = operator.patch("/v1/projects/default", json={"name": "main"})
        assert (refused.status_code, refused.json()["code"]) == (409, "project_name_fixed")
        assert operator.patch("/v1/projects/default", json={"name": "default"}).status_code == 200

    def test_names_that_are_refused(self, operator: Caller) -> None:
        for name in ("proj-1", "A", "a/b", "", 1):
            changed = operator.patch("/v1/projects/search", json={"name": name})
            assert changed.status_code == 422, name


class TestChanges:
    def test_null_lifts_the_limit_and_changes_nothing_else(self, operator: Caller) -> None:
        limits = {"max_gpus": 2, "weight": 3, "archived": True}
        operator.patch("/v1/projects/search", json=limits)
        nulls = {"max_gpus": None, "archived": None, "name": None}
        changed = operator.patch("/v1/projects/search", json=nulls).json()
        assert (changed["max_gpus"], changed["weight"], changed["name"]) == (None, 3, "search")
        assert changed["archived_at"] is not None

    def test_a_project_always_has_a_weight(self, operator: Caller) -> None:
        for weight in (None, 0, -1, "many"):
            refused = operator.patch("/v1/projects/search", json={"weight": weight})
            assert refused.status_code == 422
            assert [fault["path"] for fault in refused.json()["errors"]] == ["body.weight"]
        assert operator.get("/v1/projects/search").json()["weight"] == 1


class TestKeys:
    def test_an_expired_key_says_so(self, database: Database, locked: str) -> None:
        key = key_of(database, Role.MEMBER)
        with database.write() as session:
            session.execute(update(ApiKeyRow).values(expires_at=db_now(-1)))
        refused = Caller(locked, key).get("/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert "expired on" in refused.json()["detail"]

    def test_rotation_leaves_no_gap(self, database: Database, admin: Caller, locked: str) -> None:
        old = admin.post("/v1/projects/search/keys", json={"name": "ci"}).json()
        path = f"/v1/projects/search/keys/{old['id']}/rotate"
        new = admin.post(path, json={"grace_seconds": 3600}).json()
        for key in (old["key"], new["key"]):
            assert Caller(locked, key).get("/v1/jobs").status_code == 200
        with database.write() as session:
            ended = update(ApiKeyRow).where(ApiKeyRow.id == old["id"])
            assert session.get_one(ApiKeyRow, old["id"]).expires_at is not None
            session.execute(ended.values(expires_at=db_now(-1)))
        assert Caller(locked, old["key"]).get("/v1/jobs").status_code == 401
        assert Caller(locked, new["key"]).get("/v1/jobs").status_code == 200
        assert admin.post(path, json={}).status_code == 404

    def test_none_makes_one_with_more_rights(self, database: Database, locked: str) -> None:
        cases: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
            ({"scopes": ["keys:admin"]}, {"role": "viewer"}),
            ({"scopes": ["keys:admin", "jobs:read"]}, {"scopes": ["files:read"]}),
            ({"expires_at": db_now(60)}, {"scopes": ["jobs:read"]}),
            ({"expires_at": db_now(60)}, {"expires_in_seconds": 3600}),
        )
        for own, asked in cases:
            admin = Caller(locked, key_of(database, Role.ADMIN, **own))
            refused = admin.post("/v1/projects/search/keys", json={"name": "more", **asked})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), asked

    def test_a_narrow_key_cannot_rotate_a_broader_one(
        self, database: Database, locked: str
    ) -> None:
        narrow = Caller(locked, key_of(database, Role.ADMIN, scopes=["keys:admin"]))
        key_of(database, Role.ADMIN)
        broad = narrow.get("/v1/projects/search/keys").json()["data"][-1]["id"]
        path = f"/v1/projects/search/keys/{broad}/rotate"
        assert narrow.post(path, json={}).status_code == 403

    def test_an_operators_role_cannot_be_asked_for(self, admin: Caller) -> None:
        body = {"name": "x", "role": "operator"}
        assert admin.post("/v1/projects/search/keys", json=body).status_code == 422

    def test_the_last_use_is_noted(self, database: Database, locked: str) -> None:
        key = key_of(database, Role.VIEWER)
        Caller(locked, key).get("/v1/jobs")

        def noted() -> bool:
            with database.read() as session:
                return keys.list_all(session)[0].last_used_at is not None

        services.wait_until(noted, 20, "the note of the use")


class TestMembers:
    def test_a_key_can_do_no_more_than_its_member(self, admin: Caller, locked: str) -> None:
        admin.post("/v1/projects/search/members", json={"name": "ada", "role": "viewer"})
        body = {"name": "hers", "role": "admin", "member": "ada"}
        hers = admin.post("/v1/projects/search/keys", json=body).json()
        me = Caller(locked, hers["key"]).get("/v1/me").json()
        assert (me["role"], "jobs:write" in me["permissions"]) == ("viewer", False)
        assert {"files:read", "jobs:read"} <= set(me["permissions"])
        assert Caller(locked, hers["key"]).post("/v1/jobs", json=spec()).status_code == 403

    def test_a_lower_role_counts_at_once_and_a_higher_one_gives_no_key_more(
        self, admin: Caller, locked: str
    ) -> None:
        admin.post("/v1/projects/search/members", json={"name": "ada", "role": "member"})
        body = {"name": "hers", "member": "ada"}
        hers = Caller(locked, admin.post("/v1/projects/search/keys", json=body).json()["key"])
        assert hers.post("/v1/jobs", json=spec()).status_code == 201
        path = "/v1/projects/search/members/ada"
        changed = admin.patch(path, json={"role": "viewer"}).json()
        assert (changed["name"], changed["role"]) == ("ada", "viewer")
        assert hers.post("/v1/jobs", json=spec()).status_code == 403
        assert admin.patch(path, json={"role": "admin"}).json()["role"] == "admin"
        assert hers.get("/v1/me").json()["role"] == "member"
        [listed] = admin.get("/v1/projects/search/members").json()["data"]
        assert listed["role"] == "admin"

    def test_a_narrow_key_gives_no_member_more_than_it_has(
        self, database: Database, admin: Caller, locked: str
    ) -> None:
        narrow = Caller(locked, key_of(database, Role.ADMIN, scopes=["keys:admin"]))
        admin.post("/v1/projects/search/members", json={"name": "ada", "role": "admin"})
        path = "/v1/projects/search/members/ada"
        assert narrow.patch(path, json={"role": "viewer"}).status_code == 200
        refused = narrow.patch(path, json={"role": "member"})
        assert (refused.status_code, refused.json()["role"]) == (403, "member")
        assert "`jobs:write`" in refused.json()["detail"]

    def test_changes_that_are_refused(self, admin: Caller) -> None:
        admin.post("/v1/projects/search/members", json={"name": "ada"})
        for body in ({}, {"role": "operator"}, {"role": "member", "name": "x"}):
            assert admin.patch("/v1/projects/search/members/ada", json=body).status_code == 422
        missing = admin.patch("/v1/projects/search/members/bob", json={"role": "viewer"})
        assert (missing.status_code, missing.json()["code"]) == (404, "member_not_found")

    def test_removing_one_revokes_all_their_keys(self, admin: Caller, locked: str) -> None:
        admin.post("/v1/projects/search/members", json={"name": "ada"})
        path = "/v1/projects/search/keys"
        made = [
            admin.post(path, json={"name": name, "member": "ada"}).json() for name in ("a", "b")
        ]
        assert Caller(locked, made[0]["key"]).get("/v1/jobs").status_code == 200
        removed = admin.delete("/v1/projects/search/members/ada").json()
        assert sorted(removed["revoked_keys"]) == sorted(each["id"] for each in made)
        assert all(Caller(locked, each["key"]).get("/v1/jobs").status_code == 401 for each in made)
        again = admin.post("/v1/projects/search/members", json={"name": "ada"})
        assert again.status_code == 201
