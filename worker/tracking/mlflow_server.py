"""`mlflow server` in one process: `python -m worker.tracking.mlflow_server <its options>`.

MLflow starts uvicorn as a child and only passes on signals. Here uvicorn takes the place of this
process, which saves its memory, and the child that would stay behind when its parent is killed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow import server
from mlflow.cli import cli


def _become(command: Sequence[object], *, extra_env: Mapping[str, str], **_: Any) -> None:
    words = [str(word) for word in command]
    os.execvpe(words[0], words, {**os.environ, **extra_env})


def main() -> None:
    # Where a later MLflow does not call this, its server is two processes again, and works.
    vars(server)["_exec_cmd"] = _become
    cli(["server", *sys.argv[1:]])


if __name__ == "__main__":
    main()
