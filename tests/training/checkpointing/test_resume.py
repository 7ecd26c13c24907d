"""A resumed training is the uninterrupted one, bit for bit; what cannot be restored is an error."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.faults.small_disk import NoMountError, leave_free, small_disk
from service.contract.failures import FailureCode
from service.contract.stage.events import CheckpointSaved, Metric, PhaseChanged, StageEvent
from service.contract.stage.stages import TrainResult
from service.contract.states import Phase
from tests.stages.support import Forks
from tests.training.checkpointing.resuming import EVERY_STEP, STEPS, evaluations, numbers
from tests.training.support.jobs import Job, Killed, Recorder, at_checkpoint, fails_with, rows, run
from worker.publishing import hub_repository
from worker.stages.base import Stopped
from worker.storage import atomic_dir


def interrupt(job: Job, step: int) -> Path:
    """Run a first attempt until its checkpoint of `step`; returns that."""
    with pytest.raises(Killed):
        run(job.request(1), Recorder(kill_after=at_checkpoint(step)))
    return job.checkpoint(step)


@pytest.fixture
def validation() -> list[dict[str, list[int]]]:
    return rows(5, seed=9)


# Mid-epoch; right before and right after the epoch's shorter last step; the very last.
EVERYWHERE = (1, 3, 4, 6, STEPS)
# For what differs in the state of optimizer, schedule and data, not in where the epoch ends.
IN_BETWEEN = (6,)
VARIANTS = [
    pytest.param({}, EVERYWHERE, id="fp32 fused linear"),
    pytest.param({"bf16": True}, IN_BETWEEN, id="bf16"),
    pytest.param(
        {"optim": "adamw_torch", "lr_scheduler_type": "cosine"}, IN_BETWEEN, id="adamw cosine"
    ),
    pytest.param(
        {"optim": "adafactor", "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.5},
        IN_BETWEEN,
        id="adafactor, constant with warm-up",
    ),
    pytest.param(
        {"optim": "adafactor", "lr_scheduler_type": "constant", "bf16": True},
        IN_BETWEEN,
        id="both",
        marks=pytest.mark.heavy,
    ),
    pytest.param(
        {"dtype": "bfloat16", "optim": "adafactor"}, IN_BETWEEN, id="bf16 weights, adafactor"
    ),
    pytest.param(
        {"dtype": "bfloat16"}, IN_BETWEEN, id="bf16 weights, adamw", marks=pytest.mark.heavy
    ),
    pytest.param({"data_seed": 7, "weight_decay": 0.1}, IN_BETWEEN, id="own data seed"),
]


class TestBitExact:
    @pytest.mark.parametrize(("options", "steps"), VARIANTS)
    def test_every_later_number_and_the_weights(
        self,
        make_job: Callable[..., Job],
        validation: Any,
        options: dict[str, Any],
        steps: tuple[int, ...],
    ) -> None:
        job = make_job(**{**EVERY_STEP, **options}, validation=validation)
        whole, recorder = run(job.request(1))
        assert whole.steps == STEPS
        kept = job.workspace / "attempts" / "1" / "checkpoints"
        for attempt, step in enumerate(steps, start=2):
            resumed, again = run(job.request(attempt, resume_from=kept / str(step)))
            assert numbers(again, step) == numbers(recorder, step)
            assert evaluations(again, step) == evaluations(recorder, step)
            assert resumed.weights_sha256 == whole.weights_sha256
            assert resumed.baseline == whole.baseline
            assert resumed.metrics["train_loss"] == whole.metrics["train_loss"]

    @pytest.mark.usefixtures("processes")
    def test_after_a_kill_in_a_process_of_its_own(
        self, make_job: Callable[..., Job], validation: Any
    ) -> None:
        """As the supervisor starts it."""
        options: dict[str, Any] = {**EVERY_STEP, "logging_steps": 3, "save_steps": 2, "bf16": True}
        whole, recorder = run(make_job(**options, validation=validation).request())
        job = make_job(**options, validation=validation)
        checkpoint = interrupt(job, 4)  # one step into the window of a logged loss
        request = job.request(attempt=2, resume_from=checkpoint)
        path = request.attempt_dir / "request.json"
        path.write_text(request.model_dump_json())
        ended = Forks("tests.training.support.tiny_stage", job.home / "hub").run(path)
        assert ended.status == 0, ended.log
        resumed, again = TrainResult.model_validate(ended.result), Recorder(events=ended.events)
        assert resumed.weights_sha256 == whole.weights_sha256
        assert numbers(again, 4) == numbers(recorder, 4)
        assert list(again.train_values("loss")) == [6, 9]
        assert evaluations(again, 4) == evaluations(recorder, 4)

    def test_evaluations_do_not_disturb_the_training(
        self, make_job: Callable[..., Job], validation: Any
    ) -> None:
        options = {**EVERY_STEP, "save_strategy": "no"}
        with_them, _ = run(make_job(**options, validation=validation).request())
        without, _ = run(make_job(**{**options, "eval_strategy": "no"}).request())
        assert with_them.weights_sha256 == without.weights_sha256

    def test_the_seed_matters(self, make_job: Callable[..., Job]) -> None:
        options = {"max_steps": 2, "save_strategy": "no"}
        results = [
            run(make_job(**options, **changes).request())[0].weights_sha256
            for changes in ({}, {"seed": 43}, {"data_seed": 43}, {"data_seed": 42})
        ]
        assert results[0] == results[3]
        assert len(set(results)) == 3


class TestSoftStop:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012
        **EVERY_STEP,
        "save_strategy": "epoch",
        "eval_steps": 3,
        "per_device_eval_batch_size": 2,
    }

    @pytest.fixture(scope="class")
    def kept(self) -> list[tuple[TrainResult, Recorder]]:
        return []

    @pytest.fixture
    def whole(
        self,
        kept: list[tuple[TrainResult, Recorder]],
        make_job: Callable[..., Job],
        validation: Any,
    ) -> tuple[TrainResult, Recorder]:
        """What is not stopped, made once: when it saves changes no number."""
        if not kept:
            kept.append(run(make_job(**self.OPTIONS, validation=validation).request()))
        return kept[0]

    def stopped(self, job: Job, stop_after: Callable[[StageEvent], bool]) -> tuple[Path, Recorder]:
        """A first attempt that is asked to stop; its newest checkpoint."""
        recorder = Recorder(stop_after=stop_after)
        with pytest.raises(Stopped):
            run(job.request(1), recorder)
        return job.workspace / recorder.of(CheckpointSaved)[-1].path, recorder

    @pytest.mark.parametrize(
        ("strategy", "logged", "step"),
        [("epoch", 2, 3), ("no", 4, 5), ("epoch", 7, 8), ("no", 10, 11)],
        ids=["before an evaluation", "between", "at a checkpoint", "at the last step"],
    )
    def test_it_saves_the_step_in_hand_and_goes_on_exactly(
        self,
        make_job: Callable[..., Job],
        validation: Any,
        whole: tuple[TrainResult, Recorder],
        strategy: str,
        logged: int,
        step: int,
    ) -> None:
        """Asked while the numbers of `logged` are reported: the step after it is the last."""
        undisturbed, recorder = whole
        options = {**self.OPTIONS, "save_strategy": strategy}
        job = make_job(**options, validation=validation)
        folder, first = self.stopped(
            job, lambda event: isinstance(event, Metric) and is_train(event, logged)
        )
        assert folder.name == str(step)
        assert first.checkpoint_steps().count(step) == 1
        assert max(first.train_values("loss")) == step
        assert max(first.evaluations()) <= logged
        resumed, again = run(job.request(2, resume_from=folder))
        assert numbers(again, 0) == numbers(recorder, step)
        assert evaluations(again, 0) == evaluations(recorder, step - 1)
        assert resumed.weights_sha256 == undisturbed.weights_sha256
        assert resumed.metrics["train_loss"] == undisturbed.metrics["train_loss"]

    def test_an_evaluation_is_left_and_made_again(
        self, make_job: Callable[..., Job], validation: Any
    ) -> None:
        """Its verdict counts as without the stop: the best model and the learning rate."""
        options = {
            **self.OPTIONS,
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "threshold": 1.0},
            "save_strategy": "best",
            "load_best_model_at_end": True,
        }
        whole, recorder = run(make_job(**options, validation=validation).request())
        job = make_job(**options, validation=validation)

        def at_second_evaluation(event: StageEvent) -> bool:
            return (
                isinstance(event, PhaseChanged)
                and event.phase is Phase.EVALUATING
                and max(first.train_values("loss")) == 6
            )

        first = Recorder(stop_after=at_second_evaluation)
        with pytest.raises(Stopped):
            run(job.request(1), first)
        assert list(first.evaluations()) == [0, 3]
        newest = first.of(CheckpointSaved)[-1]
        assert (newest.step, newest.metric, newest.best) == (6, None, False)
        resumed, again = run(job.request(2, resume_from=job.workspace / newest.path))
        assert numbers(again, 0) == numbers(recorder, 6)
        assert len(set(numbers(again, 0)["learning_rate"].values())) > 1
        assert evaluations(again, 0) == evaluations(recorder, 5)
        assert [(e.step, e.best) for e in again.of(CheckpointSaved)] == [
            (e.step, e.best) for e in recorder.of(CheckpointSaved) if e.step >= 6
        ]
        assert (resumed.best_step, resumed.weights_sha256) == (
            whole.best_step,
            whole.weights_sha256,
        )

    def test_before_the_first_step_it_stops_at_once(
        self, make_job: Callable[..., Job], validation: Any
    ) -> None:
        recorder = Recorder(stop_after=in_phase(Phase.BASELINE))
        with pytest.raises(Stopped):
            run(make_job(**self.OPTIONS, validation=validation).request(), recorder)
        assert recorder.of(CheckpointSaved) == []
        assert recorder.evaluations() == {}

    def test_after_the_last_step_only_if_that_is_saved(
        self, make_job: Callable[..., Job], validation: Any
    ) -> None:
        job = make_job(**self.OPTIONS, validation=validation, test=rows(3))
        _, first = self.stopped(job, in_phase(Phase.PREDICTING))
        assert first.checkpoint_steps()[-1] == STEPS
        unsaved = make_job(
            **{**self.OPTIONS, "save_strategy": "no"}, validation=validation, test=rows(3)
        )
        whole, _ = run(unsaved.request(), Recorder(stop_after=in_phase(Phase.PREDICTING)))
        resumed, again = run(job.request(2, job.workspace / first.of(CheckpointSaved)[-1].path))
        assert again.train_values("loss") == {}
        assert resumed.weights_sha256 == whole.weights_sha256


def is_train(event: Metric, step: int) -> bool:
    return event.kind == "train" and event.step == step


def in_phase(phase: Phase) -> Callable[[StageEvent], bool]:
    return lambda event: isinstance(event, PhaseChanged) and event.phase is phase


class TestUnreadable:
    @pytest.fixture
    def job(self, make_job: Callable[..., Job]) -> Job:
        return make_job(max_steps=3, save_steps=1)

    @pytest.fixture(scope="class")
    def kept(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("kept") / "checkpoint"

    @pytest.fixture
    def checkpoint(self, job: Job, kept: Path) -> Path:
        """Written once, and copied for each test."""
        if not kept.exists():
            shutil.copytree(interrupt(job, 2), kept)
            return job.checkpoint(2)
        return Path(shutil.copytree(kept, job.checkpoint(2)))

    def refused(self, job: Job, checkpoint: Path) -> str:
        with fails_with(FailureCode.CHECKPOINT_UNREADABLE) as caught:
            run(job.request(2, resume_from=checkpoint))
        assert caught.value.failure.message.startswith("the checkpoint of step 2 cannot be")
        return caught.value.failure.message

    @pytest.mark.parametrize(
        "name",
        ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_0.pt", "progress.json"],
    )
    def test_a_flipped_byte(self, job: Job, checkpoint: Path, name: str) -> None:
        content = bytearray((checkpoint / name).read_bytes())
        content[len(content) // 2] ^= 1
        (checkpoint / name).write_bytes(content)
        assert "manifest" in self.refused(job, checkpoint)

    @pytest.mark.parametrize("name", ["optimizer.pt", "rng_0.pt", "progress.json"])
    def test_a_file_that_was_never_written(self, job: Job, checkpoint: Path, name: str) -> None:
        with atomic_dir.writing(checkpoint.with_name("2-") / "2") as partial:
            for path in checkpoint.iterdir():
                if path.name not in {name, atomic_dir.MANIFEST}:
                    shutil.copy(path, partial)
        assert name in self.refused(job, checkpoint.with_name("2-") / "2")

    def test_one_of_a_newer_release(self, job: Job, checkpoint: Path) -> None:
        path = checkpoint / atomic_dir.MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
        message = self.refused(job, checkpoint)
        assert "its manifest has version 2, and this release reads only version 1" in message

    def test_one_of_other_data(self, job: Job, checkpoint: Path, make_job: Any) -> None:
        other = make_job(max_steps=3, save_steps=1, train=rows(9))
        assert "batches_per_epoch" in self.refused(other, checkpoint)

    def test_a_pickle_with_code_is_not_run(self, job: Job, checkpoint: Path) -> None:
        """Torch files are read with weights_only: no object of another kind is ever made."""
        import pickle

        class Evil:
            def __reduce__(self) -> Any:
                return (os.mkdir, (str(job.home / "evil"),))

        (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Evil()))
        files = json.loads((checkpoint / atomic_dir.MANIFEST).read_text())
        path = checkpoint / "optimizer.pt"
        files["files"][path.name] = {
            "size": path.stat().st_size,
            "sha256": atomic_dir.file_sha256(path),
        }
        (checkpoint / atomic_dir.MANIFEST).write_text(json.dumps(files))
        self.refused(job, checkpoint)
        assert not (job.home / "evil").exists()


@pytest.fixture
def disk(tmp_path: Path, processes: None) -> Iterator[Path]:
    """A file system of 1 MiB for the checkpoints; the model's settings lie elsewhere."""
    try:
        with small_disk(tmp_path / "small", mebibytes=1) as folder:
            settings, elsewhere = (
                hub_repository.settings_dir(folder / "attempts" / "1"),
                tmp_path / "settings",
            )
            elsewhere.mkdir()
            settings.parent.mkdir(parents=True)
            settings.symlink_to(elsewhere)
            yield folder
    except NoMountError as error:
        pytest.skip(str(error))


