"""Which processes belong to a stage."""

import subprocess
import sys

import pytest

from worker.sandbox import system_calls
from worker.supervision.limits.process_tree import ProcessTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

_MARKED = f"""
from worker.sandbox import system_calls
system_calls.prctl({system_calls.PR_SET_NO_NEW_PRIVS}, 1)
print(1, flush=True)
input()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("adopts", [True, False])
def test_a_push_leaves_alone_what_was_adopted_from_its_training(*, adopts: bool) -> None:
    """Both are watched by one process, which adopts the orphans of both."""
    with (
        subprocess.Popen(["sleep", "60"]) as push,
        subprocess.Popen(
            [sys.executable, "-c", _MARKED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as orphan,
    ):
        assert orphan.stdout is not None
        orphan.stdout.readline()
        tree = ProcessTree(push.pid, adopts=adopts)
        assert {process.pid for process in tree.scan()} == (
            {push.pid, orphan.pid} if adopts else {push.pid}
        )
        assert tree.kill()
        assert push.wait(10) == -9
        if adopts:
            assert orphan.wait(10) == -9
        else:
            assert orphan.poll() is None
            orphan.kill()
