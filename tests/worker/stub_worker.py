"""A real worker, `python -m worker`, whose supervisor starts the stub stage."""

from dataclasses import replace
from functools import lru_cache

import worker.run
from tests.worker import stub_stage
from worker.__main__ import main
from worker.app import STOPPING
from worker.supervisor import Supervisor

_real = worker.run.receiver


@lru_cache
def _receiver() -> worker.run.Receiver:
    real = _real()
    supervisor = Supervisor(
        real.database,
        real.settings,
        real.tracker,
        command=stub_stage.command,
        stopping=STOPPING.is_set,
    )
    return replace(real, supervisor=supervisor)


worker.run.receiver = _receiver

if __name__ == "__main__":
    main()
