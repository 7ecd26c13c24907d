"""The service's own processes: `api`, `reconciler`, `worker`, `migrate`."""

import os
import signal
import sys
import threading
from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from service import process_start
from service.cli.stack.addresses import check_address
from service.cli.stack.components import reconciler_mark
from service.cli.terminal import output
from service.cli.terminal.exit_codes import UsageError
from service.settings import get_settings
from service.store import schema
from service.store.database import Database
from service.system import own_packages
from service.system.home import make_private

REMOVAL_SECONDS = 5
"""The same for a removal or a webhook in progress; the next reconciler continues it."""


def api(
    host: Annotated[str | None, typer.Option(help="Default: FINETUNE_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Default: FINETUNE_PORT.")
    ] = None,
) -> None:
    """Serve the HTTP API."""
    # Imported late, as below: every other command would wait for it.
    import uvicorn

    from service.api.app import create_app
    from service.api.http.server import options

    process_start.begin()
    settings = get_settings()
    given = {"host": host, "port": port}
    settings = settings.model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
    make_private(settings.home)
    check_address(settings.host, settings.auth)
    with Database(settings.sqlalchemy_url) as database:
        require_schema(database)
    uvicorn.run(
        # With these settings: the app answers only to hosts that it knows.
        partial(create_app, settings),
        factory=True,
        host=settings.host,
        port=settings.port,
        **options(settings),
    )


def reconciler() -> None:
    """Dispatch queued jobs, detect lost workers, apply retention, send webhooks, carry searches on;
    until SIGTERM."""
    from service import logging
    from service.api.search_checks.trials import refusals
    from service.jobs.dispatch import Dispatcher
    from service.jobs.reconciler import Reconciler
    from service.jobs.retention import Retention
    from service.searches.runner import SearchRunner
    from service.webhooks.sender import WebhookSender

    process_start.begin()
    settings = get_settings()
    make_private(settings.home)
    with Database(settings.sqlalchemy_url) as database, closing(Dispatcher(settings)) as dispatcher:
        require_schema(database)
        logging.configure(settings)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        output.print_line(reconciler_mark(os.getpid()))
        # On threads of their own: neither removing a large folder, nor a receiver of webhooks, nor
        # the next trial of a search must delay wake-up messages.
        others = [
            threading.Thread(target=each.run, args=(stop,), daemon=True)
            for each in (
                Retention(database, settings),
                WebhookSender(database, settings),
                SearchRunner(database, dispatcher, settings, refusals),
            )
        ]
        for thread in others:
            thread.start()
        Reconciler(database, dispatcher, settings).run(stop)
        for thread in others:
            thread.join(REMOVAL_SECONDS)


def worker(context: typer.Context) -> None:
    """Run a worker; the options are those of `finetune worker --help`."""
    # Replaced, not imported: the control plane never loads what a worker needs.
    os.execv(sys.executable, own_packages.python("worker", *context.args))


def require_schema(database: Database) -> None:
    """Raises UsageError when the database has not been migrated to this version, and
    UnusableSchemaError when it cannot be."""
    with database.engine.connect() as connection:
        schema.require_upgradable(connection)
        if not schema.is_current(connection):
            raise UsageError("the database is not at this version's schema: `finetune migrate`")


def migrate() -> None:
    """Migrate the database to the newest schema; safe to run at any time."""
    settings = get_settings()
    make_private(settings.home)
    with Database(settings.sqlalchemy_url) as database:
        schema.upgrade(database.engine)
    output.print_line("the database is at the newest schema")
