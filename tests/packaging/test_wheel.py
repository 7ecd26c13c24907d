"""What `pip install` would bring: the packages, the migrations, the command, and nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from worker.tasks.chat import templates

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("service", "worker", "migrations", "tests", "examples", "benchmarks")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """Built from a copy of the tree, without network, and unpacked by no one yet."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=tree, check=True, capture_output=True
    )
    (built,) = out.glob("*.whl")
    return zipfile.Path(built)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, which goes before the working tree when it is imported."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.root.extractall(folder)
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
    return done.stdout


class TestWheel:
    def test_carries_three_packages_and_nothing_else(self, wheel: zipfile.Path) -> None:
        tops = {entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info")}
        assert tops == {"service", "worker", "migrations"}

    def test_carries_every_module_and_the_marks_of_types(self, wheel: zipfile.Path) -> None:
        names = set(wheel.root.namelist())
        for folder in ("service", "worker", "migrations"):
            modules = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py")}
            assert modules <= names, modules - names
        assert {"service/py.typed", "worker/py.typed"} <= names
        page = ("index.html", "page.css", "page.js")
        assert {f"service/api/docs_page/{name}" for name in page} <= names
        chat = {f"worker/tasks/chat/templates/{name}.jinja" for name in templates.NAMES}
        assert chat <= names

    def test_carries_the_written_documentation(self, wheel: zipfile.Path) -> None:
        names = set(wheel.root.namelist())
        pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
        assert len(pages) > 30
        assert {f"service/cli/manual/{page.as_posix()}" for page in pages} <= names

    def test_the_images_are_built_from_all_that_it_carries(self) -> None:
        """The documentation among it, to which a link in `service` leads."""
        admitted = (ROOT / ".dockerignore").read_text().splitlines()
        sources = (
            "pyproject.toml",
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
    MAIN = "import service.cli, sys; sys.argv[0] = 'finetune'; service.cli.main()"

    def test_is_what_is_imported(self, installed: Path) -> None:
        found = run(installed, "import service; print(service.__file__)").strip()
        assert Path(found) == installed / "service" / "__init__.py"

    def test_the_command_explains_itself(self, installed: Path) -> None:
        assert "finetune" in run(installed, self.MAIN, "--help")

    def test_the_command_shows_the_documentation(self, installed: Path) -> None:
        assert run(installed, self.MAIN, "docs", "tasks").startswith("# Tasks\n")

    def test_the_command_finds_the_migrations(self, installed: Path) -> None:
        assert "newest schema" in run(installed, self.MAIN, "migrate")
        assert (installed / "home" / "finetune.db").exists()
