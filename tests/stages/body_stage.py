"""A stage whose main is the Python code in `body.py` beside its request."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice, Progress
from service.contract.stage.stages import PublishResult, StageRequest
from worker.stages.base import Channel, run_stage

_NAMES = {
    each.__name__: each
    for each in (os, signal, sys, threading, time, FailureCode, StageError, Notice, Progress)
}


def main(request: StageRequest, channel: Channel) -> PublishResult:
    body = Path(sys.argv[1]).with_name("body.py").read_text()
    exec(body, {**_NAMES, "request": request, "channel": channel})
    return PublishResult()


if __name__ == "__main__":
    run_stage(main)
