"""Programs that tests need: found, or in CI installed from Debian's packages."""

import os
import shutil
import subprocess
from pathlib import Path


class UnavailableError(Exception):
    """No such server answers and none can be started; the message names what was tried."""


def program(name: str, package: str, *folders: str) -> str:
    """Path of a program in PATH or in one of `folders` (patterns below /, the last match wins).

    Where CI=true or FINETUNE_TEST_INSTALL=1 its package is installed if need be; a developer's
    machine is left as it is, with UnavailableError.
    """
    found = _find(name, folders)
    if found is None and _may_install():
        _install(package)
        found = _find(name, folders)
    if found is None:
        raise UnavailableError(
            f"no {name} here; FINETUNE_TEST_INSTALL=1 installs {package} (root, Debian)"
        )
    return found


def _find(name: str, folders: tuple[str, ...]) -> str | None:
    found = [path for folder in folders for path in sorted(Path("/").glob(f"{folder}/{name}"))]
    return str(found[-1]) if found else shutil.which(name)


def _may_install() -> bool:
    wanted = os.environ.get("CI") == "true" or os.environ.get("FINETUNE_TEST_INSTALL") == "1"
    return wanted and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(package: str) -> None:
    environment = os.environ | {
        "DEBIAN_FRONTEND": "noninteractive",
        # Postgres's package would make a cluster and start it; tests start their own.
        "RUNLEVEL": "1",
    }
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments], env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise UnavailableError(f"apt-get {arguments[0]} failed: {done.stderr[-500:]}")
