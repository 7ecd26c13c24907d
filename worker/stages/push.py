"""Pushes the model of one checkpoint to the Hub while `train` is running.

The supervisor starts it as `python -m worker.stages.push <request.json>`, because the training must
not have the token. Before its commit it waits for permission on stdin.
"""

import sys

from service.contract.events import ReadyToCommit
from service.contract.stages import PublishResult, StageRequest
from worker.publishing import hub_repository
from worker.stages.base import Channel, Stopped, run_stage


def main(request: StageRequest, channel: Channel) -> PublishResult:
    target = request.hub_target
    assert target is not None, "a push needs a `hub` section"
    (checkpoint,) = request.checkpoints
    settings = hub_repository.settings_dir(request.attempt_dir)
    files = {
        **hub_repository.model_files(settings, checkpoint),
        **hub_repository.checkpoint_files([checkpoint], target),
    }
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(target, request.hub_endpoint)
        url = repository.ensure_exists()
        # Read before permission is requested: if another worker takes over the job and commits, the
        # Hub refuses this commit.
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
