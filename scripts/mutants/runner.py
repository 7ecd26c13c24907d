"""Runs tests against changed sources, in a copy of the tree and in forked processes.

The process that forks imports once what the tests take from elsewhere (pytest, torch,
SQLAlchemy …); each run then imports only the project itself, with the change in it.
"""

import atexit
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

_OURS: Final = {"service", "worker", "tests", "migrations", "benchmarks", "scripts", "__main__"}
_PYTEST: Final = ("-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=0", "--assert=plain")


@dataclass(frozen=True)
class Run:
    code: int | None
    """pytest's exit status; None: it took too long."""
    seconds: float
    output: str


class Tree:
    """A copy of the files that git knows or does not ignore."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._run_folder = folder / "run"
        self._writes = int(time.time())
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=repository,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (repository / name).is_file():  # not one that was deleted meanwhile
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(repository / name, self.root / name)

    def write(self, path: str, source: str) -> None:
        """Python recompiles a source by its time in whole seconds: each write has another one."""
        self._writes += 1
        (self.root / path).write_text(source)
        os.utime(self.root / path, (self._writes, self._writes))

    def run(self, tests: Sequence[str], limit: float) -> Run:
        """pytest over `tests` until the first failure."""
        shutil.rmtree(self._run_folder, ignore_errors=True)
        self._run_folder.mkdir()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            self._be_pytest(tests)
        ended = _ends_within(child, limit)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has started
        _, status = os.waitpid(child, 0)
        output = (self._run_folder / "output").read_text(errors="replace")
        self._import_what_it_imported()
        code = os.waitstatus_to_exitcode(status) if ended else None
        return Run(code, time.monotonic() - began, output)

    def _be_pytest(self, tests: Sequence[str]) -> NoReturn:
        code = 1
        try:
            os.setsid()
            with (self._run_folder / "output").open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.chdir(self.root)
            os.environ["PYTHONPATH"] = str(self.root)
            sys.path.insert(0, str(self.root))
            import pytest

            base = self._run_folder / "tmp"
            code = int(pytest.main([*_PYTEST, f"--basetemp={base}", *tests]))
            modules = [name for name in sys.modules if name.partition(".")[0] not in _OURS]
            (self._run_folder / "modules").write_text(json.dumps(modules))
            atexit._run_exitfuncs()  # servers that the tests have started end so
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _import_what_it_imported(self) -> None:
        with suppress(FileNotFoundError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in json.loads((self._run_folder / "modules").read_text()):
                if name not in sys.modules:
                    with suppress(Exception):
                        importlib.import_module(name)


def _ends_within(process: int, seconds: float) -> bool:
    descriptor = os.pidfd_open(process)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
