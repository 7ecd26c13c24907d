"""What docker-compose.yml and its override promise; `make containers` runs them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def services_of(name: str) -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())["services"]
    return described


def filled_in(value: str, variables: dict[str, str]) -> str:
    """As compose does it: `${NAME:-default}`."""

    def value_of(match: re.Match[str]) -> str:
        return variables.get(match[1]) or match[2]

    return re.sub(r"\$\{(\w+):-([^${}]*)\}", value_of, value)


MAIN = services_of("docker-compose.yml")
GPU = services_of("docker-compose.gpu.yml")
OURS = ("api", "reconciler", "worker", "setup")


class TestMain:
    def test_nothing_is_published_beyond_the_loopback(self) -> None:
        ports = [port for service in MAIN.values() for port in service.get("ports", [])]
        assert len(ports) == 1
        assert all(p.startswith(("127.0.0.1:", "${FINETUNE_BIND:-127.0.0.1}:")) for p in ports)

    @pytest.mark.parametrize("name", OURS)
    def test_every_variable_is_a_setting(self, name: str) -> None:
        known = {f"FINETUNE_{field.upper()}" for field in Settings.model_fields}
        assert set(MAIN[name]["environment"]) <= known

    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ({}, "http://127.0.0.1:8000"),
            ({"FINETUNE_PORT": "9000"}, "http://127.0.0.1:9000"),
            (
                {"FINETUNE_PORT": "9000", "FINETUNE_PUBLIC_URL": "https://ft.example"},
                "https://ft.example",
            ),
        ],
    )
    @pytest.mark.parametrize("described", [MAIN["api"], MAIN["worker"], GPU["worker-cpu"]])
    def test_links_lead_to_the_published_port(
        self,
        described: dict[str, Any],
        given: dict[str, str],
        url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert described["environment"]["FINETUNE_PUBLIC_URL"] is None  # passed on if it is set
        monkeypatch.delenv("FINETUNE_PUBLIC_URL", raising=False)
        port = filled_in(described["environment"]["FINETUNE_PUBLISHED_PORT"], given)
        for name, value in ({"FINETUNE_PUBLISHED_PORT": port} | given).items():
            monkeypatch.setenv(name, value)
        assert Settings(_env_file=None).public_url == url

    @pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
    def test_no_default_is_empty_or_holds_another_variable(self, name: str) -> None:
        """podman-compose 1.0 does not fill it in."""
        assert re.findall(r"\$\{[^}]*(?:\$\{|:-\})", (ROOT / name).read_text()) == []

    @pytest.mark.parametrize("name", ["api", "reconciler", "worker"])
    def test_nothing_of_ours_starts_before_the_schema(self, name: str) -> None:
        assert MAIN[name]["depends_on"]["setup"] == {"condition": "service_completed_successfully"}

    def test_only_workers_are_given_the_token_of_the_hub(self) -> None:
        holders = [n for n in MAIN if "FINETUNE_HUB_TOKEN" in MAIN[n].get("environment", {})]
        assert holders == ["worker"]

    def test_a_worker_can_be_given_time(self) -> None:
        """And the engine waits as long as .env.example's values need."""
        variables = dict(
            line.removeprefix("#").split("=")
            for line in (ROOT / ".env.example").read_text().splitlines()
            if line.startswith(("#FINETUNE_", "#WORKER_"))
        )
        graces = ("FINETUNE_DRAIN_GRACE_SECONDS", "FINETUNE_STOP_GRACE_SECONDS")
        assert {*graces, "FINETUNE_HUNG_SECONDS"} <= MAIN["worker"]["environment"].keys()
        wait = f"${{WORKER_STOP_GRACE:-{variables['WORKER_STOP_GRACE']}}}"
        assert MAIN["worker"]["stop_grace_period"] == wait
        given = sum(float(variables[name]) for name in graces)
        usual = Settings(_env_file=None)
        assert given == usual.drain_grace_seconds + usual.stop_grace_seconds
        assert given < float(variables["WORKER_STOP_GRACE"].removesuffix("s"))

    def test_api_and_worker_share_their_files(self) -> None:
        assert MAIN["api"]["volumes"] == MAIN["worker"]["volumes"]


@pytest.mark.parametrize(
    ("name", "service"), [*MAIN.items(), ("worker-cpu", GPU["worker-cpu"])], ids=lambda each: each
)
class TestHardening:
    """`make containers` tries what these settings forbid (tests/containers/attacks.py)."""

    def test_no_container_has_more_than_it_needs(self, name: str, service: dict[str, Any]) -> None:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges"]
        assert service["mem_limit"].endswith(("g}", "m}"))
        assert 0 < service["pids_limit"] <= 4096
        assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & service.keys()

    def test_images_of_others_do_not_start_as_root(
        self, name: str, service: dict[str, Any]
    ) -> None:
        assert ("user" in service) == (name in ("postgres", "redis"))
        assert service.get("user", "999:999") == "999:999"

    def test_no_container_is_on_a_network_of_all(self, name: str, service: dict[str, Any]) -> None:
        assert "default" not in service["networks"]
        assert "network_mode" not in service
        assert (service.get("ports") is not None) == (name == "api")


class TestNetworks:
    def test_connect_only_those_that_talk(self) -> None:
        networks = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
        assert [name for name, options in networks.items() if not options] == ["outside"]
        found = {
            network: {name for name in MAIN if network in MAIN[name].get("networks", ())}
            for network in networks
        }
        assert found == {
            "outside": {"api", "reconciler", "worker"},
            "broker": {"redis", "api", "reconciler", "worker"},
            "database": {"postgres", "setup", "api", "reconciler", "worker"},
            "mlflow": {"mlflow", "api", "worker"},
            "mlflow-database": {"postgres", "mlflow"},
            "nobody": {"secrets"},
        }

    def test_each_container_mounts_only_its_own_secrets(self) -> None:
        found = {
            name: {
                volume.partition(":")[0]
                for volume in MAIN[name].get("volumes", ())
                if volume.partition(":")[0].endswith("secrets")
            }
            for name in MAIN
        }
        ours = {"secrets"}
        assert found == {
            "secrets": {"secrets", "mlflow-secrets", "postgres-secrets"},
            "postgres": {"postgres-secrets"},
            "redis": set(),
            "mlflow": {"mlflow-secrets"},
            **dict.fromkeys(("setup", "api", "reconciler", "worker"), ours),
        }


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
