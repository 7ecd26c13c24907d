"""Numbers too small for a float's exponent are 0 in a training: seen by their values, in all
threads of an operation and of its gradient."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.training.support import Job

PROGRAM = """
import json, os, sys
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
        Path(found_file).write_text(json.dumps(found))
        return super().loss_sum(model, batch)

support.TinyObjective = Measured
support.use_tiny_task()
as_in_a_job, as_it_is = sys.argv[2:]
# A process for each, as threads keep what they were started with; the imports are made once.
child = os.fork()
if child == 0:
    build.flush_denormals = lambda: None
    found_file = as_it_is
    run_stage(train.main)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
found_file = as_in_a_job
run_stage(train.main)
"""


def test_in_every_thread_of_a_training(make_job: Callable[..., Job], tmp_path: Path) -> None:
    request = make_job(max_steps=1, save_strategy="no").request()
    path = request.attempt_dir / "request.json"
    path.write_text(request.model_dump_json())
    found = [tmp_path / name for name in ("as in a job", "as it is")]
    with Path(os.devnull).open("w") as events:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), *map(str, found)],
            env={**os.environ, "FINETUNE_EVENT_FD": str(events.fileno())},
            pass_fds=[events.fileno()],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    flushed, kept = (json.loads(file.read_text()) for file in found)
    assert flushed == {"threads": 3, "kept": [0, 0]}
    assert kept == {"threads": 3, "kept": [1 << 20, 1 << 20]}
