"""Pushes the model of one checkpoint to the Hub while `train` is running.

The supervisor starts it as `python -m worker.stages.publish.push <request.json>`, because
the training must not have the token. Before its commit it waits for permission on stdin.
"""

import sys

from service.contract.stage.events import ReadyToCommit
from service.contract.stage.stages import PublishResult, StageRequest
from worker.publishing import hub_repository
from worker.stages.base import Channel, Stopped, run_stage


def main(request: StageRequest, channel: Channel) -> PublishResult:
    (checkpoint,) = request.checkpoints
    settings = hub_repository.settings_dir(request.attempt_dir)
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(request)
        url = repository.ensure_exists()
        # Read before permission is requested: if another worker takes over the job and commits, the
        # Hub refuses this commit.
        parent = repository.head()
        change = repository.checkpoint_change(checkpoint, settings, request.workspace)
        change.upload()
        channel.send(ReadyToCommit())
        if not sys.stdin.readline():
            raise Stopped
        commit = change.commit(hub_repository.title_of(checkpoint), request.job_id, parent)
    return PublishResult(hub_url=url, hub_commit=commit.oid)


if __name__ == "__main__":
    run_stage(main)
