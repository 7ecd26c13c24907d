"""The code of a model's card, as a user would run it."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def code_of(card: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    return str(code)


def run_here(card: str, folders: Mapping[str, Path]) -> str:
    """The output of the card's code, with these folders in place of those that it names."""
    code = code_of(card)
    for name, folder in folders.items():
        code = code.replace(name, str(folder))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue().strip()


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
