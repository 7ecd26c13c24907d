"""The wheel of the service, as `pip install .` builds it, and virtual environments that have it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

from tests.support.wheels import client_wheel

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGES: Final = ("service", "worker", "migrations")
_FILES: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def copy(tree: Path, *more: str) -> None:
    """A checkout with what the wheel is made of, and the folders `more`."""
    for folder in (*PACKAGES, *more):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in _FILES:
        shutil.copy(ROOT / file, tree)


def build(tree: Path, folder: Path) -> Path:
    """The wheel of a checkout, in `folder`; without network."""
    command = [sys.executable, "-c", _BUILD, str(folder)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def install(environment: Path, folder: Path) -> Path:
    """A virtual environment with both wheels, made in `folder`, and for all else with the packages
    of the tests. Its folder of packages."""
    copy(folder / "tree")
    wheels = [build(folder / "tree", folder / "wheel"), client_wheel.build(folder / "client")]
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")),
            *("install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)),
        ],
        env={**os.environ, "PYTHONPATH": ""},
        check=True,
        capture_output=True,
    )
    return packages
