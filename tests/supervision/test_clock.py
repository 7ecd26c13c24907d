"""A machine whose clock jumps: leases use the database's clock, and waits no wall clock."""

import re
import time
from pathlib import Path

import pytest

from service.settings import Settings
from service.store.database import Database
from tests.supervision.support import supervisor
from tests.support.factories import claim_job, make_job
from tests.support.store.job_rows import get, history_of

_ROOT = Path(__file__).resolve().parents[2]
_WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow)\(")
_DAY = 86_400.0
# Ids that sort by age, ages of files on the machine's own disk, the axis of a plot, TensorBoard's,
# when a doctor's report was made; ages and countdowns that the command line shows; when OpenAI's
# answer or a signature was made.
_ALLOWED = {
    "service/api/openai/answers.py",
    "service/cli/jobs/page.py",
    "service/cli/jobs/listing.py",
    "service/cli/jobs/live_display.py",
    "service/cli/jobs/logs.py",
    "service/cli/search/commands.py",
    "service/cli/search/live_display.py",
    "service/cli/search/page.py",
    "service/cli/admin/workers.py",
    "service/system/login_links.py",
    "service/store/projects/audit.py",
    "service/store/tables/base.py",
    "service/store/files/files.py",
    "service/system/units.py",
    "service/webhooks/requests.py",
    "worker/doctor/report.py",
    "worker/lifecycle/start_check.py",
    "worker/stages/train/tensorboard_file.py",
    "worker/stages/train/outputs.py",
    "worker/supervision/system_metrics.py",
}


def test_nothing_else_reads_it() -> None:
    files = [path for room in ("service", "worker") for path in (_ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(_ROOT)) for path in files if _WALL_CLOCK.search(path.read_text())}
    assert found == _ALLOWED


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("jump", [_DAY, -_DAY])
def test_a_jump_while_a_job_runs(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    true_time, true_ns = time.time, time.time_ns
    job_id = make_job(database)
    claimed = claim_job(database, job_id, lease_seconds=5)
    monkeypatch.setattr(time, "time", lambda: true_time() + jump)
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(jump * 1e9))
    assert supervisor(database, settings).supervise(claimed) == "queued"
    for _ in range(2):
        supervisor(database, settings).supervise(claim_job(database, job_id, lease_seconds=5))
    assert get(database, job_id).state == "succeeded"
    assert get(database, job_id).epoch == 3
    types = [event.type for event in history_of(database, job_id)]
    assert (types.count("stage_finished"), types.count("lease_expired")) == (3, 0)
