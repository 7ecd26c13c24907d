"""`python -m healthcheck`: a container's health check, 0 while this host's worker beats."""

import socket
import sys

from sqlalchemy import select

from service.settings import Settings, get_settings
from service.store.database import Database, db_now
from service.store.models import WorkerRow

MISSED_BEATS = 3


def beats(database: Database, hostname: str, settings: Settings) -> bool:
    """Whether a worker of this host has written its row within the last few beats."""
    silence = MISSED_BEATS * settings.beat_seconds
    seen = select(WorkerRow.id).where(
        WorkerRow.hostname == hostname, WorkerRow.last_seen_at > db_now(-silence)
    )
    with database.read() as session:
        return session.scalar(seen.limit(1)) is not None


def main() -> None:
    settings = get_settings()
    hostname = socket.gethostname()
    if not beats(Database(settings.sqlalchemy_url), hostname, settings):
        sys.exit(f"no worker of {hostname} has beaten lately")


if __name__ == "__main__":
    main()
