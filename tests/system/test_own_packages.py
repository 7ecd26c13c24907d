"""Where Python finds the service's packages: `service.system.own_packages`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from service.system import own_packages
from tests.support.wheels import strange_modules

ROOT: Final = Path(__file__).resolve().parents[2]
_OURS_ALONE: Final = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
_SHOWN: Final = """
import json, os, sys
from service.system import own_packages
own_packages.come_first()
names = ("PYTHONPATH", "PYTHONSAFEPATH")
print(json.dumps({"path": sys.path, **{name: os.environ[name] for name in names}}))
"""


class TestPython:
    @pytest.mark.usefixtures("processes")
    def test_starts_a_module_without_the_current_folder(self, tmp_path: Path) -> None:
        strange_modules.write_ours(tmp_path)
        (tmp_path / "celery.py").symlink_to(tmp_path / "worker" / "__init__.py")
        command = own_packages.python("worker", "--help")
        environment = {**os.environ, **own_packages.variables({})}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "--queues" in done.stdout
        assert strange_modules.imported(tmp_path) == []

    def test_options_go_before_the_module(self) -> None:
        command = own_packages.python("worker", "--name", "w", options=["-X", "mark"])
        assert command == [sys.executable, "-P", "-X", "mark", "-m", "worker", "--name", "w"]


class TestVariables:
    @pytest.mark.parametrize("given", ["", ".", "lib", ":", "lib:./more", f"{ROOT}", f":{ROOT}:"])
    def test_what_depends_on_the_current_folder_is_left_out(self, given: str) -> None:
        assert own_packages.variables({"PYTHONPATH": given}) == _OURS_ALONE

    def test_ours_come_before_those_of_the_shell(self, tmp_path: Path) -> None:
        given = f"/lib/python:.:{tmp_path}"
        found = own_packages.variables({"PYTHONPATH": given})["PYTHONPATH"]
        assert found == f"{ROOT}:/lib/python:{tmp_path}"

    def test_a_link_to_ours_is_not_another_folder(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(ROOT)
        assert own_packages.variables({"PYTHONPATH": str(tmp_path / "link")}) == _OURS_ALONE

    def test_folders_can_be_refused(self) -> None:
        found = own_packages.variables({"PYTHONPATH": "/a:/b"}, lambda f: f == Path("/b"))
        assert found["PYTHONPATH"] == f"{ROOT}:/b"


@pytest.mark.usefixtures("processes")
class TestComeFirst:
    def shown(self, folder: Path, search_path: str) -> dict[str, object]:
        """Of a process in `folder`."""
        program = f"import sys; sys.path.append({str(ROOT)!r})\n{_SHOWN}"
        output = subprocess.check_output(
            [sys.executable, "-P", "-c", program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": search_path},
            text=True,
        )
        found: dict[str, object] = json.loads(output)
        return found

    def test_in_this_process_and_in_those_that_it_starts(self, tmp_path: Path) -> None:
        found = self.shown(tmp_path, "/lib/of/the/shell")
        assert isinstance(found["path"], list)
        assert found["path"][:2] == [str(ROOT), "/lib/of/the/shell"]
        assert found["path"].count(str(ROOT)) == 1
        assert found["PYTHONPATH"] == f"{ROOT}:/lib/of/the/shell"
        assert found["PYTHONSAFEPATH"] == "1"

    def test_an_empty_folder_of_the_shell_is_not_the_current_one(self, tmp_path: Path) -> None:
        found = self.shown(tmp_path, ":/lib/of/the/shell")
        assert isinstance(found["path"], list)
        assert str(tmp_path) not in found["path"]
        assert "/lib/of/the/shell" in found["path"]

    def test_a_current_folder_of_packages_stays(self) -> None:
        packages = next(Path(p) for p in sys.path if p.endswith("-packages"))
        found = self.shown(packages, ":/lib/of/the/shell")
        assert isinstance(found["path"], list)
        assert str(packages) in found["path"]
