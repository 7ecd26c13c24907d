"""service.system.prctl."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.system.prctl import adopt_orphans, die_with_parent

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's"),
]

# A process that forks a child, says the child's pid, and ends when its stdin does.
_PARENT = """
import os, signal, sys, time
from service.system.prctl import die_with_parent
parent = os.getpid()
child = os.fork()
if child == 0:
    die_with_parent(parent, signal.Signals(int(sys.argv[1])))
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("death_signal", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_gets_the_signal_when_its_parent_ends(death_signal: signal.Signals) -> None:
    adopt_orphans()
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(int(death_signal))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.communicate()
    _, status = os.waitpid(child, 0)  # its parent by now is this process, which adopts orphans
    assert os.waitstatus_to_exitcode(status) == -death_signal


def test_a_child_whose_parent_has_ended_already_gets_it_at_once() -> None:
    child = os.fork()
    if child == 0:
        die_with_parent(os.getpid(), signal.SIGTERM)  # not its parent
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
