"""`python -m worker.lifecycle.healthcheck`: a container's health check; 0: its worker is alive."""

import socket
import sys

from service.settings import Settings, get_settings
from service.store.database import Database
from service.store.jobs import queries


def is_alive(database: Database, hostname: str, settings: Settings) -> bool:
    """Whether a worker of this host has sent one of the last three heartbeats."""
    with database.read() as session:
        live = queries.live_workers(session, settings.alive_seconds)
        return any(row.hostname == hostname for row in live)


def main() -> None:
    settings = get_settings()
    hostname = socket.gethostname()
    if not is_alive(Database(settings.sqlalchemy_url), hostname, settings):
        sys.exit(f"no worker of {hostname} has sent a heartbeat lately")


if __name__ == "__main__":
    main()
