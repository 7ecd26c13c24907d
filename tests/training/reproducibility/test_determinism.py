"""`full_determinism`, and what a training reports that is resumed on another kind of machine."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from service.contract.failures import FailureCode
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Notice
from tests.training.support.factories import spec_of
from tests.training.support.jobs import Job, Recorder, TinyObjective, fails_with, run
from worker.training import gpu_check
from worker.training.checkpointing import state
from worker.training.reproducibility import determinism, fingerprint

SHORT: dict[str, Any] = {"max_steps": 4, "save_strategy": "no"}
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    variables = {n: v for n, v in os.environ.items() if n not in {"NCCL_ALGO", *VARIABLES}}
    monkeypatch.setattr(os, "environ", variables)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}


class TestKernels:
    @pytest.mark.parametrize("on", [False, True])
    def test_all_is_set_before_a_gpu_is_used(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, on: bool
    ) -> None:
        at_first: list[Any] = []

        def look(*_args: Any) -> None:
            found = {name: os.environ.get(name) for name in ("NCCL_ALGO", *VARIABLES)}
            at_first.append((found, torch.are_deterministic_algorithms_enabled()))

        monkeypatch.setattr(gpu_check, "require", look)
        run(make_job(**SHORT, full_determinism=on).request())
        variables = {"NCCL_ALGO": "Ring", **VARIABLES}
        assert at_first == [(variables if on else dict.fromkeys(variables), on)]
        assert torch.are_deterministic_algorithms_enabled() is on
        assert torch.is_deterministic_algorithms_warn_only_enabled() is False
        assert torch.backends.cudnn.deterministic is on
        assert torch.backends.cudnn.benchmark is False
        assert "CUDA_LAUNCH_BLOCKING" not in os.environ

    def test_an_operators_algorithm_stays(self) -> None:
        os.environ["NCCL_ALGO"] = "Tree"
        determinism.enable(TrainingSpec(full_determinism=True))
        assert os.environ["NCCL_ALGO"] == "Tree"

    def test_no_kernel_is_chosen_by_its_speed(self) -> None:
        """torch sees to it; were it to stop, compiled models would need a switch of their own."""
        import torch._inductor.config as inductor

        assert inductor.deterministic is False
        determinism.enable(TrainingSpec(full_determinism=True))
        assert inductor.deterministic is True

    @pytest.mark.parametrize("on", [False, True])
    def test_an_operator_without_a_deterministic_kernel_is_named(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, on: bool
    ) -> None:
        loss_sum = TinyObjective.loss_sum

        def with_put(self: TinyObjective, model: Any, batch: Any) -> torch.Tensor:
            torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
            return loss_sum(self, model, batch)

        monkeypatch.setattr(TinyObjective, "loss_sum", with_put)
        request = make_job(**SHORT, full_determinism=on).request()
        if not on:
            run(request)
            return
        with fails_with(FailureCode.INVALID_OPTION, "this model needs `put_`, for which") as caught:
            run(request)
        assert caught.value.failure.details == {
            "option": "training.full_determinism",
            "operator": "put_",
        }

    def test_other_errors_stay_what_they_are(self) -> None:
        with (
            pytest.raises(RuntimeError, match="another"),
            determinism.explained(TrainingSpec(full_determinism=True)),
        ):
            raise RuntimeError("another")

    @pytest.mark.parametrize(
        ("training", "sections", "options"),
        [
            ({}, {}, None),
            ({"optim": "adamw_torch_fused"}, {}, None),
            ({"optim": "rmsprop"}, {}, None),
            ({"optim": "adamw_8bit"}, {}, ["training.optim"]),
            (
                {"optim": "paged_lion_8bit"},
                {"peft": {"method": "lora", "quantization": {"bits": 4}}},
                ["peft.quantization", "training.optim"],
            ),
        ],
    )
    def test_kernels_of_others_are_named(
        self, training: dict[str, Any], sections: dict[str, Any], options: list[str] | None
    ) -> None:
        spec = spec_of({"full_determinism": True, **training}, **sections)
        notice = determinism.notice(spec, CUDA)
        assert (notice and notice.data) == (options and {"options": options})
        assert determinism.notice(spec, torch.device("cpu")) is None
        assert determinism.notice(spec_of(training, **sections), CUDA) is None


class TestMachine:
    def moved(self, recorder: Recorder) -> list[Notice]:
        return [each for each in recorder.of(Notice) if "before" in each.data]

    def resumed(self, job: Job) -> Recorder:
        return run(job.request(2, resume_from=job.checkpoint(2)))[1]

    def test_a_checkpoint_knows_its_machine(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=4, save_steps=2)
        run(job.request(1))
        found = state.read_progress(job.checkpoint(2))["machine"]
        assert found == fingerprint.facts(torch.device("cpu"))
        assert found["torch"] == torch.__version__
        assert found["cuda"] is None
        assert self.moved(self.resumed(job)) == []

    def test_another_one_is_reported(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = {"device": "NVIDIA A100-SXM4-80GB", "torch": "2.13.0", "cuda": "13.0"}
        now = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "cuda": "13.0"}
        job = make_job(max_steps=4, save_steps=2)
        monkeypatch.setattr(fingerprint, "facts", lambda _device: before)
        run(job.request(1))
        monkeypatch.setattr(fingerprint, "facts", lambda _device: now)
        (notice,) = self.moved(self.resumed(job))
        assert notice.data == {"before": before, "now": now}
        assert "device NVIDIA H100 80GB HBM3 instead of NVIDIA A100-SXM4-80GB" in notice.message
        assert "torch" not in notice.message

    def test_a_gpu_by_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
        monkeypatch.setattr(torch.version, "cuda", "12.6")
        expected = {"device": "Tesla T4", "torch": torch.__version__, "cuda": "12.6"}
        assert fingerprint.facts(CUDA) == expected
        assert json.loads(json.dumps(fingerprint.facts(CUDA))) == expected
