"""A finished model that is loaded once and predicts rows, as a job with `mode: predict` does."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accelerate import Accelerator
from accelerate.utils import set_seed

from service.contract.interactive.predictions import PredictionResult
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST
from service.contract.stage.events import Notice, StageEvent
from service.contract.stage.prediction_events import TrainedModel
from service.contract.stage.stages import PrepareResult, StageRequest
from service.contract.states import Stage
from worker.base_model import checks, finished_model
from worker.data import sources
from worker.inference import model_folder, rows, spec
from worker.inference.rows import ROWS_FILE
from worker.stages.base import Channel
from worker.stages.prepare.data import Preparation
from worker.stages.prepare.data_reporter import DataReporter
from worker.stages.prepare.events import Events
from worker.stages.prepare.model import Model
from worker.stages.train import evaluate
from worker.stages.train.inputs import for_device, load_parts
from worker.tasks import registry
from worker.tasks.base import Task, load_splits
from worker.training import build
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation.evaluator import Evaluator

_OF_JOBS: Final = frozenset(("inferred", "unused_column"))
"""Options that a job's author may set, but a user of its model may not."""
_MOST_NOTICES: Final = 100


class _Notices(Channel):
    """Keeps the messages of notices; other events have no reader."""

    def __init__(self) -> None:
        super().__init__(os.open(os.devnull, os.O_WRONLY), is_silent=True)
        self.messages: list[str] = []

    def send(self, event: StageEvent) -> None:
        if isinstance(event, Notice) and _OF_JOBS.isdisjoint(event.data):
            self.messages.append(event.message)

    def taken(self) -> list[str]:
        messages, self.messages = self.messages, []
        return messages


@dataclass(frozen=True)
class _Loaded:
    request: StageRequest
    """Of the first rows, with the precision that `auto` means here."""
    accelerator: Accelerator
    model: Any
    """As it is called: with its adapter, wrapped by Accelerate."""
    own: Any
    """Without these."""
    tokenizer: Any


class Predictor:
    def __init__(self, trained: TrainedModel, own: Path, *, use_gpu: bool) -> None:
        """Reads the configuration and the tokenizer; the weights are loaded with the first rows.
        Temporary files are in `own`. StageError if the model cannot be used."""
        self._trained = trained
        self._model_dir = model_folder.of_trained(trained, own)
        self._folder = own / "rows"
        self._channel = _Notices()
        self._calls = 0
        self._columns = spec.columns(trained.spec)
        self._plain = first = spec.of_prediction(
            trained.spec, self._model_dir, self._folder / ROWS_FILE, use_gpu=use_gpu
        )
        self._task: Task = registry.get(first.variant())
        read = model_folder.read(
            trained, self._model_dir, self._folder / "base_model", self._task, first
        )
        self._model = Model(read.weights, self._model_dir, None, read.config, read.tokenizer)
        self._adapter = read.adapter
        self._spec = self._complete(first)
        if self._adapter is None:
            finished_model.check_weights(self._spec, self._task, self._model.folder)
        self._fit = checks.check_model(
            self._task,
            self._spec,
            self._model.config,
            self._model.tokenizer,
            self._channel.send,
        )
        self._loaded: _Loaded | None = None

    def predict(self, given: Sequence[dict[str, Any]]) -> PredictionResult:
        """StageError for rows that cannot be used."""
        self._calls += 1
        folder = self._folder / str(self._calls)
        try:
            return self._answers(given, folder)
        finally:  # temporary files may be in memory
            shutil.rmtree(folder, ignore_errors=True)

    def _answers(self, given: Sequence[dict[str, Any]], folder: Path) -> PredictionResult:
        self._channel.taken()
        request = self._written(rows.prepared(given, self._spec.task.type, self._columns), folder)
        prepared = self._prepared(request)
        notices = self._channel.taken()
        loaded = self._loaded = self._loaded or self._load(request, prepared)
        found = rows.answers(self._spec.task.type, self._evaluated(loaded, prepared, folder))
        return PredictionResult(answers=found, notices=notices[:_MOST_NOTICES])

    # ---- the model ------------------------------------------------------------------------------

    def _complete(self, job: JobSpec) -> JobSpec:
        """With the model's labels, and with the adapter, whose virtual tokens take positions."""
        if self._adapter is not None:
            job = job.model_copy(update={"peft": spec.adapter(self._trained.spec)})
        request = self._stage_request(job, self._folder)
        labelled = finished_model.with_labels_of(request, self._task, self._model.config)
        return labelled.spec

    def _load(self, request: StageRequest, prepared: PrepareResult) -> _Loaded:
        request = request.model_copy(update={"prepared": prepared})
        request = for_device(request, self._channel.send)
        accelerator = build.accelerator(request.spec)
        ranks = Ranks.from_accelerator(accelerator)
        set_seed(request.spec.training.seed)
        parts = load_parts(
            request,
            prepared,
            accelerator.device,
            self._channel.send,
            ranks,
            adapter_dir=self._adapter,
        )
        own: Any = parts.model
        if self._adapter is not None:
            own = own.get_base_model()
        model, _ = evaluate.on_device(accelerator, parts.model, request.spec, ranks)
        return _Loaded(request, accelerator, model, own, parts.tokenizer)

    # ---- the rows -------------------------------------------------------------------------------

    def _written(self, prepared_rows: Sequence[dict[str, Any]], folder: Path) -> StageRequest:
        folder.mkdir(parents=True)
        file = folder / ROWS_FILE
        with file.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in prepared_rows)
        dataset = self._spec.dataset.model_copy(update={"test": [str(file)]})
        return self._stage_request(self._spec.model_copy(update={"dataset": dataset}), folder)

    def _stage_request(self, job: JobSpec, folder: Path) -> StageRequest:
        """`job` is not validated: no job that users submit predicts with an adapter."""
        request = StageRequest(
            job_id="job-1",
            stage=Stage.PREPARE,
            epoch=1,
            attempt=1,
            spec=self._plain,
            workspace=folder,
            attempt_dir=folder,
            cache_dir=self._folder,
            data_roots=[self._folder.resolve()],
        )
        return request.model_copy(update={"spec": job})

    def _prepared(self, request: StageRequest) -> PrepareResult:
        events = Events(self._channel.send)
        data = sources.resolve(request, events.progress)
        reporter = DataReporter(request, data, events)
        preparation = Preparation(
            request.spec, self._task, self._model, self._fit.max_length, data, events, reporter
        )
        entry = preparation.run(request.workspace)
        return PrepareResult(
            prepared_dir=entry.folder,
            model_dir=self._model.folder,
            tokenizer_dir=self._model.tokenizer_folder,
            model_revision=None,
            dataset_revision=None,
            data_fingerprint=entry.folder.name,
            splits=entry.splits,
            model_shapes=self._fit.shapes,
        )

    def _evaluated(self, loaded: _Loaded, prepared: PrepareResult, folder: Path) -> dict[str, Path]:
        job = loaded.request.spec
        splits = load_splits(prepared.prepared_dir)
        objective = self._task.bind(job, loaded.tokenizer, loaded.own, splits)
        evaluator = Evaluator(
            loaded.accelerator,
            loaded.model,
            objective,
            job.training,
            lambda: None,
            Ranks.from_accelerator(loaded.accelerator),
        )
        set_seed(job.training.seed)
        found = evaluator(TEST, folder / "predictions")
        assert found is not None, "the rows are the test split"
        return found.files
