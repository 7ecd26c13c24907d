"""Stays between the supervisor and a stage that has a process namespace of its own.

`python -I -S monitor.py outside <pid> <fd>`: ends as the stage has ended, and takes it along.
`python -I -S monitor.py first <pid> <fd>`: the namespace's first process. It reaps orphans, and
writes the stage's wait status to the pipe; when it ends, the kernel kills whatever is left inside.

Standard library only: it is started instead of the forked process, to give back that one's memory.
"""

import os
import resource
import signal
import sys
from typing import NoReturn


def outside(first: int, status: int) -> NoReturn:
    """Wait for the stage and end in the same way.

    The supervisor's signals go to the whole group: `enter` has blocked them for this process.
    """
    with os.fdopen(status, "rb") as pipe:
        line = pipe.readline()
    own = os.waitpid(first, 0)[1]
    _end_like(os.waitstatus_to_exitcode(int(line) if line.strip() else own))


def first(stage: int, status: int) -> NoReturn:
    while True:
        pid, ended = os.wait()
        if pid == stage:
            os.write(status, b"%d\n" % ended)
            os._exit(0)


def _end_like(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = -code
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    role = {"outside": outside, "first": first}[sys.argv[1]]
    role(int(sys.argv[2]), int(sys.argv[3]))
