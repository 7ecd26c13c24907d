"""A real worker; jobs whose metadata have a `stub.` key get stub stages, which need no torch,
and those with a `hostile.` key a training that attacks; with `stub.train: chained` the training is
that of tests/support/stages/chained.py."""

import json
from pathlib import Path

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.support import forked_stubs
from tests.support.stages import chained, hostile
from tests.support.workers import worker
from worker.processes import stage_command


def command(request: StageRequest, request_file: Path) -> list[str]:
    metadata = json.loads(request_file.read_bytes())["spec"]["metadata"]
    if request.stage is Stage.TRAIN and any(key.startswith("hostile.") for key in metadata):
        return hostile.command(request, request_file)
    if request.stage is Stage.TRAIN and metadata.get("stub.train") == "chained":
        return chained.command(request, request_file)
    is_stub = any(key.startswith("stub.") for key in metadata)
    return (forked_stubs.command if is_stub else stage_command.stage_command)(request, request_file)


if __name__ == "__main__":
    worker.run(command)
