"""Checks that do what no check should: each is run in a process of its own."""

import os
import signal
import subprocess
import sys
import time

from service.system import private_file
from worker.doctor.check import Context, Finding, ok


def good(context: Context) -> Finding:
    (context.scratch / "file").write_text("left behind")
    return ok("good", device=context.device, gpus=len(context.gpus))


def crash(_: Context) -> Finding:
    raise ValueError("two is not three")


def die(_: Context) -> Finding:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang(context: Context) -> Finding:
    """With a grandchild in a session of its own, whose pid it leaves in the run's folder."""
    grandchild = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    (context.scratch.parent.parent / "grandchild").write_text(str(grandchild.pid))
    private_file.write(context.scratch.parent.parent / "child", str(os.getpid()))
    sys.stderr.write("waiting for a GPU that never answers\n")
    sys.stderr.flush()
    time.sleep(600)
    raise AssertionError
