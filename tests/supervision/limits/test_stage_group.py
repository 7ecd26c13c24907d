"""Control groups of a real kernel: bombs under the real supervisor, and what becomes of a group."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.processes.support import STUB, command, environment
from tests.supervision.limits.bombs import failure_of
from tests.supervision.support import run
from tests.support.factories import make_job
from tests.support.servers import services
from tests.support.stages import request as stub_request
from tests.support.store.databases import on_sqlite
from worker.processes import control_group, spawn
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.sandbox import machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View
from worker.supervision.limits import delegated_group, stage_group
from worker.supervision.limits.delegated_group import NoGroupsError
from worker.supervision.limits.stage_limits import StageLimits

pytestmark = pytest.mark.usefixtures("processes")

MIB = 1024**2
LIMIT = 400 * MIB
LIMITS = StageLimits(LIMIT, 100, LIMIT, LIMIT, 0, 0)


@pytest.fixture(autouse=True, scope="module")
def base() -> Path:
    try:
        return delegated_group.settle()
    except NoGroupsError as error:
        pytest.skip(f"no control group can be made here, `make cgroups` has one: {error}")


@pytest.fixture
def groups(base: Path) -> Iterator[Path]:
    yield base
    assert list(base.glob("finetune-stage-*")) == []


def members(folder: Path | None) -> list[int]:
    assert folder is not None
    return sorted(map(int, (folder / "cgroup.procs").read_text().split()))


@on_sqlite
class TestBombs:
    @pytest.mark.parametrize(
        ("bomb", "least"), [("memory", 1), ("memory_of_children", 10), ("memory_files", 1)]
    )
    def test_memory(
        self, database: Database, settings: Settings, groups: Path, bomb: str, least: int
    ) -> None:
        failure = failure_of(database, settings, bomb, stage_memory_bytes=LIMIT, kill_seconds=60)
        assert failure["code"] == "out_of_memory"
        assert "400 MiB that FINETUNE_STAGE_MEMORY_BYTES allows" in failure["message"]
        assert "raise FINETUNE_STAGE_MEMORY_BYTES" in failure["action"]
        details = failure["details"]
        assert details["limit_bytes"] == LIMIT
        assert 0.95 * LIMIT < details["used_bytes"] <= LIMIT  # no overshoot
        assert details["processes_killed"] >= least

    @pytest.mark.parametrize("bomb", ["processes", "processes_of_own_sessions"])
    def test_processes(
        self, database: Database, settings: Settings, groups: Path, bomb: str
    ) -> None:
        failure = failure_of(database, settings, bomb, stage_processes=100, kill_seconds=60)
        assert failure["code"] == "process_limit"
        assert failure["details"] == {"limit": 100, "processes": 101}

    @pytest.mark.parametrize("bomb", ["cached_files", "shared_memory"])
    def test_no_bomb(self, database: Database, settings: Settings, groups: Path, bomb: str) -> None:
        job_id = make_job(database, metadata={"stub.prepare": f"bomb:{bomb}"})
        limits = {"stage_memory_bytes": LIMIT, "kill_seconds": 60}
        assert run(database, settings.model_copy(update=limits), job_id) is JobState.QUEUED


class TestMembers:
    def test_a_stage_is_in_it_however_it_is_started(self, groups: Path, tmp_path: Path) -> None:
        forks = ForkClient(environment(), modules=(STUB,), imports=(STUB,))
        try:
            for number, start in enumerate((spawn.new_interpreter, forks.start)):
                folder = tmp_path / str(number)
                words = command(stub_request.write(folder, "fork"))
                log = folder / "log"
                with (
                    stage_group.stage_group(LIMITS) as group,
                    Child(
                        words, environment(), folder, log, start=start, group=group.folder
                    ) as child,
                ):
                    services.wait_until(child.has_exited, 60, "the stage")
                    [left] = members(group.folder)  # its child
                    assert left != child.pid
                services.wait_until(lambda pid=left: has_ended(pid), 5, "its end")
        finally:
            forks.close()

    def test_what_has_left_its_session_ends_with_it(self, groups: Path) -> None:
        with stage_group.stage_group(LIMITS) as group:
            escape(group.folder)
            [left] = members(group.folder)
            assert os.getsid(left) == left
        assert has_ended(left)


class TestSweep:
    def test_the_group_of_a_killed_supervisor(self, base: Path) -> None:
        words = [sys.executable, "-c", _KILLED_SUPERVISOR]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        folder = Path(done.stdout.strip())
        [left] = members(folder / "stage")
        with stage_group.stage_group(LIMITS) as other:  # as the next supervisor does
            assert not folder.exists()
            assert has_ended(left)
            stage_group.sweep(base)
            assert other.folder is not None
            assert other.folder.exists()


class TestSettle:
    def test_the_only_process_of_a_group(self, base: Path) -> None:
        own = base / "unit"
        own.mkdir()
        try:
            found = settled(own)
            assert found == [str(own), f"0::/{(own / 'worker').relative_to('/sys/fs/cgroup')}"]
            assert settled(own / "worker") == found  # another worker in the same unit
        finally:
            stage_group.remove(own / "worker")
            stage_group.remove(own)

    def test_not_the_only_one(self, base: Path) -> None:
        own = base / "unit"
        own.mkdir()
        try:
            escape(own)
            [reason] = settled(own)
            assert reason == "the worker's control group has processes that are not the worker's"
            assert not (own / "worker").exists()
        finally:
            stage_group.remove(own)


@pytest.mark.parametrize("used", [tuple(Layer), (Layer.LANDLOCK,), (Layer.NAMESPACES,)])
def test_a_confined_stage_cannot_change_its_group(
    groups: Path, tmp_path: Path, used: tuple[Layer, ...]
) -> None:
    devices = machine.devices(with_gpus=False)
    view = View(used, read=tuple(machine.readable({})), write=(tmp_path,), devices=devices)
    with stage_group.stage_group(LIMITS) as group:
        words = [sys.executable, "-I", "-S", "-c", _ATTACK, str(group.folder), str(tmp_path)]
        with confined(words, view) as (command, passed):
            done = subprocess.run(
                control_group.joining(command, group.folder),
                capture_output=True,
                text=True,
                pass_fds=passed,
                check=False,
            )
    assert done.returncode == 0, done.stderr
    # Without Landlock it can mount the groups, but from its own one on, which has no limits.
    mounted = ["mounted"] if used == (Layer.NAMESPACES,) else []
    assert done.stdout.split() == [*mounted, "tried"]


def has_ended(pid: int) -> bool:
    """This process may have adopted it, and does not reap it."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def escape(folder: Path | None) -> None:
    """Leave a process of its own session behind."""
    words = ["/bin/sh", "-c", "setsid sleep 600 >&- 2>&- & sleep 0.3"]
    subprocess.run(control_group.joining(words, folder), check=True)


