"""`training.resume_from`: a job that continues another one's training equals one that was never
interrupted, bit for bit; then its own plan holds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import CheckpointSaved
from service.contract.stage.stages import ResumeSource, StageRequest
from tests.training.checkpointing.resuming import EVERY_STEP, STEPS, evaluations, numbers
from tests.training.support.jobs import Job, Killed, Recorder, at_checkpoint, fails_with, rows, run
from worker.stages.prepare import resumed_job
from worker.storage import atomic_dir

SOURCE = "job-00aa"
FINGERPRINT = "0" * 64

MakeJob = Callable[..., Job]


def source_of(job: Job, step: int, attempt: int = 1) -> ResumeSource:
    folder = job.checkpoint(step, attempt)
    return ResumeSource(
        job=SOURCE,
        step=step,
        folder=folder,
        sha256=atomic_dir.manifest_sha256(folder),
        data_fingerprint=FINGERPRINT,
        model_revision=None,
    )


def continuing(job: Job, source: ResumeSource, attempt: int = 1) -> StageRequest:
    """The first request of a job whose `prepare` has taken the checkpoint over."""
    request = job.request(attempt)
    asked = request.model_copy(update={"resume_source": source})
    taken = resumed_job.taken_over(asked, FINGERPRINT, None)
    assert request.prepared is not None
    assert taken is not None
    prepared = request.prepared.model_copy(update={"resume_source": taken})
    return request.model_copy(update={"prepared": prepared, "resume_from": taken.folder})


class TestBitExact:
    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({}, id="fused adamw, linear"),
            pytest.param(
                {"bf16": True, "optim": "adafactor"},
                id="bf16, adafactor",
                marks=pytest.mark.heavy,
            ),
            pytest.param(
                {"optim": "adamw_torch", "lr_scheduler_type": "cosine", "warmup_steps": 0.3},
                id="cosine with warm-up",
            ),
            pytest.param(
                {"optim": "sgd", "lr_scheduler_type": "reduce_lr_on_plateau"}, id="by metric"
            ),
        ],
    )
    def test_with_the_same_options_it_is_the_uninterrupted_training(
        self, make_job: MakeJob, options: dict[str, Any]
    ) -> None:
        options = {**EVERY_STEP, **options, "validation": rows(5, seed=9)}
        first = make_job(**options)
        whole, recorder = run(first.request())
        request = continuing(other := make_job(**options), source_of(first, 3))
        shutil.rmtree(first.workspace)  # as retention does; the links stay
        made, again = run(request)
        assert made.steps == whole.steps == STEPS
        assert numbers(again, 0) == numbers(recorder, 3)
        assert evaluations(again, 0) == evaluations(recorder, 3)
        assert made.weights_sha256 == whole.weights_sha256
        assert made.baseline == whole.baseline
        assert made.metrics["train_loss"] == whole.metrics["train_loss"]
        paths = {event.path for event in again.of(CheckpointSaved)}
        assert all((other.workspace / path).is_dir() for path in paths)

    def test_more_epochs_are_those_of_the_longer_training(self, make_job: MakeJob) -> None:
        """With a constant rate the two are the same; intervals and limits are the job's own."""
        options = {**EVERY_STEP, "lr_scheduler_type": "constant", "eval_strategy": "no"}
        first = make_job(**{**options, "num_train_epochs": 2})
        run(first.request())
        longer = {**options, "num_train_epochs": 3, "save_steps": 5, "logging_steps": 2}
        whole, recorder = run(make_job(**longer).request())
        made, again = run(continuing(make_job(**longer), source_of(first, 8)))
        assert made.steps == 12
        assert made.weights_sha256 == whole.weights_sha256
        assert numbers(again, 0) == numbers(recorder, 8)
        assert again.checkpoint_steps() == [10, 12]

    def test_the_rate_is_that_of_the_longer_schedule_from_the_first_step_on(
        self, make_job: MakeJob
    ) -> None:
        """At its end a linear schedule is at 0, and a step with that would be lost."""
        options = {**EVERY_STEP, "eval_strategy": "no"}
        first = make_job(**{**options, "num_train_epochs": 1})
        _, before = run(first.request())
        longer = {**options, "num_train_epochs": 2}
        _, recorder = run(make_job(**longer).request())
        _, again = run(continuing(make_job(**longer), source_of(first, 4)))
        expected = numbers(recorder, 4)["learning_rate"]
        assert numbers(again, 0)["learning_rate"] == expected
        assert min(expected.values()) > 0
        assert list(expected) == [5, 6, 7, 8]
        assert before.train_values("learning_rate") != recorder.train_values("learning_rate")

    def test_killed_it_resumes_from_its_own_checkpoint(self, make_job: MakeJob) -> None:
        options = {**EVERY_STEP, "validation": rows(5, seed=9)}
        first = make_job(**options)
        whole, recorder = run(first.request())
        job = make_job(**options)
        request = continuing(job, source_of(first, 3))
        with pytest.raises(Killed):
            run(request, Recorder(kill_after=at_checkpoint(6)))
        own = job.checkpoint(6)
        retried = job.request(2, resume_from=own).model_copy(update={"prepared": request.prepared})
        assert request.continues_other_job
        assert not retried.continues_other_job
        made, again = run(retried)
        assert numbers(again, 0) == numbers(recorder, 6)
        assert made.weights_sha256 == whole.weights_sha256


