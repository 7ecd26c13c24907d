"""Servers of a test run: started once, whichever process asks first, and ended together."""

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support import distribution, shared_servers


class TestUrlOf:
    def test_starts_a_server_once_and_its_end_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_TEST_SERVERS", str(tmp_path))
        started = []

        def start(folder: Path) -> tuple[str, int]:
            process = subprocess.Popen(["sleep", "600"], start_new_session=True)
            started.append(process.pid)
            return f"http://{folder.name}", shared_servers.leave(process)

        assert [shared_servers.url_of("one", start) for _ in range(2)] == ["http://one"] * 2
        assert shared_servers.url_of("two", start) == "http://two"
        assert len(started) == 2
        shared_servers._end_all(tmp_path)
        assert not any(psutil.pid_exists(pid) for pid in started)
        assert not tmp_path.exists()


class TestUnitOf:
    def test_a_file_and_a_folder_whose_tests_share_a_service(self) -> None:
        assert distribution.unit_of("tests/api/test_jobs.py::TestList::test_a") == (
            "tests/api/test_jobs.py"
        )
        assert distribution.unit_of("tests/e2e/test_main_job.py::test_a[x]") == "tests/e2e/"
