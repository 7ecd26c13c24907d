"""Where groups may be made, decided on folders that look like the kernel's."""

import os
from pathlib import Path

import pytest

from tests.supervision.limits.groups import FakeSystem
from worker.supervision.limits import delegated_group
from worker.supervision.limits.delegated_group import NoGroupsError


@pytest.fixture
def fake(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path)


class TestFind:
    def test_after_a_worker_has_moved_down(self, fake: FakeSystem) -> None:
        base = fake.group("unit", enabled="memory pids")
        fake.place(fake.group("unit/worker", processes=[os.getpid()]))
        assert delegated_group.find(fake.system) == base

    def test_no_worker_has(self, fake: FakeSystem) -> None:
        fake.group("unit")
        fake.place(fake.group("unit/worker", processes=[os.getpid()]))
        with pytest.raises(NoGroupsError, match="no worker has made control groups possible"):
            delegated_group.find(fake.system)

    def test_the_group_above_an_ordinary_one_belongs_to_another(self, fake: FakeSystem) -> None:
        fake.group("slice", enabled="memory pids")
        fake.place(fake.group("slice/session", processes=[os.getpid()]))
        with pytest.raises(NoGroupsError, match="has not left"):
            delegated_group.find(fake.system)


class TestSettle:
    def test_alone_it_moves_down(self, fake: FakeSystem) -> None:
        own = fake.group("unit", processes=[os.getpid()])
        (own / "worker").mkdir()
        (own / "worker/cgroup.procs").touch()  # of a worker that was killed at this moment
        fake.place(own)
        assert delegated_group.settle(fake.system) == own
        assert (own / "worker/cgroup.procs").read_text() == str(os.getpid())
        assert {*(own / "cgroup.subtree_control").read_text().split()} == {"+memory", "+pids"}

    def test_in_a_leaf_it_stays(self, fake: FakeSystem) -> None:
        base = fake.group("unit")
        fake.place(fake.group("unit/worker", processes=[os.getpid(), 1]))
        assert delegated_group.settle(fake.system) == base
        assert {*(base / "cgroup.subtree_control").read_text().split()} == {"+memory", "+pids"}
        assert not (base / "worker/worker").exists()

    @pytest.mark.parametrize(
        ("changed", "text", "reason"),
        [
            ("cgroup.procs", "OWN\n1\n", "processes that are not the worker's"),
            ("cgroup.procs", "0\n", "processes that are not the worker's"),
            ("cgroup.controllers", "cpu io\n", "has no memory and pids"),
            ("cgroup.controllers", "cpu memory\n", "has no pids"),
            ("cgroup.type", "threaded\n", "is threaded"),
        ],
    )
    def test_it_leaves_the_group_as_it_is(
        self, fake: FakeSystem, changed: str, text: str, reason: str
    ) -> None:
        own = fake.group("unit", processes=[os.getpid()])
        (own / changed).write_text(text.replace("OWN", str(os.getpid())))
        fake.place(own)
        with pytest.raises(NoGroupsError, match=reason):
            delegated_group.settle(fake.system)
        assert not (own / "worker").exists()
        assert (own / "cgroup.subtree_control").read_text() == ""

    def test_the_systems_own_group(self, fake: FakeSystem) -> None:
        own = fake.group("unit", processes=[os.getpid()])
        (own / "cgroup.type").unlink()  # the root group has none
        fake.place(own)
        with pytest.raises(NoGroupsError, match="in no control group of its own"):
            delegated_group.settle(fake.system)

    def test_systemd_must_have_delegated_it(self, fake: FakeSystem) -> None:
        own = fake.group("unit", processes=[os.getpid()])
        fake.place(own)
        fake.system.systemd.mkdir()
        with pytest.raises(NoGroupsError, match="Delegate=memory pids"):
            delegated_group.settle(fake.system)
        fake.delegate(own)
        assert delegated_group.settle(fake.system) == own

    def test_a_leaf_that_systemd_has_made_may_have_any_name(self, fake: FakeSystem) -> None:
        base = fake.group("unit")
        fake.place(fake.group("unit/main", processes=[os.getpid(), 1]))
        fake.system.systemd.mkdir()
        fake.delegate(base)
        assert delegated_group.settle(fake.system) == base

    def test_the_kernel_refuses(self, fake: FakeSystem) -> None:
        own = fake.group("unit", processes=[os.getpid()])
        fake.place(own)
        (own / "cgroup.subtree_control").unlink()
        (own / "cgroup.subtree_control").mkdir()
        with pytest.raises(NoGroupsError, match="the kernel refuses limits below"):
            delegated_group.settle(fake.system)
        assert (own / "cgroup.procs").read_text() == str(os.getpid())  # it is back

    def test_version_1(self, fake: FakeSystem) -> None:
        fake.proc("cgroup", "4:memory:/unit\n")
        fake.proc("mountinfo", "25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
        with pytest.raises(NoGroupsError, match="no cgroup v2"):
            delegated_group.settle(fake.system)

    def test_in_a_group_outside_of_the_container(self, fake: FakeSystem) -> None:
        fake.place(fake.group("unit"))
        fake.proc("cgroup", "0::/../elsewhere\n")
        with pytest.raises(NoGroupsError, match="no cgroup v2"):
            delegated_group.settle(fake.system)

    def test_another_system(self, tmp_path: Path) -> None:
        with pytest.raises(NoGroupsError, match="cannot be read"):
            delegated_group.settle(delegated_group.System(tmp_path))
