"""worker.training.memory.usage.trim: pages that are free amid the heap are given back."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.training.support.jobs import Job, run
from worker.processes import allocator
from worker.training import loop

PROGRAM = """
import ctypes
import psutil
from worker.training.memory import usage

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return psutil.Process().memory_info().rss >> 20

def block(size):
    made = libc.malloc(size)
    ctypes.memset(made, 1, size)
    return made

large, small = zip(*((block(20 << 20), block(100)) for _ in range(10)))
for one in large:
    libc.free(one)
before = resident()
usage.trim()
print(before - resident())
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_what_is_free_between_what_stays_is_given_back() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=allocator.preloading(allocator.KEEPING, environment),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) >= 150  # of 200 MiB


def test_a_training_does_so_now_and_then(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(loop, "TRIM_STEPS", 2)
    monkeypatch.setattr(loop, "trim", lambda: calls.append(None))
    run(make_job(max_steps=5, save_strategy="no").request())
    assert len(calls) == 2
