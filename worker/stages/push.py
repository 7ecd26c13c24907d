"""A push while training: the model of one checkpoint, to the Hub, beside the running `train`.

Started as `python -m worker.stages.push <request.json>`, by the supervisor alone: it holds the
token that the training must not have. It asks for leave before its commit, on stdin.
"""

import os
import sys
from typing import Final

from service.contract.events import ReadyToCommit
from service.contract.stages import PublishResult, StageRequest
from worker.publishing import hub_repository
from worker.stages.base import Channel, Stopped, run_stage

_NICE: Final = 15  # of 19: whatever the training needs comes first


def main(request: StageRequest, channel: Channel) -> PublishResult:
    target = request.hub_target
    assert target is not None, "asked for only where there is a `hub` section"
    (checkpoint,) = request.checkpoints
    os.nice(_NICE)
    settings = hub_repository.settings_dir(request.attempt_dir)
    files = {
        **hub_repository.model_files(settings, checkpoint),
        **hub_repository.checkpoint_files([checkpoint], target),
    }
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(target, request.hub_endpoint)
        url = repository.ensure_exists()
        # Before leave is asked for: whoever takes the job over later commits after this one, and
        # then the Hub refuses ours.
        parent = repository.head()
        change = repository.change(files, request.workspace)
        change.upload()
        channel.send(ReadyToCommit())
        if not sys.stdin.readline():
            raise Stopped
        commit = change.commit(f"Training in progress, step {checkpoint.name}", parent)
    return PublishResult(hub_url=url, hub_commit=commit.oid)


if __name__ == "__main__":
    run_stage(main)
