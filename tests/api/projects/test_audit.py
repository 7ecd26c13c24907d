"""The audit log: written with the change, for every request that changes something."""

from typing import Any

import httpx
import pytest
from sqlalchemy import delete, event, select, update
from sqlalchemy.exc import DBAPIError, OperationalError

from service.contract.roles import Role
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.projects import audit, keys
from service.store.projects.audit import Entry
from service.store.projects.keys import Grant
from service.store.scope import EVERYTHING
from service.store.tables.teams import AuditRow
from tests.api.conftest import Server, running
from tests.api.factories import SPEC
from tests.support.store.databases import on_both
from tests.support.store.projects import make_job_of, make_project


def log(server: Server, **params: Any) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = server.client.get("/v1/audit", params=params).json()["data"]
    return data


def written(database: Database) -> list[AuditRow]:
    """All rows, the newest first."""
    with database.read() as session:
        return audit.page(session, EVERYTHING, audit.Wanted(), after=None, limit=99)[0]


class TestAudit:
    def test_a_submission(self, server: Server) -> None:
        answer = server.client.post("/v1/jobs", json=SPEC, headers={"X-Request-Id": "mine"})
        [entry] = log(server)
        assert entry["id"].startswith("audit-")
        assert {key: value for key, value in entry.items() if key not in ("id", "at")} == {
            "project": "default",
            "key_id": None,
            "key_name": None,
            "role": "operator",
            "action": "create_job",
            "target": answer.json()["id"],
            "outcome": "done",
            "code": None,
            "client": "127.0.0.1",
            "request_id": "mine",
        }

    def test_a_repeated_submission_is_one_change(self, server: Server) -> None:
        for _ in range(2):
            server.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "once"})
        assert len(log(server)) == 1

    def test_what_is_done_to_a_job_belongs_to_its_project(self, server: Server) -> None:
        make_project(server.database, "other")
        job_id = make_job_of(server.database, "other")
        server.client.post(f"/v1/jobs/{job_id}/cancel")
        server.client.delete(f"/v1/jobs/{job_id}")
        assert [(row["action"], row["target"], row["project"]) for row in log(server)][1:] == [
            ("cancel_job", job_id, "other")
        ]
        assert log(server)[0]["action"] == "delete_job"

    def test_what_changes_nothing_is_not_there(self, server: Server) -> None:
        server.client.get("/v1/jobs")
        server.client.post("/v1/jobs/validate", json=SPEC)
        server.client.post("/v1/jobs", json={})
        server.client.post("/v1/jobs/job-0/cancel")
        assert log(server) == []

    def test_an_upload_and_a_secret_without_its_value(self, server: Server) -> None:
        uploaded = server.client.post(
            "/v1/files", files={"file": ("a.jsonl", b"x")}, data={"purpose": "fine-tune"}
        ).json()
        server.client.put("/v1/secrets/hub", json={"value": "hf_secret"})
        found = log(server)
        assert [(row["action"], row["target"]) for row in found] == [
            ("set_secret", "hub"),
            ("create_file", uploaded["id"]),
        ]
        assert "hf_secret" not in str(found)

    def test_filters_and_pages(self, server: Server) -> None:
        job_ids = [server.client.post("/v1/jobs", json=SPEC).json()["id"] for _ in range(3)]
        server.client.post(f"/v1/jobs/{job_ids[0]}/cancel")
        assert [row["action"] for row in log(server, target=job_ids[0])] == [
            "cancel_job",
            "create_job",
        ]
        first = server.client.get("/v1/audit?limit=3").json()
        assert first["has_more"]
        rest = log(server, after=first["last_id"])
        assert [row["target"] for row in rest] == [job_ids[0]]
        assert log(server, since="2100-01-01T00:00:00Z") == []


class TestRefusals:
    def test_a_wrong_key_and_a_missing_right(
        self, api_settings: Settings, database: Database
    ) -> None:
        with database.write() as session:
            row, key = keys.create(session, "reader", Grant("default", Role.VIEWER))
            _, admins = keys.create(session, "boss", Grant("default", Role.ADMIN))
        closed = api_settings.model_copy(update={"auth": "required"})
        with running(closed) as url, httpx.Client(base_url=url, timeout=30, verify=False) as client:
            wrong = {"Authorization": "Bearer ft-wrong-key"}
            assert client.get("/v1/jobs", headers=wrong).status_code == 401
            reader = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/jobs", json=SPEC, headers=reader).status_code == 403
            assert client.get("/v1/audit", headers=reader).status_code == 403
            mine = client.get("/v1/audit", headers={"Authorization": f"Bearer {admins}"}).json()
        rows = written(database)
        assert [(row.action, row.outcome, row.code) for row in rows] == [
            ("list_audit", "refused", "forbidden"),
            ("create_job", "refused", "forbidden"),
            ("GET /v1/jobs", "refused", "unauthorized"),
        ]
        assert [entry["key_name"] for entry in mine["data"]] == ["reader", "reader"]
        assert row.id == rows[0].key_id
        assert "ft-wrong-key" not in str([vars(row) for row in rows])

    def test_a_flood_of_refusals_is_not_a_flood_of_rows(
        self, api_settings: Settings, database: Database
    ) -> None:
        closed = api_settings.model_copy(update={"auth": "required"})
        with running(closed) as url, httpx.Client(base_url=url, timeout=30, verify=False) as client:
            assert {client.get("/v1/jobs").status_code for _ in range(50)} == {401}
        assert 10 <= len(written(database)) <= 20


@on_both
class TestAppendOnly:
    def write(self, database: Database, days_ago: int = 0) -> None:
        with database.write() as session:
            entry = Entry("create_job", target="job-1\x00")
            at: Any = session.scalar(select(db_now(-86400 * days_ago)))
            audit.write_all(session, [entry], at)

    @pytest.mark.parametrize(
        "change", [update(AuditRow).values(action="nothing"), delete(AuditRow)], ids=["u", "d"]
    )
    def test_a_row_can_neither_be_changed_nor_removed(
        self, database: Database, change: Any
    ) -> None:
        self.write(database)
        with pytest.raises(DBAPIError, match="append-only"), database.write() as session:
            session.execute(change)
        [row] = written(database)
        assert (row.action, row.target) == ("create_job", "job-1")

    def test_old_rows_are_forgotten(self, database: Database) -> None:
        self.write(database, days_ago=400)
        self.write(database, days_ago=40)
        self.write(database)
        with database.write() as session:
            assert audit.forget(session, 365) == 1
        with database.write() as session:
            assert audit.forget(session, 1) == 1

    def test_a_change_that_is_rolled_back_leaves_no_entry(self, database: Database) -> None:
        database.before_commit = audit.record
        audit.begin(Entry("create_job"))
        with pytest.raises(ConnectionError), database.write():
            raise ConnectionError
        assert written(database) == []
        with database.write():
            pass
        assert [row.action for row in written(database)] == ["create_job"]

    def test_a_change_that_is_tried_again_after_a_failed_commit_is_noted(
        self, database: Database
    ) -> None:
        """As on a full disk, where the reserve is released for a second try."""
        database.before_commit = audit.record
        audit.begin(Entry("delete_file"))

        def fail(_connection: Any) -> None:
            raise OperationalError("COMMIT", None, Exception("database or disk is full"))

        event.listen(database.engine, "commit", fail)
        with pytest.raises(OperationalError), database.write():
            pass
        event.remove(database.engine, "commit", fail)
        for _ in range(2):
            with database.write():
                pass
        assert [row.action for row in written(database)] == ["delete_file"]
