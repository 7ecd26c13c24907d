"""A real worker, `python -m worker`, whose supervisor starts the stub stage, also of previews."""

from dataclasses import replace
from functools import lru_cache

import worker.run
from tests.support import forked_stubs
from tests.support.workers import stub_forks
from worker.__main__ import main
from worker.app import SHUTDOWN
from worker.processes import fork_client
from worker.supervision import system_metrics
from worker.supervision.interactive.previews import Previews
from worker.supervision.supervisor import Command, Supervisor


def run(command: Command) -> None:
    """A worker that runs until SIGTERM, and whose stages `command` starts."""
    # A slow machine's stub would be sampled, and its numbers counted with the job's.
    system_metrics._FIRST_SECONDS = 60.0  # type: ignore[misc]
    fork_client.make = stub_forks.make
    real_job_runner = worker.run.job_runner

    @lru_cache
    def job_runner() -> worker.run.JobRunner:
        real = real_job_runner()
        supervisor = Supervisor(
            real.database,
            real.settings,
            real.tracker,
            command=command,
            start=worker.run._start_of(real.fork_client),
            shutdown=SHUTDOWN,
        )
        return replace(real, supervisor=supervisor)

    @lru_cache
    def preview_maker() -> Previews:
        real = real_job_runner()
        return Previews(
            real.database,
            real.settings,
            command=forked_stubs.preview_command,
            start=worker.run._start_of(real.fork_client),
            shutdown=SHUTDOWN,
        )

    worker.run.job_runner = job_runner
    worker.run.preview_maker = preview_maker
    main()


if __name__ == "__main__":
    run(forked_stubs.command)
