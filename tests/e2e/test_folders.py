"""The installed service, started in folders of other people: it imports nothing from there, and a
job has the weights that it has elsewhere."""

import hashlib
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.cli.servers.up_process import Up
from tests.support.servers.services import wait_until
from tests.support.wheels import service_wheel, strange_modules

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@dataclass
class Service:
    """`finetune up` of the environment `environment`, in the folder `cwd`."""

    environment: Path
    cwd: Path
    home: Path
    model: Path

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        up = Up(
            self.home,
            *("up", "--port", "0", "--mlflow-port", "0"),
            command=[str(self.environment / "bin" / "finetune")],
            cwd=self.cwd,
            env={
                "PYTHONPATH": "",
                "FINETUNE_MODEL_ROOTS": str(self.model.parent),
                "OMP_NUM_THREADS": "1",
                # The environment has the packages of the tests, which lie elsewhere.
                "FINETUNE_SANDBOX_READ": sysconfig.get_path("purelib"),
            },
        )
        try:
            url = up.wait_ready().url
            with httpx.Client(
                base_url=url, headers=up.authorization(), timeout=30, verify=False
            ) as http:
                yield http
        finally:
            up.process.terminate()
            up.wait_end()

    def trained(self) -> str:
        """Of a job of a few steps the checksum of its weights."""
        with self.running() as http:
            rows = "".join(f'{{"text": "row {n}", "label": "{n % 2}"}}\n' for n in range(32))
            files = {"file": ("rows.jsonl", rows)}
            uploaded = http.post("/v1/files", files=files, data={"purpose": "fine-tune"})
            file_id = uploaded.raise_for_status().json()["id"]
            task = {"task": "text-classification"}
            checked = http.post(f"/v1/files/{file_id}/check", params=task).raise_for_status()
            assert checked.json()["complete"], checked.text
            body = {
                "task": {"type": "text-classification"},
                "model": {"name_or_path": str(self.model)},
                "dataset": {"source": "upload", "train": file_id},
                "training": {"max_steps": 4, "save_steps": 2, "use_cpu": True},
            }
            preview = http.post("/v1/jobs/preview", json=body).raise_for_status().json()["id"]
            job = http.post("/v1/jobs", json=body).raise_for_status().json()["id"]
            _wait(http, f"/v1/previews/{preview}")
            _wait(http, f"/v1/jobs/{job}")
            place = f"/v1/jobs/{job}/checkpoints/4/files/model.safetensors"
            return hashlib.sha256(http.get(place).raise_for_status().content).hexdigest()


def _wait(http: httpx.Client, path: str) -> None:
    page: dict[str, object] = {}

    def ended() -> bool:
        nonlocal page
        page = http.get(path).raise_for_status().json()
        return page.get("state") in ("succeeded", "failed", "cancelled")

    wait_until(ended, 300, path)
    assert page.get("state") == "succeeded", page


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    service_wheel.install(folder / "environment", folder)
    return folder / "environment"


@pytest.fixture(scope="module")
def undisturbed(
    environment: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Service(environment, folder, folder / "home", tiny_model).trained()


class TestFolders:
    def test_a_folder_with_the_names_of_all_modules(
        self, environment: Path, undisturbed: str, tiny_model: Path, tmp_path: Path
    ) -> None:
        strange = tmp_path / "strange"
        strange_modules.write_all(strange)
        service = Service(environment, strange, tmp_path / "home", tiny_model)
        assert service.trained() == undisturbed
        assert strange_modules.imported(strange) == []

    def test_another_checkout_of_the_service(
        self, environment: Path, undisturbed: str, tiny_model: Path, tmp_path: Path
    ) -> None:
        """And the environment is reached through a link in it."""
        other = tmp_path / "checkout"
        service_wheel.copy(other)
        for name in service_wheel.PACKAGES:
            strange_modules.mark(other / name)
        linked = other / ".venv"
        linked.symlink_to(environment)
        service = Service(linked, other, tmp_path / "home", tiny_model)
        assert service.trained() == undisturbed
        assert strange_modules.imported(other) == []

    def test_a_distribution_that_owns_our_names(
        self, undisturbed: str, tiny_model: Path, tmp_path: Path
    ) -> None:
        packages = service_wheel.install(tmp_path / "environment", tmp_path)
        strange_modules.write_ours(packages)
        service = Service(tmp_path / "environment", tmp_path, tmp_path / "home", tiny_model)
        assert service.trained() == undisturbed
        assert strange_modules.imported(packages) == []
