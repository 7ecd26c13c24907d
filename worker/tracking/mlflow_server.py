"""`mlflow server` in one process, with a token: `python -m worker.tracking.mlflow_server OPTIONS`.

The options are those of `mlflow server`; FINETUNE_MLFLOW_TOKEN_FILE names the file with the token.

MLflow starts uvicorn as a child and only forwards signals. Here uvicorn replaces this process,
which saves memory and leaves no child behind when the parent is killed.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlflow import server
from mlflow.cli import cli

from service.system import own_packages

_MLFLOW_APP: Final = "mlflow.server.fastapi_app:app"
_OUR_APP: Final = "worker.tracking.mlflow_app:app"


def _exec(command: Sequence[object], *, extra_env: Mapping[str, str], **_: Any) -> None:
    words = [_OUR_APP if word == _MLFLOW_APP else str(word) for word in command]
    if _OUR_APP not in words:
        sys.exit("this version of MLflow starts in another way: its server would have no login")
    # uvicorn puts a folder first on its path: the current one, unless it is given another.
    words += ["--app-dir", str(own_packages.FOLDER)]
    os.execvpe(words[0], words, {**os.environ, **extra_env})


def main() -> None:
    own_packages.come_first()
    os.umask(0o077)
    if not hasattr(server, "_exec_cmd"):
        sys.exit("this version of MLflow starts in another way: its server would have no login")
    vars(server)["_exec_cmd"] = _exec
    cli(["server", *sys.argv[1:]])


if __name__ == "__main__":
    main()
