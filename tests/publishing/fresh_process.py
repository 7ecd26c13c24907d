"""Code in a process of its own, as a user would run it."""

import os
import subprocess
import sys


def run_code(code: str, environment: dict[str, str]) -> str:
    """The output of `code` in a fresh process that gets the Hub only from its variables."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ours | environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
