"""`mlflow server` in one process: `python -m worker.tracking.mlflow_server <its options>`.

MLflow starts uvicorn as a child and only forwards signals. Here uvicorn replaces this process,
which saves memory and leaves no child behind when the parent is killed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow import server
from mlflow.cli import cli


def _exec(command: Sequence[object], *, extra_env: Mapping[str, str], **_: Any) -> None:
    words = [str(word) for word in command]
    os.execvpe(words[0], words, {**os.environ, **extra_env})


def main() -> None:
    # A later MLflow that does not call this runs its server as two processes, which works too.
    vars(server)["_exec_cmd"] = _exec
    cli(["server", *sys.argv[1:]])


if __name__ == "__main__":
    main()