def settled(own: Path) -> list[str]:
    words = control_group.joining([sys.executable, "-c", _SETTLE], own)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


_SETTLE = """
from pathlib import Path
from worker.supervision.limits import delegated_group
try:
    base = delegated_group.settle()
except delegated_group.NoGroupsError as error:
    print(error)
else:
    assert delegated_group.find() == base
    print(base)
    print(Path("/proc/self/cgroup").read_text().strip())
"""

_KILLED_SUPERVISOR = """
import os, signal
from tests.supervision.limits.test_stage_group import LIMITS, escape
from worker.supervision.limits import stage_group
with stage_group.stage_group(LIMITS) as group:
    escape(group.folder)
    print(group.folder.parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

# Prints what it has changed. The last attack mounts the groups once more, as root of a new user
# namespace.
_ATTACK = """
import ctypes, os, sys
from pathlib import Path
group, scratch = map(Path, sys.argv[1:])
def change(folder):
    for name, text in [("cgroup.procs", "0"), ("memory.max", "max"), ("pids.max", "max")]:
        file = folder / name
        if file.exists():
            try:
                file.write_text(text)
                print("wrote", file)
            except OSError:
                pass
    try:
        (folder / "new").mkdir()
        print("made", folder / "new")
    except OSError:
        pass
for folder in (group, group.parent, group.parent.parent):
    change(folder)
libc = ctypes.CDLL(None)
if libc.unshare(0x10000000) == 0 and libc.unshare(0x00020000 | 0x02000000) == 0:
    own = scratch / "groups"
    own.mkdir()
    if libc.mount(b"none", bytes(own), b"cgroup2", 0, None) == 0:
        print("mounted")
        own.joinpath("cgroup.procs").write_text("0")  # it is in there already
        (own / "cgroup.max.descendants").write_text("max")  # another one is above it
        for limit in [*own.rglob("memory.max"), *own.rglob("pids.max"), *own.rglob("memory.oom*")]:
            print("found", limit)
        try:
            (own / "new").mkdir()
            print("made", own / "new")
        except OSError:
            pass
print("tried")
"""
