"""A finished tiny model in a workspace, and the publish stage as the supervisor starts it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from tests.stages.support import EndedStage, StageServer
from tests.support.factories import make_spec
from tests.support.hub import HubDouble
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


Run = Callable[..., EndedStage]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Iterator[StageServer]:
    """Each request names its test's Hub; the client's variables lead to none."""
    folder = tmp_path_factory.mktemp("server")
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hf")}
    variables |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    server = StageServer(folder, variables, "publish")
    yield server
    server.close()


@pytest.fixture
def run(server: StageServer, hub: HubDouble, tmp_path: Path, tiny_qa_model: Path) -> Run:
    """Runs the stage in the shared child. `token=None` leaves the operator's token unset."""
    workspace = tmp_path / "job"
    output = workspace / str(TRAINED.output_dir)
    output.parent.mkdir(parents=True)
    output.symlink_to(tiny_qa_model, target_is_directory=True)

    def run(token: str | None = TOKEN, epoch: int = 2, **changes: Any) -> EndedStage:
        request = make_request(workspace, epoch, hub_endpoint=hub.endpoint, **changes)
        return server.run(write(request), token)

    return run


def write(request: StageRequest) -> Path:
    file = request.attempt_dir / "request.json"
    file.write_text(request.model_dump_json())
    return file
