"""Options that depend on the device: precision, compilation, memory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from service.contract.failures import FailureCode, StageError
from service.contract.spec.training import TrainingSpec
from tests.training.support.factories import spec_of
from tests.training.support.jobs import Job, fails_with, rows, run
from worker.training import build, flops, loop

SHORT: dict[str, Any] = {"max_steps": 4, "save_strategy": "no"}


class TestPrecision:
    def test_full_evaluation_in_bf16(self, make_job: Callable[..., Job]) -> None:
        options = {**SHORT, "eval_strategy": "steps", "eval_steps": 2, "validation": rows(6)}
        full, recorder = run(make_job(**options, bf16_full_eval=True).request())
        plain, other = run(make_job(**options).request())
        assert full.weights_sha256 == plain.weights_sha256
        assert recorder.evaluations() == other.evaluations()
        assert full.metrics["eval_loss"] != plain.metrics["eval_loss"]
        assert full.metrics["eval_loss"] == pytest.approx(plain.metrics["eval_loss"], rel=2e-2)

    @pytest.mark.parametrize("option", ["tf32", "fp16_full_eval"])
    def test_what_needs_a_gpu(self, option: str) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        with pytest.raises(StageError) as caught:
            build.accelerator(spec_of({option: True}))
        assert caught.value.failure.details == {"option": f"training.{option}"}

    @pytest.fixture
    def tf32(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A GPU that can, as far as torch is asked; all switches as before afterwards."""
        monkeypatch.setattr(build, "is_torch_tf32_available", lambda: True)
        yield
        backends: Any = torch.backends
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True
        for part in (backends, backends.cuda.matmul, backends.mkldnn.matmul):
            part.fp32_precision = "none"
        for part in (backends.cudnn.conv, backends.cudnn.rnn):
            part.fp32_precision = "tf32"

    @pytest.mark.usefixtures("tf32")
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, "none"),
            ({"tf32": True}, "tf32"),
            ({"tf32": False}, "ieee"),
            ({"tf32": False, "torch_compile": True}, "ieee"),
            ({"torch_compile": True}, "tf32"),
            ({"torch_compile": True, "fp16": True}, "none"),
        ],
    )
    def test_tf32_by_all_switches(self, options: dict[str, Any], expected: str) -> None:
        """torch raises when one is read that differs from the other ones; its compiler reads."""
        build._set_tf32(TrainingSpec(**options))
        assert torch.backends.cuda.matmul.fp32_precision == expected
        assert torch.backends.cuda.matmul.allow_tf32 is (expected == "tf32")
        assert torch.backends.cudnn.allow_tf32 is (expected != "ieee")
        assert torch.get_float32_matmul_precision() == ("high" if expected == "tf32" else "highest")

    @pytest.mark.usefixtures("tf32")
    @pytest.mark.parametrize(("asked", "expected"), [(True, 155.9e12), (False, 19.5e12)])
    def test_tf32_holds_from_the_start_to_the_summary(
        self, monkeypatch: pytest.MonkeyPatch, asked: bool, expected: float
    ) -> None:
        """Also against Accelerate, which turns it on for a compiled model in float32."""

        def accelerate(**_arguments: Any) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = True
            return SimpleNamespace(device=torch.device("cpu"))

        monkeypatch.setattr(build, "Accelerator", accelerate)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA A100-SXM4-80GB")
        build.accelerator(spec_of({"tf32": asked, "torch_compile": True}))
        assert flops.peak_flops(torch.device("cuda"), "no") == expected


class TestCompile:
    @pytest.mark.heavy  # compiles
    def test_the_model_is_compiled_and_saved_bare(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the back end that runs the traced graph as it is, to need no compiler here."""
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "that of all")
        torch.compiler.reset()
        # Of one size, as each other one is compiled by itself.
        data = {"train": rows(16, length=12), "validation": rows(8, length=12)}
        options = {**SHORT, "dropout": 0.0, "eval_strategy": "epoch", **data}
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        job = make_job(**options, torch_compile_backend="eager")
        compiled, recorder = run(job.request())
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
        plain, other = run(make_job(**options).request())
        expected = other.train_values("loss")
        assert recorder.train_values("loss") == pytest.approx(expected, rel=1e-5)
        assert compiled.metrics["eval_loss"] == pytest.approx(plain.metrics["eval_loss"], rel=1e-5)
        saved = load_file(job.workspace / str(compiled.output_dir) / "model.safetensors")
        assert not any("_orig_mod" in name for name in saved)
        own = job.request().attempt_dir / "compiled" / "0"
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == own, "no killed stage spoils it"

    def test_back_end_and_mode(self) -> None:
        plugin = build._compiler(TrainingSpec(torch_compile_mode="max-autotune"), has_gpu=True)
        assert plugin is not None
        assert (plugin.backend.value.lower(), plugin.mode) == ("inductor", "max-autotune")
        assert build._compiler(TrainingSpec(), has_gpu=True) is None

    def test_what_a_cpu_cannot_compile_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.which", lambda name: None)
        for options, reason in (
            ({"torch_compile": True}, r"needs a C\+\+ compiler"),
            ({"torch_compile_backend": "cudagraphs"}, "needs a GPU"),
        ):
            with fails_with(FailureCode.INVALID_OPTION, reason):
                build._compiler(TrainingSpec.model_validate(options), has_gpu=False)


class TestMemoryCache:
    def test_every_so_many_steps(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        emptied: list[int] = []
        monkeypatch.setattr(loop, "clear_device_cache", lambda: emptied.append(1))
        run(make_job(max_steps=7, save_strategy="no", torch_empty_cache_steps=3).request())
        assert len(emptied) == 2
        run(make_job(max_steps=7, save_strategy="no").request())
        assert len(emptied) == 2
