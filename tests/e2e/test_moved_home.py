"""A home is stopped, moved and copied: its jobs continue, and nothing comes from where it was."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.cli.servers.up_process import Up
from tests.e2e.conftest import TOKEN
from tests.support.hub import HubDouble
from tests.support.servers.services import wait_until

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long, pytest.mark.heavy]

ENDED: Final = ("succeeded", "failed", "cancelled")
MODEL: Final = "org/tiny-bert"
SHORT: Final = 12
LONG: Final = 60


class Service:
    """`finetune up` in a home, and what its user asks of it."""

    def __init__(self, home: Path, hub: HubDouble) -> None:
        self._up = Up(
            home,
            env={
                "FINETUNE_HUB_ENDPOINT": hub.endpoint,
                "FINETUNE_HUB_TOKEN": TOKEN,
                "FINETUNE_DRAIN_GRACE_SECONDS": "30",
                "HF_HUB_DISABLE_XET": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        address = self._up.wait_ready()
        headers = self._up.authorization()
        self.http = httpx.Client(base_url=address.url, headers=headers, timeout=60, verify=False)

    def stop(self) -> None:
        self.http.close()
        self._up.process.terminate()
        self._up.wait_end()

    def get(self, path: str) -> dict[str, Any]:
        page: dict[str, Any] = self.http.get(path).raise_for_status().json()
        return page

    def post(self, path: str, body: object) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def submit(self, body: dict[str, Any]) -> str:
        return str(self.post("/v1/jobs", body)["id"])

    def act(self, job_id: str, action: str, **body: object) -> dict[str, Any]:
        return self.post(f"/v1/jobs/{job_id}/{action}", body)

    def wait(self, path: str, state: str) -> dict[str, Any]:
        page: dict[str, Any] = {}

        def has_it() -> bool:
            nonlocal page
            page = self.get(path)
            assert page["state"] not in ENDED or page["state"] == state, page
            return bool(page["state"] == state)

        wait_until(has_it, 300, f"{path} to be {state}")
        return page

    def succeeded(self, job_id: str) -> dict[str, Any]:
        return self.wait(f"/v1/jobs/{job_id}", "succeeded")

    def wait_for_step(self, job_id: str, step: int) -> None:
        def is_there() -> bool:
            page = self.get(f"/v1/jobs/{job_id}")
            assert page["state"] not in ENDED, page
            return page["stage"] == "train" and bool(
                (page["progress"] or {}).get("step", 0) >= step
            )

        wait_until(is_there, 300, f"step {step}")


@contextmanager
def service(home: Path, hub: HubDouble) -> Iterator[Service]:
    running = Service(home, hub)
    try:
        yield running
    finally:
        running.stop()


def body(file_id: str, steps: int, **sections: Any) -> dict[str, Any]:
    training = {
        "max_steps": steps,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 5,
        "save_total_limit": 2,
        "use_cpu": True,
    }
    return {
        "task": {"type": "question-answering", "version_2_with_negative": True},
        "model": {"name_or_path": MODEL},
        "dataset": {"source": "upload", "train": file_id},
        "training": training,
        **sections,
    }


class Filled:
    """Ids of jobs in each state, and the weights of undisturbed ones."""

    def __init__(self, service: Service, squad: Path) -> None:
        with squad.open("rb") as stream:
            answer = service.http.post(
                "/v1/files", files={"file": (squad.name, stream)}, data={"purpose": "fine-tune"}
            )
        file_id = answer.raise_for_status().json()["id"]
        self.short, self.long = (body(file_id, steps) for steps in (SHORT, LONG))
        self.finished = service.submit(self.short)
        self.published = service.submit(self.short | {"hub": {"model_id": "org/published"}})
        undisturbed = service.submit(self.long)
        weights = {
            steps: service.succeeded(job_id)["result"]["weights_sha256"]
            for steps, job_id in ((SHORT, self.finished), (LONG, undisturbed))
        }
        service.succeeded(self.published)
        self.paused = service.submit(self.long)
        service.wait_for_step(self.paused, 20)
        service.act(self.paused, "pause")
        service.wait(f"/v1/jobs/{self.paused}", "paused")
        self.search = service.post("/v1/searches", _search(self.short))["id"]
        self.begun = self.submit_begun(service)
        self.running = service.submit(self.long | {"priority": 1})
        service.wait_for_step(self.running, 10)
        self.weights = {
            self.paused: weights[LONG],
            self.running: weights[LONG],
            self.begun: weights[SHORT],
        }

    def submit_begun(self, service: Service) -> str:
        """A job that is paused as soon as it is prepared."""
        job_id = service.submit(self.short)

        def is_paused() -> bool:
            page = service.get(f"/v1/jobs/{job_id}")
            if page["stage"] == "train" and page["state"] in ("queued", "running"):
                service.act(job_id, "pause")
            return (page["stage"], page["state"]) == ("train", "paused")

        wait_until(is_paused, 120, "the end of `prepare`")
        return job_id


def _search(job: dict[str, Any]) -> dict[str, Any]:
    dataset = job["dataset"] | {"validation": job["dataset"]["train"]}
    return {
        "job": job | {"dataset": dataset},
        "space": {"training.learning_rate": [1e-3, 2e-3, 3e-3, 4e-3]},
        "sampler": {"name": "grid"},
        "objective": {"metric": "f1"},
        "max_trials": 4,
        "max_parallel": 1,
        "template_trial": False,
    }


def continued(service: Service, filled: Filled) -> set[str]:
    """Let everything end, with the weights of undisturbed jobs. Codes of failures meanwhile."""
    failures = set()
    for job_id in (filled.paused, filled.begun):
        service.act(job_id, "resume")
    for job_id, weights in filled.weights.items():
        page = service.succeeded(job_id)
        assert page["result"]["weights_sha256"] == weights
        events = service.get(f"/v1/jobs/{job_id}/events?limit=1000")["data"]
        failed = [event["data"] for event in events if event["type"] == "attempt_failed"]
        failures |= {data["failure"]["code"] for data in failed}
    search = service.wait(f"/v1/searches/{filled.search}", "succeeded")
    trials = service.get(f"/v1/searches/{filled.search}/trials")["data"]
    assert [trial["state"] for trial in trials] == ["complete"] * 4, search
    service.act(filled.finished, "publish", model_id="org/later")
    service.succeeded(filled.finished)
    model = service.http.get(f"/v1/jobs/{filled.finished}/model.tar")
    assert model.raise_for_status().content
    return failures


def artifacts(service: Service, job_id: str) -> bytes:
    """The configuration of the job's model, from MLflow as a browser gets it."""
    _, _, route = service.get(f"/v1/jobs/{job_id}")["mlflow_url"].partition("?")[0].partition("#/")
    run_id = route.split("/")[3]
    query = {"run_id": run_id, "path": "model/config.json"}
    answer = service.http.get("/mlflow/get-artifact", params=query)
    return answer.raise_for_status().content


def replaced(home: Path) -> None:
    """Another home with the same names and other bytes."""
    for path in home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"other bytes")


@pytest.mark.usefixtures("processes")
def test_a_moved_home_and_a_copy(
    tmp_path: Path, hub: HubDouble, tiny_model: Path, squad: dict[str, Path]
) -> None:
    hub.add_repo(MODEL, tiny_model)
    original, moved, copy = (tmp_path / name / "home" for name in ("one", "other/deeper", "copy"))
    with service(original, hub) as first:
        filled = Filled(first, squad["train"])
        config = artifacts(first, filled.finished)
    shutil.copytree(original, copy, symlinks=True)
    moved.parent.mkdir(parents=True)
    original.rename(moved)
    shutil.copytree(copy, original, symlinks=True)
    replaced(original)
    shutil.rmtree(copy / "cache")  # as in a backup that leaves out what can be made again
    # What the first job makes again is there for the others.
    for home, failures in ((moved, set()), (copy, {"files_missing"})):
        with service(home, hub) as running:
            assert artifacts(running, filled.finished) == config
            assert continued(running, filled) == failures
