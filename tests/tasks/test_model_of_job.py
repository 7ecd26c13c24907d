"""Masked LM on a corpus, then question answering: a job that begins with what another has made."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.stage.stages import BaseJob, TrainResult
from service.contract.states import Stage
from tests.support.models import save_tiny_bert
from tests.tasks.samples import QUESTION, TEXT
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import Recorder, fails_with
from worker.publishing import hub_repository, model_card
from worker.stages.prepare import stage
from worker.supervision import base_job
from worker.training.checkpointing import weights

pytestmark = pytest.mark.usefixtures("trainings")

BASE = "job-00aa"
TRAINING = {"max_steps": 3, "save_steps": 1, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def corpus_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[StagedJob, TrainResult]:
    folder = tmp_path_factory.mktemp("corpus")
    task = {"type": "masked-lm", "max_seq_length": 16}
    job = job_of(folder, task, save_tiny_bert(folder / "model"), {"train": [TEXT] * 8}, TRAINING)
    result, _ = job.train()
    return job, result


def begun_with(
    folder: Path, corpus: tuple[StagedJob, TrainResult], step: int | None, **changes: Any
) -> StagedJob:
    """A prepared question-answering job whose model is that of the corpus job."""
    job, result = corpus
    output = job.output(result)
    base = BaseJob(
        job=BASE,
        step=step,
        folder=output if step is None else output.parent / "checkpoints" / str(step),
        finished=output,
        sha256="a" * 64,
        name="org/bert",
        revision=None,
    )
    task = {"type": "question-answering", "max_seq_length": 32, "doc_stride": 8}
    sections = {"training": TRAINING, "model": {"job": BASE}, **changes}
    staged = job_of(folder, task, "", {"train": [QUESTION] * 8})
    staged.body |= sections
    request = staged.request(Stage.PREPARE, attempt=1).model_copy(update={"base_job": base})
    recorder = Recorder()
    staged.prepared = stage.main(request, recorder)  # type: ignore[arg-type]
    staged.notices = recorder.events
    return staged


def encoder(folder: Path) -> dict[str, torch.Tensor]:
    held = load_file(folder / "model.safetensors")
    return {name: value for name, value in held.items() if name.startswith("bert.embeddings")}


class TestBegin:
    def test_with_the_finished_model(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        job = begun_with(tmp_path, corpus_job, None)
        corpus, result = corpus_job
        weights = job.prepared.model_dir / "model.safetensors"
        assert weights.readlink() == corpus.output(result) / weights.name
        assert job.prepared.base_job is not None
        assert job.prepared.base_job.name == "org/bert"
        notices = [event for event in job.notices if isinstance(event, Notice)]
        assert notices[0].message == f"Starts from the finished model of {BASE}"
        trained, recorder = job.train()
        assert trained.steps == 3
        assert any("qa_outputs" in str(event.data) for event in recorder.of(Notice))

    def test_with_a_checkpoint_whose_files_stay_when_it_is_removed(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        job = begun_with(tmp_path, corpus_job, 1)
        folder = job.prepared.model_dir
        corpus, result = corpus_job
        output = corpus.output(result)
        checkpoint = output.parent / "checkpoints" / "1"
        assert encoder(folder).keys() == encoder(output).keys() != set()
        for name, value in encoder(folder).items():
            assert torch.equal(value, encoder(checkpoint)[name])
        assert any(not torch.equal(v, encoder(output)[n]) for n, v in encoder(folder).items())
        files = {path.name for path in folder.iterdir()}
        assert files == {path.name for path in output.iterdir()}  # no optimizer, no manifest
        assert all(path.resolve().is_relative_to(job.workspace) for path in folder.iterdir())
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
        assert model.config.architectures == ["BertForMaskedLM"]

    def test_the_weights_of_the_first_step_are_those_of_the_other_job(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        changes = {"training": TRAINING | {"learning_rate": 0.0, "max_steps": 1}}
        job = begun_with(tmp_path, corpus_job, None, **changes)
        trained, _ = job.train()
        corpus, result = corpus_job
        before = encoder(corpus.output(result))
        after = encoder(job.output(trained))
        assert all(torch.equal(after[name], value) for name, value in before.items())

    def test_a_checkpoint_of_an_older_release_takes_its_settings_from_the_finished_model(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        corpus, result = corpus_job
        settings = hub_repository.settings_dir((corpus.output(result)).parent)
        aside = settings.with_name("aside")
        settings.rename(aside)
        try:
            job = begun_with(tmp_path, corpus_job, 2)
        finally:
            aside.rename(settings)
        assert (job.prepared.model_dir / "config.json").is_file()

    def test_prepared_again_it_must_be_the_same_model(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        job = begun_with(tmp_path, corpus_job, None)
        assert job.prepared.base_job is not None
        other = job.prepared.base_job.model_copy(update={"sha256": "b" * 64})
        request = job.request(Stage.PREPARE, attempt=3).model_copy(update={"base_job": other})
        with fails_with(FailureCode.DATA_CHANGED, "not the one that this job began with"):
            stage.main(request, Recorder())  # type: ignore[arg-type]


class TestNames:
    def test_the_card_names_the_model_that_all_began_with(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        job = begun_with(tmp_path, corpus_job, None)
        trained, _ = job.train()
        request = job.request(Stage.PUBLISH, attempt=3)
        named = base_job.named(request.spec, job.prepared)
        request = request.model_copy(update={"spec": named, "trained": trained})
        card = model_card.render(request, job.prepared, trained)
        assert "\nbase_model: org/bert\n" in card
        assert f"`{BASE}`" in card
        # As it comes back from the request's file.
        assert JobSpec.model_validate(named.model_dump(mode="json")) == named

    def test_an_adapter_names_the_job(
        self, tmp_path: Path, corpus_job: tuple[StagedJob, TrainResult]
    ) -> None:
        job = begun_with(tmp_path, corpus_job, None, peft={"method": "lora", "r": 2})
        assert job.prepared.base_job is not None
        base = job.prepared.base_job.model_copy(update={"name": f"/{BASE}"})
        prepared = job.prepared.model_copy(update={"base_job": base})
        spec = base_job.named(job.request().spec, prepared)
        job.body = spec.model_dump(mode="json")
        trained, _ = job.train()
        file = job.output(trained) / "adapter_config.json"
        assert json.loads(file.read_bytes())["base_model_name_or_path"] == BASE
        assert weights.identity(prepared.model_dir)
