"""The wheel of the client, as `pip install ./client` builds it."""

import shutil
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[3] / "client"
_BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def build(folder: Path) -> Path:
    """The wheel in `folder`; the sources are left as they are."""
    tree = folder / "tree"
    shutil.copytree(CLIENT, tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-c", _BUILD, str(folder)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built
