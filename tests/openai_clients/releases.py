"""The releases of the `openai` package that the suite runs, each from a folder of its own."""

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_FOLDER: Final = Path(sys.prefix) / "clients"
_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_SCRIPTS: Final = "tests.openai_clients.scripts"


@dataclass(frozen=True)
class Release:
    name: str
    version: str
    """What the script must find, so that no other one is tested by mistake."""
    folder: Path | None
    """None: where the tests' own packages are."""

    def run(self, script: str, url: str, *arguments: str, seconds: float = 120) -> None:
        """Run one of `scripts` with this client. pytest.fail with what it printed."""
        if self.folder is not None and not self.folder.is_dir():
            pytest.skip(f"no openai {self.version} here: `make openai-clients` installs it")
        folders = [_ROOT] if self.folder is None else [self.folder, _ROOT]
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
        }
        done = subprocess.run(
            [sys.executable, "-m", f"{_SCRIPTS}.{script}", self.version, *arguments],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        if done.returncode != 0:
            pytest.fail(f"{script} with openai {self.version}:\n{done.stdout[-6000:]}")


NEWEST: Final = Release("openai-3", importlib.metadata.version("openai"), None)
OLDER: Final = tuple(
    Release(
        file.stem, re.findall(r"^openai==(.+)$", file.read_text(), re.M)[0], _FOLDER / file.stem
    )
    for file in sorted(_HERE.glob("openai-*.txt"))
)
"""`make openai-clients` installs what these files name."""
EACH: Final = (
    pytest.param(NEWEST, id=NEWEST.name),
    *(pytest.param(older, id=older.name, marks=pytest.mark.heavy) for older in OLDER),
)
"""For `parametrize`: the newest in CI, the others before a release."""
