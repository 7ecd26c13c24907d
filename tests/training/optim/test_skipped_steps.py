"""A step that loss scaling leaves out leaves the schedule where it is, with every optimizer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from service.contract.failures import FailureCode
from tests.training.support import float16
from tests.training.support.jobs import Job, fails_with, run
from worker.training.optim.skipped_steps import SkippedSteps

OPTIMIZERS = ["adamw_torch", "adamw_torch_fused", "sgd"]
OPTIONS: dict[str, Any] = {"max_steps": 5, "save_steps": 1, "fp16": True, "bf16": False}
MOVES = [1e-2, 8e-3, 6e-3, 4e-3, 2e-3]  # linear, from 1e-2 on


def weights(job: Job, step: int) -> dict[str, torch.Tensor]:
    return load_file(job.checkpoint(step) / "model.safetensors")


class TestTraining:
    @pytest.fixture(autouse=True)
    def cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        float16.on_cpu(monkeypatch)

    @pytest.mark.parametrize("optim", OPTIMIZERS)
    def test_the_schedule_waits(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, optim: str
    ) -> None:
        float16.overflow_at(monkeypatch, 1, 3, 4)
        job = make_job(**OPTIONS, optim=optim)
        result, recorder = run(job.request())
        expected = [MOVES[0], MOVES[0], MOVES[1], MOVES[1], MOVES[1]]
        seen = list(recorder.train_values("learning_rate").values())
        assert seen == pytest.approx(expected, rel=1e-12)
        assert result.steps == 5, "as in Trainer they count"
        assert [e.of for e in recorder.events if e.type == "progress"][-1] == 5
        for left_out in (3, 4):
            before, after = weights(job, left_out - 1), weights(job, left_out)
            assert all(torch.equal(before[name], after[name]) for name in before)
        before, after = weights(job, 4), weights(job, 5)
        assert any(not torch.equal(before[name], after[name]) for name in before)

    @pytest.mark.parametrize("optim", OPTIMIZERS)
    def test_a_model_that_always_overflows_ends_no_job_untrained(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, optim: str
    ) -> None:
        float16.overflow_at(monkeypatch, *range(1, 30))
        options = {**OPTIONS, "max_steps": 30, "save_strategy": "no"}
        with fails_with(FailureCode.NON_FINITE_LOSS, r"gradient in float16.* at step 11"):
            run(make_job(**options, optim=optim).request())

    @pytest.mark.parametrize("step", [2, 3])
    def test_resumed_after_one_and_before(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        float16.overflow_at(monkeypatch, 3)
        job = make_job(**OPTIONS, optim="adamw_torch_fused")
        whole, recorder = run(job.request())
        float16.overflow_at(monkeypatch, 3 - step)
        resumed, again = run(job.request(2, resume_from=job.checkpoint(step)))
        assert resumed.weights_sha256 == whole.weights_sha256
        rates = recorder.train_values("learning_rate")
        assert again.train_values("learning_rate") == {s: rates[s] for s in rates if s > step}


class TestNumbers:
    def test_a_fused_step_is_read_when_it_is_asked_about(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a GPU the number is on its way until then: no step waits for it."""
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.AdamW([weight], fused=True)
        skipped = SkippedSteps(optimizer)
        read: list[torch.Tensor] = []
        as_bool = torch.Tensor.__bool__
        for gradient, expected in ((float("inf"), True), (1.0, False)):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(weight.sum()).backward()
            assert weight.grad is not None
            weight.grad[0] *= gradient
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "__bool__", lambda t: read.append(t) or as_bool(t))
                scaler.step(optimizer)
                scaler.update()
                last = skipped.last()
                assert not read
                assert last() is expected
                assert len(read) == 1
            read.clear()
            optimizer.zero_grad()