class TestDiskFull:
    def test_the_earlier_checkpoint_stays_whole(
        self, make_job: Callable[..., Job], disk: Path
    ) -> None:
        """Each checkpoint is 0.4 MB: the third does not fit any more."""
        job = make_job(max_steps=8, save_steps=1)
        (job.home / "job").symlink_to(disk)
        recorder = Recorder()
        with fails_with(FailureCode.DISK_FULL):
            run(job.request(), recorder)
        folder = job.workspace / "attempts" / "1" / "checkpoints"
        assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
        assert recorder.checkpoint_steps() == [1, 2]
        assert all(atomic_dir.verify(path) for path in folder.iterdir())

    @pytest.mark.parametrize("free", [4_000, 120_000, 200_000])
    def test_whichever_file_does_not_fit(
        self, make_job: Callable[..., Job], disk: Path, free: int
    ) -> None:
        """The weights, written by safetensors, or the optimizer, written by torch."""
        (disk / "full").write_bytes(b"\0" * (2**20 - 16_384 - free))
        job = make_job(max_steps=1)
        (job.home / "job").symlink_to(disk)
        with fails_with(FailureCode.DISK_FULL) as caught:
            run(job.request())
        assert "checkpoint of step 1" in caught.value.failure.message

    def test_the_settings_that_come_before_it(
        self, make_job: Callable[..., Job], disk: Path
    ) -> None:
        hub_repository.settings_dir(disk / "attempts" / "1").unlink()
        leave_free(disk, 8_192)
        job = make_job(max_steps=1)
        (job.home / "job").symlink_to(disk)
        with fails_with(FailureCode.DISK_FULL) as caught:
            run(job.request())
        assert "the model's settings were written" in caught.value.failure.message
