"""The process of a push is watched like a stage, and what it reports is not believed."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.events import Notice
from service.contract.stage.stages import StageRequest
from service.settings import Settings
from tests.stages.support import REQUEST
from tests.supervision.support import children
from tests.support.servers import services
from tests.support.stages import hostile_push
from tests.support.store.job_rows import checkpoint_saved
from worker.processes import child
from worker.supervision.checkpoint_pushes import CheckpointPushes

pytestmark = pytest.mark.usefixtures("processes")

MIB = 1024**2


def push(settings: Settings, kind: str, **limits: int) -> Notice:
    """The user's message about a hostile push."""
    workspace = settings.workspace("job-1")
    attempt = workspace / "attempts" / "1"
    attempt.mkdir(parents=True)
    paths = {"workspace": workspace, "attempt_dir": attempt, "cache_dir": settings.cache_dir}
    given: Any = REQUEST["spec"]
    spec = {**given, "hub": {"model_id": "org/m", "strategy": "every_save"}}
    request = StageRequest.model_validate({**REQUEST, **paths, "spec": spec})

    def command(_file: Path) -> list[str]:
        return [sys.executable, "-P", hostile_push.__file__, kind]

    limited = settings.model_copy(update=limits)
    with CheckpointPushes(limited, request, lambda: True, command) as pushes:
        pushes.offer(checkpoint_saved(7))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for notice in pushes.poll():
                assert isinstance(notice, Notice)
                services.wait_until(lambda: children() == [], 5, "the end of all processes")
                return notice
            time.sleep(0.02)
    raise AssertionError((workspace / "job.log").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize(
    ("bomb", "limits", "code"),
    [
        ("memory", {"stage_memory_bytes": 400 * MIB}, "out_of_memory"),
        ("processes_of_own_sessions", {"stage_processes": 100}, "process_limit"),
        ("temporary_files", {"stage_disk_bytes": 100 * MIB}, "disk_limit"),
    ],
)
def test_it_has_the_limits_of_a_stage(
    settings: Settings, bomb: str, limits: dict[str, int], code: str
) -> None:
    notice = push(settings, bomb, **limits)
    assert notice.data == {"step": 7, "code": code}
    assert "could not be pushed to the Hub: The stage " in notice.message


def test_a_kill_while_the_kernel_ran_out_of_memory(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(settings.home / "hub"))
    counters = settings.home / "hub/xet/vmstat"  # where a push may write
    monkeypatch.setattr(child, "_VMSTAT", counters)
    notice = push(settings, f"oom:{counters}")
    assert notice.data == {"step": 7, "code": "out_of_memory"}


def test_a_result_of_another_form(settings: Settings) -> None:
    assert push(settings, "form").data == {"step": 7, "code": "stage_untrustworthy"}


def test_it_may_ask_more_than_once(settings: Settings) -> None:
    notice = push(settings, "asks twice")
    assert notice.message == "The model of step 7 is on the Hub: None"
