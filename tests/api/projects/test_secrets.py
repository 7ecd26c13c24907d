"""Secrets: set, listed by name, deleted; a value is in no answer, not even in that of an error."""

import httpx

from service.store.projects import secrets
from service.store.scope import Scope
from service.system.secret_box import SecretBox
from tests.api.conftest import Server, code
from tests.api.factories import SPEC
from tests.support.store.projects import make_project

VALUE = "hf_very-secret-value"


def put(client: httpx.Client, name: str = "hub", value: object = VALUE) -> httpx.Response:
    return client.put(f"/v1/secrets/{name}", json={"value": value})


class TestSecrets:
    def test_a_value_is_stored_sealed_and_never_shown(self, server: Server) -> None:
        answer = put(server.client)
        assert answer.status_code == 200, answer.text
        assert {key: answer.json()[key] for key in ("name", "project")} == {
            "name": "hub",
            "project": "default",
        }
        listed = server.client.get("/v1/secrets")
        assert [row["name"] for row in listed.json()["data"]] == ["hub"]
        assert VALUE not in answer.text + listed.text
        with server.database.read() as session:
            sealed = secrets.sealed(session, Scope("default"), "hub")
        assert sealed is not None
        assert VALUE not in sealed
        box = SecretBox(server.settings.secrets_file)
        assert box.open("default", "hub", sealed) == VALUE

    def test_it_is_deleted_once(self, server: Server) -> None:
        put(server.client)
        assert server.client.delete("/v1/secrets/hub").json() == {"name": "hub", "deleted": True}
        assert code(server.client.delete("/v1/secrets/hub")) == (404, "secret_not_found")

    def test_an_error_does_not_show_the_value(self, client: httpx.Client) -> None:
        wrong = ({"value": f"{VALUE}\n"}, {"value": VALUE, "more": 1}, {"value": [VALUE]})
        for body in (*wrong, [VALUE], VALUE):
            answer = client.put("/v1/secrets/hub", json=body)
            assert answer.status_code == 422, body
            assert VALUE not in answer.text

    def test_a_name_that_is_none(self, client: httpx.Client) -> None:
        assert put(client, name="UP").status_code == 422
        assert client.delete("/v1/secrets/UP%00").status_code == 404


class TestSpec:
    def test_a_secret_that_does_not_exist_is_a_fault(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs", json={**SPEC, "secrets": {"hub_token": "hub"}})
        assert answer.status_code == 422
        [fault] = answer.json()["errors"]
        assert (fault["path"], fault["code"]) == ("secrets.hub_token", "secret_not_found")

    def test_a_job_names_it(self, client: httpx.Client) -> None:
        put(client)
        hub = {"model_id": "a-user/model"}
        answer = client.post("/v1/jobs", json={**SPEC, "secrets": {"hub_token": "hub"}, "hub": hub})
        assert answer.status_code == 201, answer.text
        assert answer.json()["spec"]["secrets"] == {"hub_token": "hub"}
        assert VALUE not in answer.text

    def test_another_project_cannot_name_it_nor_push_with_the_operators(
        self, server: Server
    ) -> None:
        put(server.client)
        make_project(server.database, "other")
        header = {"FineTune-Project": "other"}
        body = {**SPEC, "secrets": {"hub_token": "hub"}}
        answer = server.client.post("/v1/jobs", json=body, headers=header)
        assert [fault["code"] for fault in answer.json()["errors"]] == ["secret_not_found"]
        body = {**SPEC, "hub": {"model_id": "operators/model"}}
        answer = server.client.post("/v1/jobs", json=body, headers=header)
        assert [fault["code"] for fault in answer.json()["errors"]] == ["no_hub_token"]
