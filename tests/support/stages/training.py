"""A stage without torch, whose training saves on request; started by the real supervisor.

Training saves step N once `save-N` exists in the workspace, and ends once `finish` does.
"""

import itertools
import sys
import time
from pathlib import Path

from pydantic import BaseModel

from service.contract.stage.stages import StageRequest
from tests.support.stages import stage
from worker.publishing import hub_repository
from worker.stages.base import Channel, run_stage
from worker.storage import atomic_dir


def main(request: StageRequest, channel: Channel) -> BaseModel:
    stage.write_environment(request)
    settings = hub_repository.settings_dir(request.attempt_dir)
    settings.mkdir()
    (settings / "config.json").write_text("{}")
    (settings / "README.md").write_text("not pushed before the end")
    for step in itertools.count(1):
        if not _await_save(request.workspace, step):
            break
        _save(request, channel, step)
    # As with `load_best_model_at_end`: the finished model is that of none of these steps.
    return stage.result(request).model_copy(update={"model_step": 0})


def _await_save(workspace: Path, step: int) -> bool:
    while not (workspace / f"save-{step}").exists():
        if (workspace / "finish").exists():
            return False
        time.sleep(0.02)
    return True


def _save(request: StageRequest, channel: Channel, step: int) -> None:
    folder = request.attempt_dir / "checkpoints" / str(step)
    with atomic_dir.writing(folder) as partial:
        (partial / "model.safetensors").write_bytes(weights(step))
        (partial / "optimizer.pt").write_bytes(b"state %d" % step)
        if step == 1:
            (partial / "scaler.pt").write_bytes(b"only the first has one")
    stage.send_checkpoint(request, channel, step, folder)


def weights(step: int) -> bytes:
    return b"weights of step %d" % step


def command(_request: StageRequest, request_file: Path) -> list[str]:
    """For the supervisor, instead of the real stages."""
    return [sys.executable, "-P", str(Path(__file__)), str(request_file)]


if __name__ == "__main__":
    run_stage(main)
