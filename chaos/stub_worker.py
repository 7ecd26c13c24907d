"""A real worker; jobs whose metadata have a `stub.` key get stub stages, which need no torch."""

import json
from pathlib import Path

from service.contract.stages import StageRequest
from tests.stubs import stage as stub_stage
from tests.stubs import worker
from worker.processes import stage_command


def command(request: StageRequest, request_file: Path) -> list[str]:
    metadata = json.loads(request_file.read_bytes())["spec"]["metadata"]
    is_stub = any(key.startswith("stub.") for key in metadata)
    return (stub_stage.command if is_stub else stage_command.stage_command)(request, request_file)


if __name__ == "__main__":
    worker.run(command)
