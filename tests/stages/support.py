"""Stages as the supervisor starts them: a child process with an event pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from service.contract.failures import Failure
from service.contract.stage.events import (
    STAGE_EVENT,
    ArtifactWritten,
    Failed,
    Finished,
    Notice,
    PhaseChanged,
    StageEvent,
)
from service.contract.stage.stages import EVENT_FD_VARIABLE
from tests.data.squad_sample import squad_file
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.processes.fork_protocol import LAUNCHER

TOKEN: Final = "hf_" + "t" * 34


@dataclass
class EndedStage:
    """All events of a stage, and how it ended."""

    status: int
    events: list[StageEvent]
    log: str

    @property
    def failure(self) -> Failure:
        assert isinstance(self.events[-1], Failed), self.log
        return self.events[-1].failure

    @property
    def result(self) -> dict[str, Any]:
        assert isinstance(self.events[-1], Finished), self.log
        return self.events[-1].result

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]

    @property
    def artifacts(self) -> dict[str, ArtifactWritten]:
        return {event.name: event for event in self.events if isinstance(event, ArtifactWritten)}


class Running:
    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        takes_input: bool = False,
    ) -> None:
        reader, writer = os.pipe()
        self.events = os.fdopen(reader, "rb")
        self.log = log
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FINETUNE_"))}
        variables |= {"OMP_NUM_THREADS": "1"}
        variables |= {EVENT_FD_VARIABLE: str(writer), **environment}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=output,
                stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                text=True,
                pass_fds=(writer,),
                env=variables,
            )
        os.close(writer)

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> EndedStage:
        lines = self.events.readlines()
        self.events.close()
        status = self.process.wait()
        whole = [line for line in lines if line.endswith(b"\n")]
        return EndedStage(
            status, [STAGE_EVENT.validate_json(line) for line in whole], self.log.read_text()
        )


def write_request(
    folder: Path, spec: Mapping[str, Any], *, cache_dir: Path | None = None, **request: Any
) -> Path:
    """A `prepare` request whose attempt has `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "job_id": "job-1",
        "stage": "prepare",
        "epoch": 1,
        "attempt": 1,
        "spec": spec,
        "workspace": str(folder),
        "attempt_dir": str(folder),
        "cache_dir": str(cache_dir or folder / "cache"),
    }
    path = folder / "request.json"
    path.write_text(json.dumps(body | request, default=str))
    return path


FORKED: Final = (
    "worker.stages.prepare.stage",
    "tests.training.support.two",
    "tests.training.support.tiny_stage",
    "tests.stages.rank_stub",
    "tests.stages.body_stage",
)
"""What is forked in tests: these, and ranks that run one of them."""


@cache
def fork_server() -> ForkClient:
    """One for all tests of this process, with which it ends: its imports take eight seconds."""
    return ForkClient(fork_environment(), modules=(*FORKED, LAUNCHER), imports=(*FORKED, LAUNCHER))


@cache
def fork_environment() -> dict[str, str]:
    """No Hub answers there."""
    left_out = ("HF_", "FINETUNE_", "PYTEST_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


class Forks:
    """Runs a stage's module, one of `FORKED`, as workers do: forked from a process that has
    imported it."""

    def __init__(self, module: str, hub_cache: Path, *, ranks: int = 1) -> None:
        """`ranks`: more than one are forked by a launcher, which is forked as well."""
        assert module in FORKED
        self._words = [module] if ranks == 1 else [LAUNCHER, str(ranks), module]
        self._environment = {**fork_environment(), "HF_HOME": str(hub_cache)}

    def start(self, request: Path, variables: Mapping[str, str] = {}) -> Child:
        """`variables`: those that a fork can still get, such as HF_TOKEN."""
        command = [sys.executable, "-P", "-m", *self._words, str(request)]
        secrets = {name: variables[name] for name in ("HF_TOKEN",) if name in variables}
        environment = {**self._environment, **variables}
        for name in secrets:
            del environment[name]
        return Child(
            command,
            environment,
            request.parent,
            request.parent / "log",
            start=fork_server().start,
            secrets=secrets,
        )

    def run(self, request: Path, variables: Mapping[str, str] = {}) -> EndedStage:
        return self.wait(self.start(request, variables), request)

    def wait(self, child: Child, request: Path) -> EndedStage:
        events: list[StageEvent] = []
        with child:
            while not child.at_end:
                events += child.read(10)
            return EndedStage(child.reap(), events, (request.parent / "log").read_text())


class StageServer:
    """One child that runs stages on request after request: imports take seconds, runs do not.

    It knows one Hub, as any stage does; the token changes from request to request.
    """

    PROGRAM = """
import importlib, json, os, sys
from service.contract.stage.stages import EVENT_FD_VARIABLE
from worker.stages import base
stages = {
    name: importlib.import_module(f"worker.stages.{name}.stage") for name in sys.argv[1:]
}
descriptor = int(os.environ[EVENT_FD_VARIABLE])
channel = base.Channel(descriptor)
for line in sys.stdin:
    os.environ.pop("HF_TOKEN", None)
    path, _, token = line.strip().partition(" ")
    if token:
        os.environ["HF_TOKEN"] = token
    sys.argv[1:] = [path]
    with open(path) as file:
        stage = stages[json.load(file)["stage"]]
    status = base._run(stage.main, channel)
    sys.stderr.flush()
    os.write(descriptor, b"%d\\n" % status)
"""

    def __init__(self, folder: Path, environment: Mapping[str, str], *stages: str) -> None:
        command = ["-c", self.PROGRAM, *stages]
        self._child = Running(command, folder / "log", environment, takes_input=True)

    def run(self, request: Path, token: str | None = None) -> EndedStage:
        self._child.write_line(f"{request} {token or ''}")
        begin = self._child.log.stat().st_size
        events: list[StageEvent] = []
        while not (line := self._child.events.readline()).strip().isdigit():
            assert line, self._child.log.read_text()
            events.append(STAGE_EVENT.validate_json(line))
        return EndedStage(int(line), events, self._child.log.read_bytes()[begin:].decode())

    def close(self) -> None:
        self._child.process.communicate()
        self._child.events.close()


OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
Run = Callable[..., EndedStage]


def spec(model: Path | str, *, task: Mapping[str, Any] = {}, **dataset: Any) -> dict[str, Any]:
    files = {"source": "path", "train": str(squad_file("train"))}
    defaults = {"type": "question-answering", "version_2_with_negative": True}
    defaults |= {"max_seq_length": 128, "doc_stride": 32}
    body: dict[str, Any] = {"task": {**defaults, **task}, "dataset": files | dataset}
    return body | {"model": {"name_or_path": str(model)}}


def request(folder: Path, body: Mapping[str, Any], **more: Any) -> Path:
    roots = {"data_roots": [squad_file("train").parent, folder], "model_roots": [folder]}
    return write_request(folder / "job", body, **{**roots, **more})


def phases(ended: EndedStage) -> list[str]:
    return [event.phase for event in ended.events if isinstance(event, PhaseChanged)]


REQUEST = {
    "job_id": "job-1",
    "stage": "train",
    "epoch": 1,
    "attempt": 1,
    "spec": {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "squad"},
    },
    "workspace": "w",
    "attempt_dir": "a",
    "cache_dir": "c",
}
