"""A real worker; jobs whose metadata have a `stub.` key get stub stages, which need no torch."""

import json
from pathlib import Path

from service.contract.states import Stage
from tests.stubs import stage as stub_stage
from tests.stubs import worker
from worker.processes import stage_command


def command(stage: Stage, request_file: Path) -> list[str]:
    metadata = json.loads(request_file.read_bytes())["spec"]["metadata"]
    is_stub = any(key.startswith("stub.") for key in metadata)
    return (stub_stage.command if is_stub else stage_command.stage_command)(stage, request_file)


if __name__ == "__main__":
    worker.run(command)
