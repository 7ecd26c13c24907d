"""`make locks`: requirements/*.txt, the versions of constraints.txt with the hash of every file.

`python -m scripts.locks UV`, with the path of uv. The hashes are those of the package index that uv
is set up with, for all platforms. torch and what only torch needs are in a file of their own: they
may come from another index, and then from that one alone.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "requirements"
HEADER: Final = "# Made by `make locks` from constraints.txt. Install: {use}\n"
EXTRAS: Final = {"service": (), "worker": ("worker",), "dev": ("dev", "docs")}
"""File → the extras of pyproject.toml that it is for."""
PYTHON: Final = {"dev": "3.11.5"}
"""The oldest Python of a file, where 3.11 is too old: the generator of the site needs this one."""
_OF_TORCH: Final = re.compile(r"(torch|triton|nvidia-(?!ml-py)[\w-]+|cuda-[\w-]+)==")
USES: Final = {
    "build": "pip install --require-hashes --no-deps -r requirements/build.txt",
    "service": "pip install --require-hashes -r requirements/service.txt",
    "torch": "pip install --require-hashes --no-deps -r requirements/torch.txt",
    "worker": "pip install --require-hashes --no-deps -r requirements/worker.txt, after torch",
    "dev": "pip install --require-hashes --no-deps -r requirements/dev.txt, after torch",
}


def main(uv: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    parts = {name: split(compiled(uv, name)) for name in EXTRAS}
    write("build", compiled(uv, "build"))
    for name, (others, _of_torch) in parts.items():
        write(name, others)
    write("torch", parts["worker"][1])


def compiled(uv: str, name: str) -> list[str]:
    """Each requirement with its hashes as one text."""
    extras = [word for extra in EXTRAS.get(name, ()) for word in ("--extra", extra)]
    source: list[str] = ["pyproject.toml", *extras]
    text: str | None = None
    if name == "build":
        source, text = ["-"], "\n".join(_build_packages())
    options = ["--universal", "--python-version", PYTHON.get(name, "3.11"), "--generate-hashes"]
    plain = ["--quiet", "--no-emit-index-url", "--no-annotate", "--no-header"]
    # Like the service itself, it is installed from this repository.
    plain += ["--no-emit-package", "finetune-client"]
    made = subprocess.run(
        [uv, "pip", "compile", *source, "-c", "constraints.txt", *options, *plain],
        cwd=ROOT,
        check=True,
        input=text,
        stdout=subprocess.PIPE,
        text=True,
    )
    return re.split(r"\n(?=\S)", made.stdout.strip())


def _build_packages() -> list[str]:
    """What builds this package, and those that have no wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [*project["build-system"]["requires"], "wheel"]


def split(requirements: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of PyPI, and those of torch's own index."""
    of_torch = [each for each in requirements if _OF_TORCH.match(each)]
    return [each for each in requirements if each not in of_torch], of_torch


def write(name: str, requirements: Sequence[str]) -> None:
    text = "\n".join([HEADER.format(use=USES[name]).rstrip(), *requirements, ""])
    (FOLDER / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
