"""Commands in a shell of their own that leaves no process behind."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

Shell = subprocess.Popen[str]
_SHOWN = 6000


def start(script: str, folder: Path, environment: Mapping[str, str]) -> Shell:
    return subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def printed(shell: Shell, seconds: float) -> str:
    """All that it prints until it ends. AssertionError with this if it fails or takes longer."""
    try:
        text, _ = shell.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(shell)
        text, _ = shell.communicate()
        raise AssertionError(f"still running after {seconds:.0f} s:\n{text[-_SHOWN:]}") from None
    except BaseException:
        end(shell)
        raise
    assert shell.returncode == 0, text[-_SHOWN:]
    return text


def end(shell: Shell) -> None:
    """Kill it and whatever it started, if it still runs."""
    if shell.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
