"""worker.training.batches.dataloader: batches, their workers, and that nothing depends on them."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from service.contract.spec.training import TrainingSpec
from tests.contract.factories import job_spec
from tests.training.support.jobs import Job, Killed, Recorder, at_checkpoint, rows, run
from worker.stages.train import inputs
from worker.training import build, precision
from worker.training.batches.dataloader import Loader, chunks, for_device

WORKERS: dict[str, Any] = {"dataloader_num_workers": 2}


def collate(group: Any) -> Any:
    return group


def process_ids(group: list[Mapping[str, Any]]) -> Any:
    return {"pid": torch.tensor(os.getpid())}


@pytest.mark.usefixtures("processes")
class TestLoader:
    @pytest.mark.parametrize("options", [{}, WORKERS])
    def test_it_draws_no_random_number(self, options: dict[str, Any]) -> None:
        data = rows(7)
        before = torch.get_rng_state()
        loader = Loader(data, collate, TrainingSpec(**options))
        batches: list[Any] = list(loader.over(chunks(range(7), 3)))
        assert batches == [data[:3], data[3:6], data[6:]]
        assert torch.equal(torch.get_rng_state(), before)

    def test_features_of_an_epoch(self) -> None:
        class Fresh:
            def __len__(self) -> int:
                return 4

            def at_epoch(self, epoch: int) -> list[int]:
                return [10 * epoch + index for index in range(4)]

        for options in ({}, {**WORKERS, "dataloader_persistent_workers": True}):
            loader = Loader(Fresh(), collate, TrainingSpec(**options))  # type: ignore[arg-type]
            for epoch in (0, 3):
                batches: list[Any] = list(loader.over([[0, 2], [3]], epoch))
                assert batches == [[10 * epoch, 10 * epoch + 2], [10 * epoch + 3]]

    @pytest.mark.parametrize("persistent", [False, True])
    def test_workers_make_the_batches_and_may_stay(self, persistent: bool) -> None:
        spec = TrainingSpec(
            **WORKERS, dataloader_persistent_workers=persistent, dataloader_prefetch_factor=1
        )
        loader = Loader(rows(8), process_ids, spec)
        rounds = [
            {int(batch["pid"]) for batch in loader.over(chunks(range(8), 2))} for _ in range(2)
        ]
        assert os.getpid() not in rounds[0]
        assert len(rounds[0]) == 2
        assert (rounds[0] == rounds[1]) is persistent

    def test_the_prefetch_factor(self) -> None:
        def requested(factor: int) -> int:
            """Batches that have been asked for when the first one is there."""
            spec = TrainingSpec(dataloader_num_workers=1, dataloader_prefetch_factor=factor)
            loader = Loader(rows(8), collate, spec)
            return int(loader.over(chunks(range(8), 1))._send_idx)  # type: ignore[attr-defined]

        assert [requested(1), requested(3)] == [1, 3]

    def test_pinning_needs_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for available in (False, True):
            monkeypatch.setattr(torch.cuda, "is_available", lambda on=available: on)
            for asked in (False, True):
                loader = Loader(rows(2), collate, TrainingSpec(dataloader_pin_memory=asked))
                assert loader._loader.pin_memory is (available and asked)


class TestForDevice:
    def found(
        self, strategy: str = "ddp", *, on_gpu: bool = True, **training: Any
    ) -> tuple[int | None, int | None, bool]:
        spec = job_spec(training=training, resources={"gpus": 2, "strategy": {"type": strategy}})
        made = for_device(spec, on_gpu=on_gpu).training
        size, workers = made.per_device_eval_batch_size, made.dataloader_num_workers
        return workers, size, made.dataloader_pin_memory

    def test_what_is_left_open(self) -> None:
        assert self.found() == (2, 32, True)
        assert self.found(per_device_train_batch_size=1) == (2, 8, True)
        assert self.found(on_gpu=False) == (0, 8, False)

    def test_what_is_given(self) -> None:
        given: dict[str, Any] = {"dataloader_num_workers": 0, "per_device_eval_batch_size": 3}
        assert self.found(**given, dataloader_pin_memory=False) == (0, 3, False)
        assert self.found(**given, on_gpu=False) == (0, 3, False)

    def test_shards_cannot_halve_a_batch_that_does_not_fit(self) -> None:
        assert self.found("fsdp") == (2, 8, True)

    def test_the_stage_asks(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = make_job().request()
        # It asks the GPU what it computes in.
        monkeypatch.setattr(precision, "notices", lambda *_, **__: [])
        for on_gpu, workers in ((False, 0), (True, 2)):
            monkeypatch.setattr(build, "on_gpu", lambda _spec, on=on_gpu: on)
            training = inputs.for_device(request, lambda _event: None).spec.training
            assert training.dataloader_num_workers == workers

    def test_no_cuda_is_looked_for_where_nothing_is_pinned(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def started() -> bool:
            raise AssertionError

        monkeypatch.setattr(torch.cuda, "is_available", started)
        training = for_device(job_spec(), on_gpu=False).training
        assert not Loader(rows(2), collate, training)._loader.pin_memory


@pytest.mark.usefixtures("processes")
class TestTraining:
    @pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.heavy), True])
    def test_workers_change_nothing_also_after_a_kill(
        self, make_job: Callable[..., Job], persistent: bool
    ) -> None:
        options: dict[str, Any] = {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "save_steps": 7,
            "eval_strategy": "epoch",
            "validation": rows(5, seed=9),
        }
        whole, alone = run(make_job(**options).request())
        job = make_job(**options, **WORKERS, dataloader_persistent_workers=persistent)
        with pytest.raises(Killed):
            run(job.request(1), Recorder(kill_after=at_checkpoint(7)))
        resumed, again = run(job.request(2, resume_from=job.checkpoint(7)))
        assert resumed.weights_sha256 == whole.weights_sha256
        losses = {step: loss for step, loss in alone.train_values("loss").items() if step > 7}
        assert again.train_values("loss") == losses

    def test_drop_last(self, make_job: Callable[..., Job]) -> None:
        """37 rows: four batches of eight, and a fifth of five."""
        steps = [
            run(make_job(num_train_epochs=1, dataloader_drop_last=drop).request())[0].steps
            for drop in (False, True)
        ]
        assert steps == [5, 4]
