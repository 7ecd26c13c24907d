"""What `pip install` would bring: the packages, the migrations, the command, and nothing else."""

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.support.wheels import service_wheel, strange_modules
from tests.support.wheels.service_wheel import ROOT
from worker.tasks.chat import templates

OURS = "finetune_service"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, processes: None) -> zipfile.Path:
    """Built from a copy of the tree, without network, and unpacked by no one yet."""
    tree = tmp_path_factory.mktemp("tree")
    service_wheel.copy(tree, "tests", "examples", "benchmarks")
    return zipfile.Path(service_wheel.build(tree, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def installed(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, and with the packages of another distribution that has
    their names, which goes before the working tree when it is imported."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.root.extractall(folder)
    strange_modules.write_ours(folder)
    return folder


def run(installed: Path, code: str, *arguments: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "FINETUNE_HOME": str(installed / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        cwd=installed,
        check=True,
        capture_output=True,
        text=True,
    )
    assert strange_modules.imported(installed) == []
    return done.stdout


class TestWheel:
    def test_carries_three_packages_and_nothing_else(self, wheel: zipfile.Path) -> None:
        """Under one name: another distribution may own theirs."""
        tops = {entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info")}
        assert tops == {OURS}
        packages = {entry.name for entry in (wheel / OURS).iterdir()}
        assert packages == set(service_wheel.PACKAGES)

    def test_carries_every_module_and_the_marks_of_types(self, wheel: zipfile.Path) -> None:
        names = set(wheel.root.namelist())
        for folder in service_wheel.PACKAGES:
            modules = {f"{OURS}/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob("*.py")}
            assert modules <= names, modules - names
        assert {f"{OURS}/service/py.typed", f"{OURS}/worker/py.typed"} <= names
        page = ("index.html", "page.css", "page.js")
        assert {f"{OURS}/service/api/openapi/docs_page/{name}" for name in page} <= names
        chat = {f"{OURS}/worker/tasks/chat/templates/{name}.jinja" for name in templates.NAMES}
        assert chat <= names

    def test_carries_the_written_documentation(self, wheel: zipfile.Path) -> None:
        names = set(wheel.root.namelist())
        pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
        assert len(pages) > 30
        assert {f"{OURS}/service/cli/manual/{page.as_posix()}" for page in pages} <= names
        assert [name for name in names if name.endswith(".png")] == []

    def test_the_images_are_built_from_all_that_it_carries(self) -> None:
        """The documentation among it, to which a link in `service` leads."""
        admitted = (ROOT / ".dockerignore").read_text().splitlines()
        sources = (
            "pyproject.toml",
            "setup.py",
            "README.md",
            "LICENSE",
            "service",
            "worker",
            "migrations",
            "docs",
        )
        assert {f"!{name}" for name in sources} <= set(admitted)

    def test_the_base_asks_for_nothing_of_the_ml_stack(self, wheel: zipfile.Path) -> None:
        (info,) = (entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info"))
        lines = (info / "METADATA").read_text(encoding="utf-8").splitlines()
        asked = [line for line in lines if line.startswith("Requires-Dist") and "extra" not in line]
        names = {line.split()[1].split("[")[0].split("=")[0].lower() for line in asked}
        assert "fastapi" in names
        assert not names & {"torch", "transformers", "accelerate", "datasets", "mlflow"}


class TestInstalled:
    """Each with other packages of the same names next to it, and in the current folder."""

    MAIN = f"import sys; from {OURS}.service.launch import main; sys.argv[0] = 'finetune'; main()"

    def test_is_what_is_imported(self, installed: Path) -> None:
        program = f"""
            from {OURS}.service.system import own_packages
            own_packages.come_first()
            import migrations, service, worker
            print(service.__file__, worker.__file__, migrations.__file__, sep=chr(10))
        """
        found = run(installed, textwrap.dedent(program)).split()
        packages = ("service", "worker", "migrations")
        assert found == [str(installed / OURS / each / "__init__.py") for each in packages]

    @pytest.mark.heavy
    def test_the_command_explains_itself(self, installed: Path) -> None:
        assert "finetune" in run(installed, self.MAIN, "--help")

    @pytest.mark.heavy
    def test_the_command_shows_the_documentation(self, installed: Path) -> None:
        assert run(installed, self.MAIN, "docs", "tasks").startswith("# Tasks\n")

    @pytest.mark.heavy
    def test_the_command_finds_the_migrations(self, installed: Path) -> None:
        assert "newest schema" in run(installed, self.MAIN, "migrate")
        assert (installed / "home" / "finetune.db").exists()

    def test_the_command_starts_a_worker(self, installed: Path) -> None:
        assert "--queues" in run(installed, self.MAIN, "worker", "--help")
