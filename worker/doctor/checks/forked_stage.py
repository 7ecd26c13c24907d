"""Checks that a stage forked from a process that has imported torch can use the device."""

import json
import subprocess
import time
from pathlib import Path

from service import own_packages
from service.contract.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from worker.doctor.check import Context, Finding, failed, not_run, ok
from worker.doctor.forked_product import SIZE
from worker.doctor.specs import plain_spec
from worker.processes import fork_client
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Launch, Process
from worker.processes.stage_environment import stage_environment

_MODULE = "worker.doctor.forked_product"
_REMEDY = (
    "Jobs still run: a stage that cannot be forked gets a new interpreter. Set "
    "FINETUNE_WARM_START=false to save the fork server's memory, and send this report."
)


def forked_stage(context: Context) -> Finding:
    settings = Settings()
    if not settings.warm_start:
        return not_run("not run", reason="FINETUNE_WARM_START is false: stages are not forked here")
    if any(gpu.get("mig") for gpu in context.gpus):
        return not_run("not run", reason="stages are not forked on a machine with MIG instances")
    gpus = [str(gpu["uuid"]) for gpu in context.gpus[:1]] if context.device == "cuda" else []
    environment = stage_environment(settings, Stage.TRAIN, gpus)
    imports = fork_client.IMPORTS_WITH_GPU if gpus else fork_client.IMPORTS
    client = ForkClient(environment, modules=(_MODULE,), imports=imports)
    start = _RecordingStart(client)
    try:
        client.ensure_server()
        status, seconds = _run(start, environment, context.scratch)
    finally:
        client.close()
    return _finding(context, status, seconds, is_forked=start.is_forked)


class _RecordingStart:
    """Starts a stage through the fork server and records whether it was forked."""

    def __init__(self, client: ForkClient) -> None:
        self._client = client
        self.is_forked = False

    def __call__(self, launch: Launch) -> Process:
        process = self._client.start(launch)
        self.is_forked = not isinstance(process, subprocess.Popen)
        return process


def _run(start: _RecordingStart, environment: dict[str, str], folder: Path) -> tuple[int, float]:
    request = StageRequest(
        job_id="doctor",
        stage=Stage.TRAIN,
        epoch=1,
        attempt=1,
        spec=plain_spec(),
        workspace=folder,
        attempt_dir=folder,
        cache_dir=folder,
    )
    file = folder / "request.json"
    file.write_text(request.model_dump_json(), encoding="utf-8")
    command = own_packages.python(_MODULE, str(file))
    started = time.monotonic()
    with Child(command, environment, folder, folder / "log", start=start) as child:
        while not child.at_end:
            child.read(10)
        return child.reap(), time.monotonic() - started


def _finding(context: Context, status: int, seconds: float, *, is_forked: bool) -> Finding:
    log = (context.scratch / "log").read_text(encoding="utf-8", errors="replace")
    file = context.scratch / "product.json"
    result = json.loads(file.read_bytes()) if file.is_file() else {}
    if status or result.get("total") != float(SIZE**3) or result.get("device") != context.device:
        return failed(
            f"the stage ended with status {status} and {result or 'no result'}",
            reason=log[-1500:].strip(),
            remedy=_REMEDY,
        )
    if not is_forked:
        return failed("the fork server could not fork", reason=log[-1500:].strip(), remedy=_REMEDY)
    place = "the GPU" if context.device == "cuda" else "the CPU"
    return ok(f"a forked stage multiplied on {place}", seconds=round(seconds, 2))