class TestWhatItBeginsWith:
    """No model after the first step is better than the one that it begins with."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 10,  # 4 steps
        "learning_rate": 0.0,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "best",
        "load_best_model_at_end": True,
    }

    def test_an_evaluated_model_is_saved_and_can_be_the_best(self, make_job: MakeJob) -> None:
        options = {**self.OPTIONS, "validation": rows(5, seed=9)}
        first = make_job(**{**options, "save_strategy": "steps", "save_steps": 1})
        run(first.request())
        job = make_job(**options)
        made, again = run(continuing(job, source_of(first, 2)))
        (saved,) = again.of(CheckpointSaved)
        assert (saved.step, saved.best) == (2, True)
        assert (made.steps, made.model_step, made.best_step) == (4, 2, 2)

    def test_a_rollback_can_return_to_it(self, make_job: MakeJob) -> None:
        options: dict[str, Any] = {"num_train_epochs": 1, "per_device_train_batch_size": 10}
        first = make_job(**options, save_steps=1)
        run(first.request())
        job = make_job(**options, on_non_finite="rollback", save_strategy="no")
        _, again = run(continuing(job, source_of(first, 2)))
        assert again.checkpoint_steps() == [2]


class TestRefusals:
    @pytest.fixture(scope="class")
    def kept(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("kept") / "workspace"

    @pytest.fixture
    def first(self, make_job: MakeJob, kept: Path) -> Job:
        """Trained once, and copied for each test."""
        job = make_job(**EVERY_STEP, validation=rows(5, seed=9))
        if kept.exists():
            shutil.copytree(kept, job.workspace)
            return job
        with pytest.raises(Killed):
            run(job.request(), Recorder(kill_after=at_checkpoint(4)))
        shutil.copytree(job.workspace, kept)
        return job

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"max_steps": 4}, "step 4, but this job has only 4 steps: raise"),
            ({"max_steps": 2}, "step 4, but this job has only 2 steps: raise"),
            ({"bf16": True}, "`training.precision` is `bf16`, but .* trained in `fp32`"),
        ],
    )
    def test_it_does_not_go_with_the_plan(
        self, make_job: MakeJob, first: Job, options: dict[str, Any], words: str
    ) -> None:
        job = make_job(**{**EVERY_STEP, **options}, validation=rows(5, seed=9))
        with fails_with(FailureCode.INVALID_OPTION, words):
            run(continuing(job, source_of(first, 4)))

    def test_a_training_that_stopped_early_needs_more_patience(self, make_job: MakeJob) -> None:
        options = {**EVERY_STEP, "learning_rate": 0.0, "eval_steps": 1}
        options |= {"metric_for_best_model": "loss", "validation": rows(5, seed=9)}
        first = make_job(**options, early_stopping_patience=2)
        stopped, _ = run(first.request())
        assert stopped.steps == 3
        again = make_job(**options, early_stopping_patience=2)
        with pytest.raises(StageError, match="2 evaluations without improvement: raise"):
            run(continuing(again, source_of(first, 3)))
        patient = make_job(**options, early_stopping_patience=4)
        made, _ = run(continuing(patient, source_of(first, 3)))
        assert made.steps == 5

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"data_fingerprint": "f" * 64}, r"f{64}, and of this job's 0{64}"),
            ({"model_revision": "c" * 40}, r"set `model.revision`"),
        ],
    )
    def test_other_data_or_another_commit_of_the_base_model(
        self, make_job: MakeJob, first: Job, change: dict[str, str], words: str
    ) -> None:
        source = source_of(first, 4).model_copy(update=change)
        with fails_with(FailureCode.INVALID_OPTION, words):
            continuing(make_job(**EVERY_STEP, validation=rows(5, seed=9)), source)

    @pytest.mark.parametrize("damage", ["changed", "replaced", "removed"])
    def test_a_checkpoint_that_is_not_as_it_was(
        self, make_job: MakeJob, first: Job, damage: str
    ) -> None:
        source = source_of(first, 4)
        folder = Path(source.folder)
        if damage == "changed":
            (folder / "optimizer.pt").write_bytes(b"other")
        elif damage == "replaced":
            source = source.model_copy(update={"sha256": "e" * 64})
        else:
            atomic_dir.remove(folder)
        with fails_with(
            FailureCode.CHECKPOINT_UNREADABLE, f"step 4 of job {SOURCE} cannot be read"
        ):
            continuing(make_job(**EVERY_STEP, validation=rows(5, seed=9)), source)

    def test_prepared_again_it_must_be_the_same(self, make_job: MakeJob, first: Job) -> None:
        job = make_job(**EVERY_STEP, validation=rows(5, seed=9))
        request = continuing(job, source_of(first, 4))
        other = source_of(first, 3)
        again = request.model_copy(update={"resume_source": other})
        with fails_with(FailureCode.DATA_CHANGED, "not the one that this job started from"):
            resumed_job.taken_over(again, FINGERPRINT, None)
        assert request.prepared is not None
        own = request.prepared.resume_source
        again = request.model_copy(update={"resume_source": own})
        assert resumed_job.taken_over(again, FINGERPRINT, None) == own
