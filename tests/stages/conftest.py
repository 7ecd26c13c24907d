"""Stages as the supervisor starts them: a child process with an event pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contract.events import STAGE_EVENT, Failed, Finished, Notice, StageEvent
from service.contract.failures import Failure
from service.contract.stages import EVENT_FD_VARIABLE


@dataclass
class Ended:
    """All that a stage said, and how it ended."""

    status: int
    events: list[StageEvent]
    log: str

    @property
    def failure(self) -> Failure:
        assert isinstance(self.events[-1], Failed), self.log
        return self.events[-1].failure

    @property
    def result(self) -> dict[str, Any]:
        assert isinstance(self.events[-1], Finished), self.log
        return self.events[-1].result

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]


class Running:
    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        reader, writer = os.pipe()
        self.events = os.fdopen(reader, "rb")
        self.log = log
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FINETUNE_"))}
        variables |= {"OMP_NUM_THREADS": "1", EVENT_FD_VARIABLE: str(writer), **environment}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=output,
                pass_fds=(writer,),
                env=variables,
            )
        os.close(writer)

    def wait(self) -> Ended:
        lines = self.events.readlines()
        self.events.close()
        status = self.process.wait()
        whole = [line for line in lines if line.endswith(b"\n")]
        return Ended(
            status, [STAGE_EVENT.validate_json(line) for line in whole], self.log.read_text()
        )


def run_prepare(
    folder: Path,
    spec: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
    **request: Any,
) -> Running:
    """`python -m worker.stages.prepare` on a request of its own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "job_id": "job-1",
        "stage": "prepare",
        "epoch": 1,
        "attempt": 1,
        "spec": spec,
        "workspace": str(folder),
        "attempt_dir": str(folder),
        "cache_dir": str(cache_dir or folder / "cache"),
    }
    (folder / "request.json").write_text(json.dumps(body | request, default=str))
    command = ["-m", "worker.stages.prepare", str(folder / "request.json")]
    offline = {"HF_HUB_OFFLINE": "1"} if environment is None else environment
    return Running(command, folder / "log", offline)
