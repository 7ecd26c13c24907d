"""A worker that is killed at any point of a preview leaves nothing that lasts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.jobs.retention import Retention
from service.settings import Settings
from service.store import preview_claims
from service.store.database import Database, db_now
from service.store.models import RemovalRow
from tests.stubs import killed_previews
from tests.support import services
from tests.support.databases import on_sqlite
from tests.support.previews import (
    bring_removals_forward,
    make_preview,
    preview,
    put_preview,
)

pytestmark = [pytest.mark.heavy, on_sqlite]


def work(settings: Settings, temporary: Path, point: str, preview_id: str) -> int:
    environment = {name: v for name, v in os.environ.items() if "FINETUNE" not in name}
    environment |= {
        "FINETUNE_HOME": str(settings.home),
        "FINETUNE_DATABASE_URL": settings.sqlalchemy_url,
        "FINETUNE_SANDBOX_READ": str(Path(killed_previews.__file__).parent),
        "TMPDIR": str(temporary),
    }
    command = [sys.executable, "-m", killed_previews.__name__, point, preview_id]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


@pytest.mark.parametrize("point", killed_previews.POINTS)
def test_another_worker_makes_it_and_nothing_is_left(
    database: Database, settings: Settings, tmp_path: Path, point: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mine = make_preview(database)
    assert work(settings, temporary, point, mine) == -9
    put_preview(database, mine, lease_until=db_now(-1))
    with database.write() as session:
        preview_claims.LEASES.recover(session)
    had_ended = point in ("ended", "removed")
    assert preview(database, mine).state == ("succeeded" if had_ended else "queued")
    # The next one also removes the temporary files of the first.
    assert work(settings, temporary, "none", mine if not had_ended else make_preview(database)) == 0
    assert preview(database, mine).state == "succeeded"
    services.wait_until(lambda: list(temporary.iterdir()) == [], 5, "the temporary files' end")
    bring_removals_forward(database)
    Retention(database, settings).step()
    assert list(settings.jobs_dir.iterdir()) == []
    with database.read() as session:
        assert session.query(RemovalRow).count() == 0
