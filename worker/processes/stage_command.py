"""The command line of a stage's process."""

from pathlib import Path

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.system import own_packages
from worker.processes.fork_protocol import LAUNCHER, PREDICTOR


def stage_command(request: StageRequest, request_file: Path) -> list[str]:
    module, processes = f"worker.stages.{request.stage}.stage", request.spec.resources.processes
    command = [module, str(request_file)]
    if request.stage is Stage.TRAIN and processes > 1:
        command = [LAUNCHER, str(processes), *command]
    return own_packages.python(*command)


def push_command(request_file: Path) -> list[str]:
    return own_packages.python("worker.stages.publish.push", str(request_file))


def predictor_command(request_file: Path) -> list[str]:
    return own_packages.python(PREDICTOR, str(request_file))


def preview_command(request_file: Path) -> list[str]:
    return own_packages.python("worker.stages.preview.stage", str(request_file))
