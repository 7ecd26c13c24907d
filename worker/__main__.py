"""What `finetune worker` starts."""

import argparse
import os
import sys
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from service import process_start
from service.contract.routing import (
    CPU_QUEUE,
    GPU_QUEUE,
    consumed_queues,
    gpus_of,
    most_for_one_job,
)
from service.settings import Settings, get_settings
from service.store import schema
from service.store.database import Database, is_outage
from service.store.database_faults import described, is_unusable
from service.store.projects import secrets
from service.system.home import make_private
from service.system.secret_box import SecretBox, WrongKeyError

_DESCRIPTION: Final = "One worker of the data plane, until SIGTERM or Ctrl-C."


def main() -> None:
    parser = argparse.ArgumentParser(prog="finetune worker", description=_DESCRIPTION)
    parser.add_argument(
        "--queues",
        default=f"{CPU_QUEUE},{GPU_QUEUE}",
        help="comma-separated; gpu includes the trainings on several GPUs that this host can run; "
        "preview alone makes previews while the workers of cpu are busy; predict alone answers "
        "predictions and keeps the model in memory",
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        help="how many stages run at once; default: one for each GPU, plus two if the worker also "
        "serves the CPU queue; one if there is no GPU",
    )
    parser.add_argument("--name", default=f"worker-{os.getpid()}", help="unique on this host")
    arguments = parser.parse_args()
    process_start.begin()
    if get_settings().redis_url is None:
        sys.exit("FINETUNE_REDIS_URL is not set: a worker needs the broker")
    make_private(get_settings().home)
    _require_release(get_settings().sqlalchemy_url)
    _require_key(get_settings())

    from worker.app import app
    from worker.devices import gpu_locks
    from worker.devices.gpus import gpus
    from worker.processes import allocator
    from worker.sandbox import layers

    found = gpus()
    queues = consumed_queues(arguments.queues.split(","), most_for_one_job(found))
    try:
        layers.require(get_settings())
        allocator.find(get_settings().malloc, with_gpu=bool(found))
        if found:
            gpu_locks.check(get_settings().devices_dir)
    except (layers.SandboxError, allocator.AllocatorError, gpu_locks.GpuLockError) as error:
        sys.exit(str(error))
    concurrency = arguments.concurrency or _concurrency(queues, len(found))
    options = ["--queues", ",".join(queues), "--concurrency", str(concurrency)]
    names = ["--hostname", f"{arguments.name}@%h"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", "--pool", "prefork", *options, *names, *quiet])


def _require_release(url: str) -> None:
    database = Database(url)
    try:
        with database, database.connect() as connection:
            schema.require_release(connection)
    except schema.UnusableSchemaError as error:
        sys.exit(str(error))
    except SQLAlchemyError as error:
        # A worker waits for its database, but no waiting makes one of another file.
        if isinstance(error, DatabaseError) and is_unusable(error) and not is_outage(error):
            sys.exit(described(url, error))


def _require_key(settings: Settings) -> None:
    """The one that seals the secrets of this service: jobs here could not use them."""
    sealed = None
    database = Database(settings.sqlalchemy_url)
    with suppress(SQLAlchemyError), database, database.read() as session:
        sealed = secrets.newest(session)
    try:
        if sealed is not None:
            SecretBox(settings.secrets_file).require_key_of(sealed)
    except WrongKeyError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"the key file of FINETUNE_SECRETS_KEY_FILE cannot be read: {error}")


def _concurrency(queues: list[str], gpus: int) -> int:
    """One process for each GPU, one for CPU jobs, and one that may wait for GPUs."""
    if not gpus or not any(map(gpus_of, queues)):
        return 1
    return gpus + 2 if CPU_QUEUE in queues else gpus


if __name__ == "__main__":
    main()
