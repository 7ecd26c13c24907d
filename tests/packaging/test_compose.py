"""What docker-compose.yml and its override promise; `make containers` runs them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def services_of(name: str) -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())["services"]
    return described


MAIN = services_of("docker-compose.yml")
GPU = services_of("docker-compose.gpu.yml")
OURS = ("api", "reconciler", "worker", "setup")


class TestMain:
    def test_nothing_is_published_beyond_the_loopback(self) -> None:
        ports = [port for service in MAIN.values() for port in service.get("ports", [])]
        assert len(ports) == 2
        assert all(p.startswith(("127.0.0.1:", "${FINETUNE_BIND:-127.0.0.1}:")) for p in ports)

    @pytest.mark.parametrize("name", OURS)
    def test_every_variable_is_a_setting(self, name: str) -> None:
        known = {f"FINETUNE_{field.upper()}" for field in Settings.model_fields}
        assert set(MAIN[name]["environment"]) <= known

    @pytest.mark.parametrize("name", ["api", "reconciler", "worker"])
    def test_nothing_of_ours_starts_before_the_schema(self, name: str) -> None:
        assert MAIN[name]["depends_on"]["setup"] == {"condition": "service_completed_successfully"}

    def test_only_workers_are_given_the_token_of_the_hub(self) -> None:
        holders = [n for n in MAIN if "FINETUNE_HUB_TOKEN" in MAIN[n].get("environment", {})]
        assert holders == ["worker"]

    def test_a_worker_can_be_given_time(self) -> None:
        """And the engine waits as long as .env.example's values need."""
        told = dict(
            line.removeprefix("#").split("=")
            for line in (ROOT / ".env.example").read_text().splitlines()
            if line.startswith(("#FINETUNE_", "#WORKER_"))
        )
        graces = ("FINETUNE_DRAIN_GRACE_SECONDS", "FINETUNE_STOP_GRACE_SECONDS")
        assert {*graces, "FINETUNE_HUNG_SECONDS"} <= MAIN["worker"]["environment"].keys()
        wait = f"${{WORKER_STOP_GRACE:-{told['WORKER_STOP_GRACE']}}}"
        assert MAIN["worker"]["stop_grace_period"] == wait
        given = sum(float(told[name]) for name in graces)
        usual = Settings(_env_file=None)
        assert given == usual.drain_grace_seconds + usual.stop_grace_seconds
        assert given < float(told["WORKER_STOP_GRACE"].removesuffix("s"))

    def test_api_and_worker_share_their_files(self) -> None:
        assert MAIN["api"]["volumes"] == MAIN["worker"]["volumes"]


class TestGpu:
    def test_the_cpu_worker_is_the_main_one_but_for_image_and_queue(self) -> None:
        other = {"build", "image", "command"}
        main = {key: value for key, value in MAIN["worker"].items() if key not in other}
        assert {key: value for key, value in GPU["worker-cpu"].items() if key not in other} == main
        assert GPU["worker-cpu"]["image"] == GPU["worker"]["image"]

    def test_the_worker_has_all_gpus_and_a_process_for_each(self) -> None:
        [devices] = GPU["worker"]["deploy"]["resources"]["reservations"]["devices"]
        assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        assert "--concurrency" not in GPU["worker"]["command"]

    def test_each_queue_has_one_worker(self) -> None:
        queues = [service["command"][4] for service in GPU.values()]
        assert queues == ["gpu", "cpu"]


class TestImage:
    def test_the_workers_image_has_what_code_is_compiled_with(self) -> None:
        """torch.compile, torchao's optimizers and Triton kernels build code where they run."""
        lines = (ROOT / "Dockerfile").read_text().split("FROM dependencies AS worker")[1]
        worker = lines.split("FROM dependencies AS service")[0]
        installed = {word for line in worker.splitlines() for word in line.replace(";", "").split()}
        assert {"gcc", "g++", "libc6-dev", "python3-dev"} <= installed
        assert "Python.h" in worker
