"""Numbers too small for a float's exponent are 0 in a training: seen by their values, in all
threads of an operation and of its gradient."""

import json
from collections.abc import Callable

import pytest

from tests.stages.support import Forks
from tests.training.support.jobs import Job

# In a process for each, as threads keep what they were started with.
MEASURED = """
import json
import torch
from tests.training.support import jobs
from worker.stages.train import stage
from worker.training import build

def counts():
    torch.set_num_threads(3)
    large = torch.full((1 << 20,), 1e-30, requires_grad=True)
    product = large * 1e-10  # 1e-40: below float32's smallest normal number
    (large * 1e-20 * 1e-20).sum().backward()
    return [int(torch.count_nonzero(one)) for one in (product, large.grad)]

class Measured(jobs.TinyObjective):
    def loss_sum(self, model, batch):
        found = {"kept": counts(), "threads": torch.get_num_threads()}
        (request.workspace / "found.json").write_text(json.dumps(found))
        return super().loss_sum(model, batch)

jobs.TinyObjective = Measured
jobs.use_tiny_task()
"""
AS_IN_A_JOB = MEASURED + "stage.main(request, channel)"
AS_IT_IS = MEASURED + "build.flush_denormals = lambda: None\nstage.main(request, channel)"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("body", "kept"),
    [(AS_IN_A_JOB, [0, 0]), (AS_IT_IS, [1 << 20, 1 << 20])],
    ids=["as in a job", "as it is"],
)
def test_in_every_thread_of_a_training(
    make_job: Callable[..., Job], body: str, kept: list[int]
) -> None:
    job = make_job(max_steps=1, save_strategy="no")
    request = job.request()
    (request.attempt_dir / "body.py").write_text(body)
    path = request.attempt_dir / "request.json"
    path.write_text(request.model_dump_json())
    ended = Forks("tests.stages.body_stage", job.home / "hub").run(path)
    assert ended.status == 0, ended.log
    found = json.loads((job.workspace / "found.json").read_text())
    assert found == {"threads": 3, "kept": kept}
