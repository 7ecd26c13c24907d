"""Real bombs under the real supervisor, with small limits: the stage ends, the machine does not."""

import sys

import psutil
import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.supervision.limits.bombs import failure_of
from tests.supervision.support import run
from tests.support.factories import make_job
from tests.support.store.databases import on_sqlite

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
    pytest.mark.long,
]

MIB = 1024**2


@on_sqlite
class TestBombs:
    @pytest.mark.parametrize("bomb", ["memory", "memory_of_children", "memory_files"])
    def test_memory(self, database: Database, settings: Settings, bomb: str) -> None:
        limit = 400 * MIB
        free = psutil.virtual_memory().available
        failure = failure_of(database, settings, bomb, stage_memory_bytes=limit)
        assert failure["code"] == "out_of_memory"
        assert "400 MiB that FINETUNE_STAGE_MEMORY_BYTES allows" in failure["message"]
        assert failure["details"]["limit_bytes"] == limit
        used = failure["details"]["used_bytes"]
        assert limit < used < limit + 3 * 1024 * MIB  # what it can take until the next look
        assert sum(failure["details"]["processes"].values()) == used
        assert "raise FINETUNE_STAGE_MEMORY_BYTES" in failure["action"]
        assert free - psutil.virtual_memory().available < 2 * 1024 * MIB

    @pytest.mark.parametrize("bomb", ["shared_memory", "cached_files"])
    def test_no_bomb(self, database: Database, settings: Settings, bomb: str) -> None:
        job_id = make_job(database, metadata={"stub.prepare": f"bomb:{bomb}"})
        limited = settings.model_copy(update={"stage_memory_bytes": 400 * MIB})
        assert run(database, limited, job_id) is JobState.QUEUED

    @pytest.mark.parametrize(
        "bomb", [pytest.param("processes", marks=pytest.mark.heavy), "processes_of_own_sessions"]
    )
    def test_processes(self, database: Database, settings: Settings, bomb: str) -> None:
        # A bomb may take the processor from the heartbeat for a moment.
        failure = failure_of(database, settings, bomb, stage_processes=100, kill_seconds=30)
        assert failure["code"] == "process_limit"
        assert "FINETUNE_STAGE_PROCESSES allows 100" in failure["message"]
        assert failure["details"]["processes"] > 100

    @pytest.mark.parametrize("bomb", ["disk", "temporary_files"])
    def test_disk(self, database: Database, settings: Settings, bomb: str) -> None:
        limit = 100 * MIB
        failure = failure_of(database, settings, bomb, stage_disk_bytes=limit)
        assert failure["code"] == "disk_limit"
        assert "FINETUNE_STAGE_DISK_BYTES allows 100 MiB" in failure["message"]
        assert limit < failure["details"]["used_bytes"] < 30 * limit

    def test_one_file(self, database: Database, settings: Settings) -> None:
        limits = {"stage_file_bytes": 40 * MIB, "stage_disk_bytes": 1024 * MIB}
        failure = failure_of(database, settings, "file", **limits)
        assert failure["code"] == "disk_limit"
        assert "FINETUNE_STAGE_FILE_BYTES" in failure["message"]
