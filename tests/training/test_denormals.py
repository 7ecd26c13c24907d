"""Numbers too small for a float's exponent are 0 in a training: seen by their values, in all
threads of an operation and of its gradient."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.support import Job

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from tests.training import support
from worker.stages import train
from worker.stages.base import run_stage
from worker.training import build

def counts():
    torch.set_num_threads(3)
    large = torch.full((1 << 20,), 1e-30, requires_grad=True)
    product = large * 1e-10  # 1e-40: below float32's smallest normal number
    (large * 1e-20 * 1e-20).sum().backward()
    return [int(torch.count_nonzero(one)) for one in (product, large.grad)]

class Measured(support.TinyObjective):
    def loss_sum(self, model, batch):
        found = {"kept": counts(), "threads": torch.get_num_threads()}
        Path(sys.argv[2]).write_text(json.dumps(found))
        return super().loss_sum(model, batch)

if "as it is" in sys.argv:
    build.flush_denormals = lambda: None
support.TinyObjective = Measured
support.use_tiny_task()
run_stage(train.main)
"""


@pytest.mark.parametrize(("how", "kept"), [("as in a job", 0), ("as it is", 1 << 20)])
def test_in_every_thread_of_a_training(
    make_job: Callable[..., Job], tmp_path: Path, how: str, kept: int
) -> None:
    request = make_job(max_steps=1, save_strategy="no").request()
    path = request.attempt_dir / "request.json"
    path.write_text(request.model_dump_json())
    found = tmp_path / "found.json"
    with Path(os.devnull).open("w") as events:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), str(found), how],
            env={**os.environ, "FINETUNE_EVENT_FD": str(events.fileno())},
            pass_fds=[events.fileno()],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(found.read_text()) == {"threads": 3, "kept": [kept, kept]}
