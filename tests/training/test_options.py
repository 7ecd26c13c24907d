"""Options of the training: turned on, each changes what it must change, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file

from service.contract.failures import FailureCode
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Notice
from tests.training.checkpointing.resuming import assert_resumes
from tests.training.support.factories import spec_of, tiny_bert
from tests.training.support.jobs import (
    Job,
    Killed,
    Recorder,
    TinyObjective,
    at_checkpoint,
    fails_with,
    rows,
    run,
)
from tests.training.support.reference_trainer import TRAIN, VALIDATION, run_both
from worker.tasks.question_answering.task import QuestionAnsweringObjective
from worker.training import build, flops
from worker.training.batches import samplers
from worker.training.plan import Plan

SHORT: dict[str, Any] = {"max_steps": 4, "save_strategy": "no"}


def losses(make_job: Callable[..., Job], **options: Any) -> list[float]:
    _, recorder = run(make_job(**{**SHORT, **options}).request())
    return list(recorder.train_values("loss").values())


class TestLabelSmoothing:
    @pytest.mark.usefixtures("sequential")
    @pytest.mark.parametrize("accumulation", [1, 3])
    def test_as_trainer(
        self, make_job: Callable[..., Job], tmp_path: Path, accumulation: int
    ) -> None:
        options = {
            "max_steps": 5,
            "label_smoothing_factor": 0.2,
            "logging_steps": 1,
            "save_strategy": "no",
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": accumulation,
        }
        ours, theirs, _ = run_both(make_job, tmp_path / "trainer", options)
        expected = {entry["step"]: entry["loss"] for entry in theirs if "loss" in entry}
        assert ours.train_values("loss") == pytest.approx(expected, rel=1e-4)
        assert losses(make_job, label_smoothing_factor=0.2) != losses(make_job)

    def test_a_task_without_classes_is_refused(self) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "cross entropy"):
            object.__new__(QuestionAnsweringObjective).smoothed(0.1)

    def test_question_answering_is_refused_at_once(self) -> None:
        """Trainer ignores the option there."""
        with pytest.raises(ValidationError, match="two positions instead"):
            spec_of({"label_smoothing_factor": 0.1})


class TestNeftune:
    OPTIONS: dict[str, Any] = {"neftune_noise_alpha": 10.0, "dropout": 0.0}  # noqa: RUF012

    def test_noise_changes_the_training_and_not_the_evaluation(
        self, make_job: Callable[..., Job]
    ) -> None:
        still = {**SHORT, "learning_rate": 0.0, "eval_strategy": "epoch", "validation": rows(5)}
        with_noise, noisy = run(make_job(**still, **self.OPTIONS).request())
        without, quiet = run(make_job(**still, dropout=0.0).request())
        assert noisy.train_values("loss") != quiet.train_values("loss")
        assert noisy.evaluations() == quiet.evaluations()
        assert with_noise.weights_sha256 == without.weights_sha256

    def test_nothing_of_it_is_saved(self, make_job: Callable[..., Job]) -> None:
        job = make_job(**SHORT, **self.OPTIONS)
        result, _ = run(job.request())
        other = make_job(**SHORT)
        plain, _ = run(other.request())
        saved, expected = (
            set(load_file(each.workspace / str(found.output_dir) / "model.safetensors"))
            for each, found in ((job, result), (other, plain))
        )
        assert saved == expected

    def test_a_resumed_run_draws_the_same_noise(self, make_job: Callable[..., Job]) -> None:
        assert_resumes(make_job(max_steps=6, save_steps=3, **self.OPTIONS), 3)


class TestActivationCheckpointing:
    @pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
    def test_the_same_losses_with_layers_computed_twice(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        calls = [0]
        block = transformers.models.gpt2.modeling_gpt2.GPT2MLP
        original = block.forward

        def forward(self: Any, *args: Any) -> Any:
            calls[0] += 1
            return original(self, *args)

        monkeypatch.setattr(block, "forward", forward)
        plain, once = losses(make_job), calls[0]
        assert losses(make_job, **{name: True}) == pytest.approx(plain, rel=1e-6)
        assert calls[0] - once == 2 * once

    def test_its_arguments(self) -> None:
        model: Any = tiny_bert()
        spec = TrainingSpec(
            activation_checkpointing=True,
            activation_checkpointing_kwargs={"use_reentrant": True},
        )
        build.prepare_model(model, spec)
        assert model.is_activation_checkpointing
        function = model.bert.encoder.layer[0]._gradient_checkpointing_func
        assert function.keywords == {"use_reentrant": True}

    def test_a_model_that_cannot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny_bert()
        monkeypatch.setattr(model, "supports_gradient_checkpointing", False, raising=False)
        with fails_with(FailureCode.INVALID_OPTION, "does not support"):
            build.prepare_model(model, TrainingSpec(activation_checkpointing=True))


class TestSampling:
    DATA = rows(61, seed=8)

    def order(self, epoch: int = 0, **options: Any) -> list[int]:
        return list(samplers.order(self.DATA, self.plan(**options))(epoch))

    def plan(self, **options: Any) -> Plan:
        return Plan.from_spec(TrainingSpec.model_validate(options), len(self.DATA))

    def test_sequential(self) -> None:
        assert self.order(train_sampling_strategy="sequential") == list(range(61))

    @pytest.mark.parametrize(
        "options", [{"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}]
    )
    def test_grouped_by_length(self, options: dict[str, Any]) -> None:
        order = self.order(**options, per_device_train_batch_size=4)
        assert sorted(order) == list(range(61))

        def padding(indices: list[int]) -> int:
            sizes = [len(self.DATA[index]["input_ids"]) for index in indices]
            return sum(4 * max(sizes[i : i + 4]) for i in range(0, 61, 4))

        assert padding(order) < 0.85 * padding(self.order(train_sampling_strategy="random"))
        longest = max(len(row["input_ids"]) for row in self.DATA)
        assert len(self.DATA[order[0]]["input_ids"]) == longest

    def test_a_pure_function_of_seed_and_epoch(self) -> None:
        options = {"train_sampling_strategy": "group_by_length"}
        assert self.order(3, **options) == self.order(3, **options)
        assert self.order(3, **options) != self.order(4, **options)
        assert self.order(3, **options) != self.order(3, **options, data_seed=1)

    def test_grouped_training_resumes_exactly(self, make_job: Callable[..., Job]) -> None:
        job = make_job(
            num_train_epochs=2,
            per_device_train_batch_size=4,
            save_steps=7,
            train_sampling_strategy="group_by_length",
        )
        assert_resumes(job, 7)


class TestEvaluationMoments:
    @pytest.mark.usefixtures("sequential")
    @pytest.mark.parametrize(
        "options",
        [
            {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5, "max_steps": 9},
            {"eval_strategy": "epoch", "eval_delay": 1.5, "num_train_epochs": 3},
        ],
    )
    def test_the_delay_as_trainer(
        self, make_job: Callable[..., Job], tmp_path: Path, options: dict[str, Any]
    ) -> None:
        ours, theirs, _ = run_both(
            make_job, tmp_path / "trainer", {**options, "save_strategy": "no"}
        )
        evaluated = [entry["step"] for entry in theirs if "eval_loss" in entry]
        assert list(ours.evaluations()) == [0, *evaluated]
        spec = TrainingSpec.model_validate({**options, "eval_delay": 0})
        without = [s for s in range(1, 10) if Plan.from_spec(spec, len(TRAIN)).due(s).evaluate]
        assert len(without) > len(evaluated)


class TestEarlyStopping:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012
        "max_steps": 30,
        "learning_rate": 0.5,
        "warmup_steps": 20,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "load_best_model_at_end": True,
    }

    @pytest.mark.usefixtures("sequential")
    @pytest.mark.parametrize(("patience", "threshold"), [(1, 0.0), (3, 0.0), (2, 0.05)])
    def test_as_the_callback(
        self, make_job: Callable[..., Job], tmp_path: Path, patience: int, threshold: float
    ) -> None:
        from tests.training.support.reference_trainer import run_trainer

        trainer, _ = run_trainer(
            tmp_path / "trainer",
            self.OPTIONS,
            transformers.EarlyStoppingCallback(patience, threshold),
        )
        job = make_job(
            **self.OPTIONS,
            early_stopping_patience=patience,
            early_stopping_threshold=threshold,
            train=TRAIN,
            validation=VALIDATION,
            dropout=0.0,
        )
        result, recorder = run(job.request())
        assert result.steps == trainer.state.global_step < 30
        assert result.best_step == trainer.state.best_global_step
        messages = [event.message for event in recorder.of(Notice)]
        assert any(
            line.startswith(f"Stopped early at step {result.steps}: `loss`") for line in messages
        )

    def test_the_count_survives_an_interruption(self, make_job: Callable[..., Job]) -> None:
        options = {**self.OPTIONS, "early_stopping_patience": 3, "validation": rows(6, seed=5)}
        whole, _ = run(make_job(**options).request())
        for step in (whole.steps - 2, whole.steps):
            job = make_job(**options)
            with pytest.raises(Killed):
                run(job.request(1), Recorder(kill_after=at_checkpoint(step)))
            resumed, _ = run(job.request(2, resume_from=job.checkpoint(step)))
            assert resumed.steps == whole.steps
            assert resumed.weights_sha256 == whole.weights_sha256


class TestAutoFindBatchSize:
    OPTIONS: dict[str, Any] = {  # noqa: RUF012
        "num_train_epochs": 1,
        "per_device_train_batch_size": 12,
        "dropout": 0.0,
        "auto_find_batch_size": True,
    }

    @pytest.fixture
    def memory_for(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """An allocation fails, in the backward pass, for batches of more than so many rows."""

        def limit(batch: int, from_call: int = 0) -> None:
            calls = iter(range(10**6))
            original = TinyObjective.loss_sum

            def loss_sum(self: TinyObjective, model: Any, given: Any) -> torch.Tensor:
                if next(calls) >= from_call and len(given["input_ids"]) > batch:
                    torch.empty(2**60, dtype=torch.uint8)
                return original(self, model, given)

            monkeypatch.setattr(TinyObjective, "loss_sum", loss_sum)

        return limit

    def test_smaller_batches_make_the_same_steps(
        self, make_job: Callable[..., Job], memory_for: Callable[..., None]
    ) -> None:
        expected = losses(make_job, **{**self.OPTIONS, "max_steps": -1})
        memory_for(4)
        _, recorder = run(make_job(**self.OPTIONS, save_strategy="no").request())
        found = list(recorder.train_values("loss").values())
        assert found == pytest.approx(expected, rel=1e-5)
        notices = [event.data for event in recorder.of(Notice) if "Out of memory" in event.message]
        assert notices == [
            {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2},
            {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4},
        ]

    def test_the_size_is_kept_over_an_interruption(
        self, make_job: Callable[..., Job], memory_for: Callable[..., None]
    ) -> None:
        options = {**self.OPTIONS, "num_train_epochs": 2, "save_steps": 1, "dropout": 0.1}
        memory_for(6, from_call=2)  # in the middle of the first epoch
        job = make_job(**options)
        whole, recorder = run(job.request(1))
        memory_for(6)
        resumed, again = run(job.request(2, resume_from=job.checkpoint(4)))
        assert resumed.weights_sha256 == whole.weights_sha256
        assert not any("Out of memory" in event.message for event in again.of(Notice))
        assert again.train_values("loss")[5] == recorder.train_values("loss")[5]

    def test_one_row_is_the_end(
        self, make_job: Callable[..., Job], memory_for: Callable[..., None]
    ) -> None:
        memory_for(0)
        with fails_with(FailureCode.OUT_OF_MEMORY) as caught:
            run(make_job(**self.OPTIONS).request())
        assert caught.value.failure.details["batch_size"] == 1


class TestNumbers:
    @pytest.mark.usefixtures("sequential")
    @pytest.mark.parametrize("counted", ["all", "non_padding", True])
    def test_tokens_seen_and_operations_as_trainer(
        self, make_job: Callable[..., Job], tmp_path: Path, counted: Any
    ) -> None:
        from tests.training.support.reference_trainer import run_trainer

        options = {**SHORT, "include_num_input_tokens_seen": counted, "logging_steps": 1}
        trainer, _ = run_trainer(tmp_path / "trainer", options)
        result, recorder = run(make_job(**options, train=TRAIN, dropout=0.0).request())
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        expected = {entry["step"]: entry["num_input_tokens_seen"] for entry in history}
        assert recorder.train_values("num_input_tokens_seen") == expected
        assert result.metrics["num_input_tokens_seen"] == expected[4]
        assert result.metrics["total_flos"] == trainer.state.total_flos > 0

    def test_they_are_not_counted_unless_asked_for(self, make_job: Callable[..., Job]) -> None:
        result, _ = run(make_job(**SHORT).request())
        assert "num_input_tokens_seen" not in result.metrics

    @pytest.mark.parametrize(
        ("name", "precision", "tf32", "peak"),
        [
            ("NVIDIA H200", "bf16", False, 989.4e12),
            ("NVIDIA H200 NVL", "bf16", False, 835.5e12),
            ("NVIDIA H100 80GB HBM3", "bf16", False, 989.4e12),
            ("NVIDIA H100 PCIe", "fp16", False, 756e12),
            ("NVIDIA GH200 480GB", "bf16", False, 989.4e12),
            ("NVIDIA GH200 144G HBM3e", "bf16", False, 989.4e12),
            ("NVIDIA A100-SXM4-80GB", "no", False, 19.5e12),
            ("NVIDIA A100-SXM4-80GB", "no", True, 155.9e12),
            ("A100-SXM4-40GB", "bf16", False, 311.9e12),
            ("NVIDIA A100 80GB PCIe", "bf16", False, 311.9e12),
            ("NVIDIA A100-PCIE-40GB", "bf16", False, 311.9e12),
            ("NVIDIA L40S", "bf16", False, 362.1e12),
            ("NVIDIA L40", "bf16", False, 181e12),
            ("NVIDIA L4", "bf16", False, 121e12),
            ("NVIDIA A40", "bf16", False, 149.7e12),
            ("NVIDIA A10G", "bf16", False, 70e12),
            ("NVIDIA A10", "bf16", False, 124.9e12),
            ("NVIDIA RTX A6000", "bf16", False, 154.8e12),
            ("NVIDIA RTX 6000 Ada Generation", "bf16", False, 364.2e12),
            ("NVIDIA GeForce RTX 4090", "bf16", False, 165.2e12),
            ("Tesla V100-SXM2-16GB", "fp16", False, 125e12),
            ("Tesla V100-PCIE-32GB", "fp16", False, 112e12),
            ("Tesla V100S-PCIE-32GB", "fp16", False, 130e12),
            ("Tesla T4", "fp16", False, 65.1e12),
        ],
    )
    def test_peaks(self, name: str, precision: str, tf32: bool, peak: float) -> None:
        assert flops.peak_of(name, precision, tf32=tf32) == pytest.approx(peak, rel=1e-12)

    @pytest.mark.parametrize(
        "name",
        [
            *("NVIDIA RTX A4000", "NVIDIA RTX A1000", "NVIDIA A1000", "NVIDIA T400", "NVIDIA T4G"),
            *("NVIDIA T400 4GB", "NVIDIA T1000 8GB", "NVIDIA RTX 4000 Ada Generation"),
            *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GRID A100-10C", "NVIDIA A40-48Q"),
            *("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "Quadro T1000"),
            *("NVIDIA A100-SXM-64GB", "NVIDIA L20", "NVIDIA GB200", "Some new device", ""),
        ],
    )
    def test_no_peak_of_a_device_with_a_name_like_it(self, name: str) -> None:
        assert flops.peak_of(name, "bf16", tf32=False) is None
