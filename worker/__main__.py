"""`python -m worker`: one worker of the data plane, until SIGTERM or Ctrl-C."""

import argparse
import os
import sys

from service.contract.routing import CPU_QUEUE, GPU_QUEUE, heard_by
from service.settings import get_settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument(
        "--queues",
        default=f"{CPU_QUEUE},{GPU_QUEUE}",
        help="comma-separated; gpu: also the trainings on several GPUs, as far as there are some",
    )
    parser.add_argument("--concurrency", type=int, default=1, help="stages at the same time")
    parser.add_argument("--name", default=f"worker-{os.getpid()}", help="unique on this host")
    arguments = parser.parse_args()
    if get_settings().redis_url is None:
        sys.exit("FINETUNE_REDIS_URL is not set: a worker needs the broker")

    from worker import allocator
    from worker.app import app
    from worker.devices import gpus

    count = len(gpus())
    try:
        allocator.find(get_settings().malloc, beside_gpu=count > 0)
    except allocator.AllocatorError as error:
        sys.exit(str(error))
    queues = ",".join(heard_by(arguments.queues.split(","), count))
    options = ["--queues", queues, "--concurrency", str(arguments.concurrency)]
    names = ["--hostname", f"{arguments.name}@%h"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", "--pool", "prefork", *options, *names, *quiet])


if __name__ == "__main__":
    main()
