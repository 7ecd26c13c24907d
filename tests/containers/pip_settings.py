"""Gives a build inside a container the pip settings of this machine, without baking them in."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit


def mounts(folder: Path) -> list[str]:
    """Read-only mounts: pip's settings as one file, and all that they name of this machine's disk.

    `folder` takes the file. A machine without settings of its own has nothing to mount.
    """
    settings = _settings()
    if not settings:
        return []
    file = folder / "pip.conf"
    lines = (f"{name} = {value}" for name, value in settings.items())
    file.write_text("\n".join(["[global]", *lines, ""]))
    sources = {_local(word) for value in settings.values() for word in value.split()}
    shared = [f"{path}:{path}:ro" for path in sorted(path for path in sources if path)]
    return [f"{file}:/etc/pip.conf:ro", *shared]


def torch_index() -> str:
    """TORCH_INDEX of the build: a folder with wheels of torch, if pip's settings name one.

    The image then needs no several GB of CUDA.
    """
    folders = (_local(word) for word in _settings().get("find-links", "").split())
    found = (Path(folder) for folder in folders if folder and any(Path(folder).glob("torch-*.whl")))
    return next((folder.as_uri() for folder in found), "")


def _settings() -> dict[str, str]:
    """`pip config list`: the settings of files, then those of the environment, which take
    precedence."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", ":env:"):
            found[option] = value.strip("'")
    return found


def _local(word: str) -> str | None:
    """The folder or file that a word of a setting names, if it is one of this machine."""
    path = urlsplit(word).path if word.startswith("file://") else word
    if not path.startswith("/") or not Path(path).exists():
        return None
    # An index of files points to the files next to it.
    return str(Path(path).parent) if path.endswith("/simple") else path
