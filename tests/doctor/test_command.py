"""`finetune doctor` as a user runs it, on the machine of the tests."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.servers.services import wait_until
from worker.doctor.__main__ import _is_selected, _parse, main
from worker.doctor.isolated import function_of
from worker.doctor.registry import CHECKS

# The run with all checks trains: a minute on two cores, more on busy ones.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
FINETUNE = str(Path(sys.executable).parent / "finetune")
TOKEN = "hf_never-show-this-token"


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "FINETUNE_HOME": str(tmp_path / "home"),
        "FINETUNE_HUB_TOKEN": TOKEN,
        "FINETUNE_DATABASE_URL": "postgresql://me:never-show-this@localhost/db",
        "CUDA_VISIBLE_DEVICES": "",
    }


def doctor(tmp_path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FINETUNE, "doctor", *options],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def report_of(folder: Path) -> Any:
    return json.loads((folder / "doctor-report.json").read_text())


@dataclass(frozen=True)
class Ran:
    """What `finetune doctor` made in a folder."""

    folder: Path
    done: "subprocess.CompletedProcess[str]"
    checks: list[str]


# One or two of each file of worker/doctor/checks, without those that train: test_tasks.py has a
# server that imports torch once for all of them.
SOME: Final = ["torch", "devices", "products", "compiler", "memory", "allocator", "home"]
ALL: Final = [check.name for check in CHECKS if not check.thorough]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SOME, [f"--only={name}" for name in SOME]), id="some"),
        pytest.param((ALL, []), id="all", marks=pytest.mark.heavy),
    ],
)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, processes: None
) -> Ran:
    """`finetune doctor` in a folder, once for all tests that look at what it made."""
    checks, options = request.param
    folder = tmp_path_factory.mktemp("doctor")
    return Ran(folder, doctor(folder, "--report", "found", *options), checks)


class TestReport:
    def test_no_check_of_this_machine_fails_and_each_has_its_line(self, ran: Ran) -> None:
        """Those of `--thorough` are in test_tasks.py."""
        done, wanted = ran.done, ran.checks
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert wanted == [check["name"] for check in report_of(ran.folder / "found")["checks"]]
        table = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isalpha()]
        assert [name for name in table if name in wanted] == wanted
        assert f"Report: {Path('found') / 'doctor-report.json'}" in done.stdout

    def test_what_a_cpu_has_is_ok_and_the_rest_was_not_run(self, ran: Ran) -> None:
        report = report_of(ran.folder / "found")
        found = {check["name"]: check for check in report["checks"]}
        assert report["status"] in ("ok", "warning")
        ok = {"torch", "products", "compiler", "compile", "allocator", "home", "packing"}
        for name in ok.intersection(ran.checks):
            assert found[name]["status"] == "ok", found[name]
        assert found["devices"]["status"] == "not_run"
        assert found["devices"]["reason"] == "this machine has no NVIDIA GPU"
        errors = found["products"]["data"]["relative_errors"]
        assert 0 < errors["cpu fp32"] < 1e-5 < errors["cpu bf16"] < 1e-2

    def test_it_leaves_two_files_that_hold_versions_and_no_secret(self, ran: Ran) -> None:
        folder, done = ran.folder, ran.done
        markdown = (folder / "found" / "doctor-report.md").read_text()
        for text in (done.stdout, markdown, (folder / "found/doctor-report.json").read_text()):
            assert "never-show-this" not in text
            assert str(folder) not in text
        report = report_of(folder / "found")
        assert report["environment"]["FINETUNE_HUB_TOKEN"] == "***"
        assert report["machine"]["packages"]["torch"].startswith("2.")
        assert "\nproducts                ok       relative errors" in markdown
        assert list((folder / "home" / "doctor").iterdir()) == []


class TestEndings:
    @pytest.mark.usefixtures("processes")
    def test_a_failed_check_prints_a_remedy_and_sets_the_exit_status(self, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("a file where the folder should be")
        done = doctor(tmp_path, "--only", "home")
        assert done.returncode == 1
        assert "home                    FAILED   FINETUNE_HOME is not writable" in done.stdout
        assert "to do: Make this user its owner" in done.stdout
        assert "to do: Make this user its owner" in (tmp_path / "doctor-report.md").read_text()

    def test_an_unknown_check_is_a_usage_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["doctor", "--only", "heart"])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "invalid choice: 'heart'" in capsys.readouterr().err

    @pytest.mark.usefixtures("processes")
    def test_an_interrupt_still_leaves_a_report_and_no_process(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [FINETUNE, "doctor", "--only", "open-files", "--json", "--report", "found"],
            env=environment(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        own = psutil.Process(process.pid)
        wait_until(own.children, 60, "the process that asks torch")
        children = own.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        report = report_of(tmp_path / "found")
        assert json.loads(output) == report
        assert report["interrupted"]
        assert [check["status"] for check in report["checks"]] == ["not_run"]
        assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--quick"], {check.name for check in CHECKS if check.quick}),
        ([], {check.name for check in CHECKS if not check.thorough}),
        (["--thorough"], {check.name for check in CHECKS}),
        (["--quick", "--only", "packing", "--only", "home"], {"packing", "home"}),
    ],
)
def test_which_checks_are_made(
    options: list[str], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["doctor", *options])
    parsed = _parse()
    assert {check.name for check in CHECKS if _is_selected(check, parsed)} == names


def test_the_table_of_checks() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(len(name) < 24 for name in names), "names fit their column"
    assert all(callable(function_of(f"worker.doctor.checks.{check.run}")) for check in CHECKS)
    assert not any(check.trains for check in CHECKS if check.quick), "a worker's start trains"
