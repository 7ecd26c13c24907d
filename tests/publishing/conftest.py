"""A finished tiny model in a workspace, and the publish stage as the supervisor starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.contract.events import (
    STAGE_EVENT,
    ArtifactWritten,
    Failed,
    Finished,
    Notice,
    StageEvent,
)
from service.contract.stages import (
    EVENT_FD_VARIABLE,
    PrepareResult,
    PublishResult,
    StageRequest,
    TrainResult,
)
from service.contract.states import Stage
from tests.fakes.hub import HubDouble
from tests.support.factories import make_spec
from tests.support.models import save_tiny_bert

TOKEN = "hf_publishTests0123456789"
PREPARED = PrepareResult(
    prepared_dir=Path("prepared"),
    model_dir=Path("model"),
    tokenizer_dir=Path("model"),
    model_revision="a" * 40,
    dataset_revision="b" * 40,
    data_fingerprint="c" * 64,
    splits={"train": {"examples": 90, "features": 113}, "validation": {"examples": 10}},
)
TRAINED = TrainResult(
    output_dir="attempts/1/output",
    steps=20,
    epochs=2.0,
    metrics={"eval_loss": 1.5, "eval_exact_match": 61.25, "eval_f1": 72.5, "train_loss": 2.0},
    baseline={"eval_loss": 5.5, "eval_exact_match": 0.5, "eval_f1": 3.25},
    best_step=10,
    best_metric=72.5,
    metric_for_best_model="f1",
    model_step=10,
    weights_sha256="d" * 64,
    precision="fp32",
)


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with HubDouble({TOKEN: {"org"}}) as hub:
        yield hub


@pytest.fixture(scope="session")
def tiny_qa_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A question answering model as the train stage leaves it: save_pretrained of both parts."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    base = save_tiny_bert(tmp_path_factory.mktemp("base"))
    folder = tmp_path_factory.mktemp("finished")
    AutoModelForQuestionAnswering.from_pretrained(base).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def make_request(workspace: Path, epoch: int = 2, **changes: Any) -> StageRequest:
    """A request of the publish stage; `spec` replaces fields of the spec."""
    attempt_dir = workspace / "attempts" / str(epoch)
    attempt_dir.mkdir(parents=True, exist_ok=True)
    spec = make_spec(**changes.pop("spec", {}))
    return StageRequest(
        job_id="job-1",
        stage=Stage.PUBLISH,
        epoch=epoch,
        attempt=1,
        spec=spec,
        workspace=workspace,
        attempt_dir=attempt_dir,
        cache_dir=workspace / "cache",
        **{"prepared": PREPARED, "trained": TRAINED, **changes},
    )


@dataclass
class Published:
    """The result of a run of the stage."""

    status: int
    events: list[StageEvent]
    raw: str
    log: str

    @property
    def result(self) -> PublishResult:
        (finished,) = [event for event in self.events if isinstance(event, Finished)]
        return PublishResult.model_validate(finished.result)

    @property
    def failure(self) -> tuple[str, str]:
        (failed,) = [event for event in self.events if isinstance(event, Failed)]
        return failed.failure.code, failed.failure.message

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]

    @property
    def artifacts(self) -> dict[str, ArtifactWritten]:
        return {event.name: event for event in self.events if isinstance(event, ArtifactWritten)}


Run = Callable[..., Published]


@pytest.fixture
def run(hub: HubDouble, tmp_path: Path, tiny_qa_model: Path) -> Run:
    """Runs the stage as a child process. `token=None` leaves the operator's token unset."""
    workspace = tmp_path / "job"
    output = workspace / str(TRAINED.output_dir)
    output.parent.mkdir(parents=True)
    output.symlink_to(tiny_qa_model, target_is_directory=True)

    def run(token: str | None = TOKEN, epoch: int = 2, **changes: Any) -> Published:
        request = make_request(workspace, epoch, hub_endpoint=hub.endpoint, **changes)
        file = request.attempt_dir / "request.json"
        file.write_text(request.model_dump_json())
        ours = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        return start(file, ours | hub.environment(tmp_path / "hf", token))

    return run


def start(file: Path, environment: dict[str, str]) -> Published:
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "worker.stages.publish", str(file)],
        env=environment | {EVENT_FD_VARIABLE: str(writer)},
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(writer)
    log, _ = child.communicate(timeout=200)
    with os.fdopen(reader) as pipe:
        lines = pipe.readlines()
    events = [STAGE_EVENT.validate_python(json.loads(line)) for line in lines]
    return Published(child.returncode, events, "".join(lines), log)
