"""`finetune workers`: what the API knows of live workers, for a person."""

from typing import Any

import pytest

from service.cli.terminal import layout
from service.store.database import Database
from service.store.scheduling import registration
from service.store.scheduling.registration import WorkerInfo
from tests.cli.conftest import Cli

GPU = {"type": "cuda", "name": "NVIDIA H100", "memory_bytes": 80 * 1024**3, "mig": False}
CPU = {"type": "cpu", "name": "AMD EPYC", "cores": 2}


def register(store: Database, devices: list[dict[str, Any]], doctor: Any = None) -> None:
    host = "a-host-with-a-long-name"
    info = WorkerInfo(
        id=f"worker-7@{host}",
        hostname=host,
        pid=7,
        queues=["cpu", "gpu"],
        devices=devices,
        version="0.1.0",
        doctor=doctor,
    )
    with store.write() as session:
        registration.register(session, info)


class TestWorkers:
    def test_none(self, cli: Cli, api: str) -> None:
        outcome = cli("workers")
        assert (outcome.status, outcome.out) == (0, "")
        assert "No worker is alive. Start one with `finetune up`" in outcome.err

    def test_each_in_80_columns(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finding = {"name": "driver", "status": "warning", "summary": "old", "reason": "x" * 30}
        doctor = {"status": "warning", "checked_at": "2026-01-01T00:00:00Z", "findings": [finding]}
        register(store, devices=[GPU] * 4, doctor=doctor)
        monkeypatch.setattr(layout, "_WIDEST", 80)
        lines = cli("workers").out.splitlines()
        assert lines[0] == "worker-7@a-host-with-a-long-name"
        assert lines[1:4] == [
            "  host     a-host-with-a-long-name, process 7",
            "  devices  4 x NVIDIA H100 80 GiB",
            "  queues   cpu, gpu",
        ]
        assert lines[4] == "  jobs     none"
        assert lines[5].startswith("  seen     0 s ago, started ")
        assert lines[6] == f"  doctor   warning; driver: {'x' * 30}"
        assert max(map(len, lines)) <= 80

    def test_json_is_the_answer_of_the_api(self, cli: Cli, api: str, store: Database) -> None:
        register(store, devices=[CPU])
        (worker,) = cli("workers", "--json").json()["data"]
        assert (worker["id"], worker["devices"]) == ("worker-7@a-host-with-a-long-name", [CPU])
