"""`worker.inference` in a process of its own: the command line never imports torch."""

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from service import inherited_secrets, own_packages
from service.cli.exit_codes import UsageError
from service.cli.hub_environment import hub_environment
from service.contract.inference import Answers, InferenceRequest, Rows

_NEEDED: Final = ("torch", "transformers", "accelerate", "datasets", "peft")
_DEVICE: Final = re.compile(r"cpu|(?:cuda|gpu)(?::(\d{1,3}))?")


def require_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`finetune try` runs the model on this machine, and here {', '.join(missing)} cannot "
            "be imported: install finetune-service[worker], or let the service predict with a job "
            "of `mode: predict` (`finetune docs evaluate-and-predict`)"
        )


def is_gpu(device: str) -> bool:
    """UsageError for something that is not a device."""
    if _DEVICE.fullmatch(device) is None:
        raise UsageError(f"--device {device!r} is not cpu, cuda or cuda:N")
    return device != "cpu"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="finetune-try-") as folder:
        yield Path(folder)


class Model:
    """A model that is loaded in another process; use as a context manager."""

    def __init__(self, request: InferenceRequest, device: str) -> None:
        environment, secrets = _environment(device)
        with inherited_secrets.pipe(secrets) as (variables, descriptors):
            self._process = subprocess.Popen(
                own_packages.python("worker.inference"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment | variables,
                pass_fds=descriptors,
                encoding="utf-8",
            )
        self._request: BaseModel | None = request

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()

    def answer(self, rows: Sequence[dict[str, Any]]) -> Answers:
        """The answers, or why there are none. UsageError if the process has ended."""
        try:
            if self._request is not None:
                self._send(self._request)
                self._request = None
            self._send(Rows(rows=list(rows)))
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise UsageError(f"the process with the model ended with status {status}")
        return Answers.model_validate_json(line)

    def _send(self, line: BaseModel) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.model_dump_json() + "\n")
        self._process.stdin.flush()


def _environment(device: str) -> tuple[dict[str, str], dict[str, str]]:
    """(Variables, secrets); without GPUs unless one is asked for."""
    match = _DEVICE.fullmatch(device)
    assert match is not None, "checked by is_gpu"
    shown = {} if device != "cpu" else {"CUDA_VISIBLE_DEVICES": ""}
    if match[1] is not None:
        shown = {"CUDA_VISIBLE_DEVICES": match[1]}
    environment, secrets = hub_environment()
    return {**environment, "TRANSFORMERS_VERBOSITY": "error", **shown}, secrets
