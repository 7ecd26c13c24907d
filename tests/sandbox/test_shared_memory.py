"""A stage's own /dev/shm: files there are in no process's memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from tests.stages.support import REQUEST
from worker.sandbox import layers, machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View
from worker.supervision import stage_views

pytestmark = pytest.mark.usefixtures("processes")

MIB = 1024**2
_FILL = """
import json, os
written = 0
try:
    for number in range(100):
        with open(f"/dev/shm/{number}", "wb") as file:
            file.write(b"x" * 2**20)
        written += 1
except OSError as error:
    print(json.dumps([written, error.strerror, os.statvfs("/dev/shm").f_files]))
"""


@pytest.mark.skipif(not layers._has_namespaces(), reason="no user namespaces")
def test_it_has_a_size_and_disappears() -> None:
    view = View(
        (Layer.NAMESPACES,),
        read=tuple(machine.readable({})),
        write=(Path("/dev/shm"),),
        devices=machine.devices(with_gpus=False),
        shared_memory_bytes=8 * MIB,
    )
    command = [sys.executable, "-I", "-S", "-c", _FILL]
    before = os.statvfs("/dev/shm").f_bfree
    with confined(command, view) as (words, descriptors):
        done = subprocess.run(
            words, pass_fds=descriptors, capture_output=True, text=True, cwd="/", check=True
        )
    assert json.loads(done.stdout) == [8, "No space left on device", 65_536]
    assert not Path("/dev/shm/7").exists()
    assert os.statvfs("/dev/shm").f_bfree >= before - 8 * MIB // os.statvfs("/dev/shm").f_frsize


@pytest.mark.parametrize("stage", Stage)
def test_it_is_a_quarter_of_the_memory(tmp_path: Path, stage: Stage) -> None:
    paths = {"workspace": tmp_path, "attempt_dir": tmp_path / "a", "cache_dir": tmp_path / "c"}
    request = StageRequest.model_validate({**REQUEST, **paths, "stage": stage})
    settings = Settings(home=tmp_path, stage_memory_bytes=400 * MIB)
    view = stage_views.of_stage(settings, request, {"HF_HOME": str(tmp_path / "hf")})
    assert view.shared_memory_bytes == 100 * MIB
    assert View.from_json(view.to_json()) == view
