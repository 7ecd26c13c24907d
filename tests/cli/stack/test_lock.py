import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.stack import lock
from service.cli.stack.lock import StackAddress
from service.cli.terminal.exit_codes import UsageError


def address_of(home: Path, pid: int | None = None) -> StackAddress:
    return StackAddress(
        pid=pid or os.getpid(), url="http://127.0.0.1:8123", mlflow_url=None, home=home.resolve()
    )


class TestHold:
    def test_a_second_one_is_refused_with_the_firsts_address(self, tmp_path: Path) -> None:
        address = address_of(tmp_path)
        with lock.hold(tmp_path):
            lock.write_address(tmp_path, address)
            with (
                pytest.raises(UsageError, match=r"already runs in .*8123"),
                lock.hold(tmp_path),
            ):
                pytest.fail("the lock was given twice")

    def test_leaves_no_file_behind_and_can_be_held_again(self, tmp_path: Path) -> None:
        for _ in range(2):
            with lock.hold(tmp_path):
                assert (tmp_path / "up.lock").exists()
            assert list(tmp_path.iterdir()) == []

    @pytest.mark.usefixtures("processes")
    def test_a_killed_holder_releases_it(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys; from pathlib import Path; from service.cli.stack import lock\n"
            "with lock.hold(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert (tmp_path / "up.lock").exists()
        with lock.hold(tmp_path):
            pass


class TestReadAddress:
    def test_returns_what_was_written(self, tmp_path: Path) -> None:
        address = address_of(tmp_path).model_copy(update={"mlflow_url": "http://b"})
        lock.write_address(tmp_path, address)
        assert lock.read_address(tmp_path) == address
        lock.remove_address(tmp_path)
        assert lock.read_address(tmp_path) is None

    @pytest.mark.usefixtures("processes")
    def test_a_stack_whose_process_has_ended_is_none(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        lock.write_address(tmp_path, address_of(tmp_path, process.pid))
        assert lock.read_address(tmp_path) is None

    def test_none_runs_in_a_copy_of_a_home_with_one(self, tmp_path: Path) -> None:
        """Else commands in the copy would reach the original."""
        home, copy, link = (tmp_path / name for name in ("home", "copy", "link"))
        home.mkdir()
        address = address_of(home)
        lock.write_address(home, address)
        shutil.copytree(home, copy)
        link.symlink_to(home)
        assert [lock.read_address(each) for each in (home, copy, link)] == [address, None, address]

    def test_the_process_of_another_user_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_pid: int, _signal: int) -> None:
            raise PermissionError

        address = address_of(tmp_path)
        lock.write_address(tmp_path, address)
        monkeypatch.setattr(os, "kill", refuse)
        assert lock.read_address(tmp_path) == address

    def test_a_damaged_file_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "up.json").write_text("{")
        assert lock.read_address(tmp_path) is None
