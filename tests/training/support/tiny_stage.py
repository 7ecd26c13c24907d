"""The train stage with the tests' own task, as a process of its own.

`python -P -m tests.training.support.tiny_stage <request.json>`
"""

import sys

import torch

from service.contract.stage.stages import StageRequest, TrainResult
from tests.training.support.jobs import use_tiny_task
from worker.stages.base import Channel, run_stage
from worker.stages.train import stage


def main(request: StageRequest, channel: Channel) -> TrainResult | None:
    torch.set_num_threads(1)
    use_tiny_task()
    return stage.main(request, channel)


if __name__ == "__main__":
    sys.exit(run_stage(main))
