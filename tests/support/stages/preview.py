"""The stage of a preview without torch; `metadata: {stub.preview: …}` of the spec directs it.

finish (default), fail:<code>, kill, hang (deaf to SIGTERM), form, large, look:<path> (whether it is
there), token (the Hub's).
`stub.attempts`: misbehave only in that many first attempts.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.contract.failures import FailureCode, StageError
from service.contract.interactive.previews import MOST_BYTES, PreviewResult
from service.contract.stage.stages import StageRequest
from service.system import private_file
from worker.stages.base import Channel, run_stage

RESULT: dict[str, Any] = {"rows_limit": 7, "max_length": 128}


class _Form(BaseModel):
    rows_limit: str = "many"


def main(request: StageRequest, _channel: Channel) -> BaseModel:
    assert request.preview is not None
    behaviour = request.spec.metadata.get("stub.preview", "finish")
    private_file.write(request.attempt_dir / "made", "by a stage")
    if request.attempt > int(request.spec.metadata.get("stub.attempts", "1000")):
        behaviour = "finish"
    kind, _, argument = behaviour.partition(":")
    if kind == "fail":
        raise StageError(FailureCode(argument), "The stub was asked to fail")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if kind == "form":
        return _Form()
    notices = ["é" * (MOST_BYTES // 2)] if kind == "large" else []
    if kind == "look":
        notices = ["there" if Path(argument).exists() else "not there"]
    if kind == "token":
        notices = [os.environ.get("HF_TOKEN", "none")]
    given = {"rows_limit": request.preview.rows, "notices": notices}
    return PreviewResult.model_validate(RESULT | given)


def command(request_file: Path) -> list[str]:
    return [sys.executable, "-P", __file__, str(request_file)]


if __name__ == "__main__":
    run_stage(main)
