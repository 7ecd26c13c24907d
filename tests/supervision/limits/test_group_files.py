"""What is written to a stage's control group and read from it, on plain files; and who asks it.

`test_stage_group.py` has the kernel's side.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.contract.failures import Failure, FailureCode
from tests.processes.support import STUB, command, environment, finish, is_forked
from tests.support.servers import services
from tests.support.stages import request as stub_request
from worker.processes import control_group, linux
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.supervision.limits import stage_group
from worker.supervision.limits.resource_watch import ResourceWatch
from worker.supervision.limits.stage_group import NO_GROUP, NoGroup, StageGroup
from worker.supervision.limits.stage_limits import StageLimits
from worker.supervision.limits.written_files import WrittenFiles

MIB = 1024**2
LIMITS = StageLimits(400 * MIB, 100, 10**15, 10**15, 0, 0)


class TestStageGroup:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        self.group = StageGroup(tmp_path, LIMITS)
        assert self.group.folder is not None
        folder = self.group.folder.parent
        self.events(folder)
        return folder

    def events(self, folder: Path, killed: int = 0, refused: int = 0) -> None:
        memory = f"low 0\nhigh 0\nmax 31\noom 1\noom_kill {killed}\noom_group_kill 1\n"
        (folder / "memory.events").write_text(memory)
        (folder / "pids.events").write_text(f"max {refused}\n")

    def test_limits(self, folder: Path) -> None:
        written = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
        assert written["memory.max"] == "419430400"
        assert written["memory.oom.group"] == "1"
        assert written["pids.max"] == "101"
        assert written["cgroup.max.descendants"] == "1"
        assert list((folder / "stage").iterdir()) == []  # where the stage is, nothing is limited
        assert "memory.swap.max" not in written  # this kernel does not count swap
        assert self.group.fault() is None

    @pytest.mark.parametrize(("peak", "used"), [("408944640\n", 408944640), (None, 400 * MIB)])
    def test_killed_for_memory(self, folder: Path, peak: str | None, used: int) -> None:
        self.events(folder, killed=21)
        if peak is not None:  # from Linux 5.19 on
            (folder / "memory.peak").write_text(peak)
        fault = self.group.fault()
        assert fault is not None
        assert fault.code == FailureCode.OUT_OF_MEMORY
        assert fault.message == (
            f"The stage used {used // MIB} MiB of memory, and needed more than the 400 MiB that "
            "FINETUNE_STAGE_MEMORY_BYTES allows it: the kernel ended its processes (21)"
        )
        assert fault.details == {
            "limit_bytes": 400 * MIB,
            "used_bytes": used,
            "processes_killed": 21,
        }

    def test_too_many_processes(self, folder: Path) -> None:
        self.events(folder, refused=3)
        fault = self.group.fault()
        assert fault is not None
        assert fault.code == FailureCode.PROCESS_LIMIT
        assert fault.message == (
            "The stage had 101 processes and threads; FINETUNE_STAGE_PROCESSES allows 100"
        )

    @pytest.mark.usefixtures("processes")
    def test_before_linux_5_14_each_process_is_killed(self, folder: Path) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            (folder / "stage/cgroup.procs").write_text(f"{child.pid}\n")
            self.group.kill()
            assert child.wait() == -9


class TestSweep:
    def test_groups_of_supervisors_that_have_ended(self, tmp_path: Path) -> None:
        own, started = os.getpid(), linux.started(os.getpid())
        assert started is not None
        used = tmp_path / f"finetune-stage-{own}-{started}-0"
        unused = tmp_path / f"finetune-stage-{own}-{started - 1}-0"  # had the same pid before
        others = tmp_path / "worker"
        for folder in (used, unused, others):
            (folder / "stage").mkdir(parents=True)
        stage_group.sweep(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([used, others])


class TestJoining:
    @pytest.mark.usefixtures("processes")
    def test_a_command_joins_before_it_runs(self, tmp_path: Path) -> None:
        words = control_group.joining([sys.executable, "-c", "print('it runs')"], tmp_path)
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == "it runs\n"
        assert (tmp_path / "cgroup.procs").read_text() == "0\n"

    @pytest.mark.usefixtures("processes")
    def test_what_cannot_join_does_not_run(self, tmp_path: Path) -> None:
        words = control_group.joining([sys.executable, "-c", "print('runs')"], tmp_path / "missing")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert done.stdout == ""

    @pytest.mark.usefixtures("processes")
    def test_a_forked_stage_is_put_into_it(self, tmp_path: Path) -> None:
        forks = ForkClient(environment(), modules=(STUB,), imports=(STUB,))
        words = command(stub_request.write(tmp_path, "finish"))
        log = tmp_path / "log"
        try:
            child = Child(words, environment(), tmp_path, log, start=forks.start, group=tmp_path)
            assert is_forked(child, forks)
            assert finish(child)[0] == 0
        finally:
            forks.close()
        assert (tmp_path / "cgroup.procs").read_text() == str(child.pid)

    def test_without_a_group(self) -> None:
        assert control_group.joining(["program"], None) == ["program"]


class FakeGroup(NoGroup):
    folder = Path("/nowhere")

    def __init__(self, found: Failure | None) -> None:
        self.found = found
        self.kills = 0

    def fault(self) -> Failure | None:
        return self.found

    def kill(self) -> None:
        self.kills += 1


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
class TestWatch:
    SMALL = StageLimits(MIB, 100, 10**15, 10**15, 0, 0)

    @pytest.fixture
    def child(self, processes: None) -> Iterator[subprocess.Popen[bytes]]:
        block = "block = b'x' * 20_000_000; print(flush=True); input()"
        words = [sys.executable, "-c", block]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
            child.kill()

    def watch(self, child: subprocess.Popen[bytes], folder: Path, group: NoGroup) -> ResourceWatch:
        files = WrittenFiles([folder], self.SMALL)
        return ResourceWatch(child.pid, self.SMALL, files, group)

    def test_what_the_group_has_found_ends_the_stage(
        self, child: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        group = FakeGroup(Failure.from_code(FailureCode.PROCESS_LIMIT, "too many"))
        with self.watch(child, tmp_path, group) as watch:
            assert child.wait(10) == -9
        assert watch.breach == group.found
        assert group.kills >= 2  # at once, and at the end

    def test_at_the_end_the_group_is_asked_once_more(
        self, child: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        group = FakeGroup(None)
        watch = self.watch(child, tmp_path, group)
        with watch:
            watch._stop.set()  # it does not look any more
            watch._thread.join()
            group.found = Failure.from_code(FailureCode.OUT_OF_MEMORY, "the kernel was faster")
        assert watch.breach == group.found

    def test_memory_is_the_groups_matter(
        self, child: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        group = FakeGroup(None)
        with self.watch(child, tmp_path, group) as watch:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(1.2)
            assert watch.breach is None
        assert group.kills == 1

    def test_without_a_group_it_is_the_watchs(
        self, child: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        with self.watch(child, tmp_path, NO_GROUP) as watch:
            services.wait_until(lambda: watch.breach, 10, "the breach")
        assert watch.breach is not None
        assert watch.breach.code == FailureCode.OUT_OF_MEMORY
        assert watch.breach.details["used_bytes"] >= 20_000_000


@pytest.mark.usefixtures("processes")
def test_mapped_pages_of_files_do_not_count_as_memory(tmp_path: Path) -> None:
    """They were: a stage that mapped a dataset larger than its limit was ended."""
    file = tmp_path / "data"
    file.write_bytes(b"x" * (64 * MIB))
    words = [sys.executable, "-c", _MAP, str(file)]
    limits = StageLimits(48 * MIB, 100, 10**15, 10**15, 0, 0)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        with ResourceWatch(child.pid, limits, WrittenFiles([tmp_path], limits)) as watch:
            assert child.stdout is not None
            assert child.stdout.readline() == b"mapped\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(1.2)
            assert watch.breach is None
        child.kill()


_MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert sum(pages[place] for place in range(0, len(pages), 4096)) > 0
    print("mapped", flush=True)
    input()
"""
