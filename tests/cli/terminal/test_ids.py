"""The first characters of an id in place of the id."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from service.cli.terminal import ids
from service.cli.terminal.exit_codes import UsageError
from service.store.database import Database
from tests.api.factories import add_job, spec
from tests.cli.conftest import Cli

A, B, C = ("job-18a3f2c41" + digit * 23 for digit in "0ab")
OTHER = "job-28" + "0" * 30


@pytest.fixture
def jobs(store: Database, api: str) -> None:
    for job_id, name in ((A, "one"), (B, "two"), (C, None), (OTHER, "other")):
        add_job(store, id=job_id, spec=spec(name=name))


def refuse(_path: str, _parameters: Mapping[str, Any]) -> dict[str, Any]:
    raise AssertionError("a request was made")


class TestFind:
    def test_a_whole_id_needs_no_request(self) -> None:
        assert ids.find(refuse, ids.JOB, A) == A
        assert ids.find(refuse, ids.JOB, A.removeprefix("job-").upper()) == A

    @pytest.mark.parametrize("text", ["", "job-", "my job", "job-18x", "file-18", A + "0", "1%"])
    def test_what_cannot_begin_an_id(self, text: str) -> None:
        with pytest.raises(UsageError, match="`finetune list` shows them"):
            ids.find(refuse, ids.JOB, text)

    def test_a_service_that_does_not_know_the_filter_cannot_mislead(self) -> None:
        page = {"data": [{"id": OTHER, "name": None}], "has_more": False}
        with pytest.raises(UsageError, match="no job has an id that begins with job-18a3"):
            ids.find(lambda *_: page, ids.JOB, "18a3")


@pytest.mark.usefixtures("jobs")
class TestCommands:
    @pytest.mark.parametrize("text", ["28", "job-280", OTHER])
    def test_the_beginning_of_one_id_is_enough(self, cli: Cli, text: str) -> None:
        assert cli("get", text, "--json").json()["id"] == OTHER

    def test_each_command_takes_it(self, cli: Cli, http: httpx.Client) -> None:
        assert cli("pause", "28").out == f"{OTHER} is paused\n"
        assert cli("resume", "28").out == f"{OTHER} is queued\n"
        assert cli("cancel", "28").out == f"{OTHER} is cancelled\n"
        assert cli("retry", "28").out == f"{OTHER} is queued\n"
        clone = cli("clone", "28").out.strip()
        assert http.get(f"/v1/jobs/{clone}").json()["cloned_from"] == OTHER
        cli("cancel", "28")
        assert cli("watch", "28").status == 1
        assert cli("events", clone[:25], "--json").json_lines()[0]["type"] == "submitted"
        for command in ("logs", "checkpoints"):
            assert cli(command, "28").status == 0
        assert cli("delete", "28").out == f"{OTHER} is deleted\n"

    @pytest.mark.parametrize("job_id", [OTHER, "job-28"])
    def test_the_name_of_its_model_does_as_well(self, cli: Cli, job_id: str) -> None:
        name = f"ft:model:default:other:{job_id}"
        assert cli("get", name, "--json").json()["id"] == OTHER
        assert cli("cancel", f" {name}").out == f"{OTHER} is cancelled\n"

    @pytest.mark.parametrize("command", ["get", "cancel", "delete"])
    def test_but_not_that_of_a_checkpoint(self, cli: Cli, http: httpx.Client, command: str) -> None:
        outcome = cli(command, f"ft:model:default:other:{OTHER}:ckpt-step-10")
        assert (outcome.status, outcome.out) == (2, "")
        assert f"is the name of a checkpoint, and a job is wanted here: give {OTHER}" in outcome.err
        assert http.get(f"/v1/jobs/{OTHER}").json()["state"] == "queued"

    def test_several_are_listed_and_nothing_is_done(self, cli: Cli, http: httpx.Client) -> None:
        outcome = cli("cancel", "18a3f")
        assert (outcome.status, outcome.out) == (2, "")
        assert outcome.err.splitlines() == [
            "finetune: the ids of several jobs begin with job-18a3f; give more characters:",
            f"  {C}",
            f"  {B}  two",
            f"  {A}  one",
        ]
        assert http.get(f"/v1/jobs/{A}").json()["state"] == "queued"


class TestOtherKinds:
    """Of a list without a filter of beginnings, the page that starts there is read."""

    FIRST, SECOND = ("search-18a3f2c41" + digit * 23 for digit in "0a")

    @staticmethod
    def listed(*found: str) -> ids.Get:
        def get(path: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
            assert path == "/v1/searches"
            older = sorted((each for each in found if each < parameters["after"]), reverse=True)
            data = [{"id": each, "name": None} for each in older[: parameters["limit"]]]
            return {"data": data, "has_more": len(older) > len(data)}

        return get

    def test_the_beginning_of_a_search(self) -> None:
        newer = [f"search-2{number:031x}" for number in range(20)]
        get = self.listed(self.FIRST, self.SECOND, *newer)
        assert ids.find(get, ids.SEARCH, "18a3f2c410") == self.FIRST
        assert ids.find(get, ids.SEARCH, self.SECOND[:20]) == self.SECOND
        with pytest.raises(UsageError, match="the ids of several searches begin with search-18a"):
            ids.find(get, ids.SEARCH, "18a")
        with pytest.raises(UsageError, match="no search has an id that begins with search-3"):
            ids.find(get, ids.SEARCH, "3")

    def test_a_search_where_a_job_is_wanted(self) -> None:
        with pytest.raises(UsageError, match=f"`finetune search trials {self.FIRST}` shows"):
            ids.find(refuse, ids.JOB, self.FIRST)

    def test_a_job_where_a_search_is_wanted(self) -> None:
        with pytest.raises(UsageError, match=f"{A} is a job, and a search is wanted here"):
            ids.find(refuse, ids.SEARCH, A)


class TestInSpec:
    def test_both_places_are_completed_and_the_rest_stays(self) -> None:
        given = {
            "model": {"job": "18a3", "checkpoint": "best"},
            "training": {"resume_from": {"job": "18b"}, "max_steps": 3},
            "name": "18a3",
        }
        assert ids.in_spec(lambda text: f"job-{text}…", given) == {
            "model": {"job": "job-18a3…", "checkpoint": "best"},
            "training": {"resume_from": {"job": "job-18b…"}, "max_steps": 3},
            "name": "18a3",
        }

    @pytest.mark.parametrize(
        "spec",
        [{}, {"model": "x"}, {"model": {"job": 3}}, {"training": {"resume_from": None}}],
    )
    def test_a_wrong_spec_is_for_the_service_to_refuse(self, spec: dict[str, Any]) -> None:
        assert ids.in_spec(str.upper, spec) == spec
