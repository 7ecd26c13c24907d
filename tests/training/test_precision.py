"""worker.training.precision: what `auto` comes to, and that a resumed training keeps it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from service.contract.events import Notice
from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from tests.training import float16
from tests.training.factories import spec_of
from tests.training.support import Job, Recorder, fails_with, run, tiny_model
from worker.training import precision

CPUINFO = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 {}\nbugs\t: none\n"


def said(recorder: Recorder) -> list[Any]:
    return [each.data["precision"] for each in recorder.of(Notice) if "precision" in each.data]


class TestCPU:
    @pytest.mark.parametrize(
        ("flags", "able"),
        [
            ("avx512f avx512_bf16", True),
            ("amx_bf16 amx_tile", True),
            ("avx512f avx512_fp16", False),
        ],
    )
    def test_by_its_flags(self, tmp_path: Path, flags: str, able: bool) -> None:
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(flags))
        assert precision.cpu_has_bf16(tmp_path / "cpuinfo") is able

    def test_unknown_is_no(self, tmp_path: Path) -> None:
        assert precision.cpu_has_bf16(tmp_path / "missing") is False
        (tmp_path / "cpuinfo").write_text("Features\t: fp asimd\n")
        assert precision.cpu_has_bf16(tmp_path / "cpuinfo") is False


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    return tmp_path


@pytest.fixture(params=[True, False], ids=["able", "unable"])
def able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: request.param)
    return bool(request.param)


GPUS = {
    "NVIDIA A100-SXM4-80GB": (8, 0),
    "Tesla T4": (7, 5),
    "Tesla V100-SXM2-16GB": (7, 0),
    "Tesla P40": (6, 1),
}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def have(*names: str) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu=0: GPUS[names[gpu]])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu=0: names[gpu])

    return have


def job_of(training: dict[str, Any], *, dtype: str = "float32", **sections: Any) -> JobSpec:
    model = {"name_or_path": "/models/tiny", "dtype": dtype}
    return JobSpec.model_validate(spec_of(training, **sections).model_dump() | {"model": model})


LORA = {"peft": {"method": "lora", "r": 2}}


class TestResolved:
    def test_auto_is_bf16_where_it_is_computed_in(self, model_dir: Path, able: bool) -> None:
        training = precision.resolved(spec_of({}), model_dir, on_gpu=False).training
        assert training.precision == ("bf16" if able else "fp32")
        assert (training.bf16, training.fp16) == (able, False)

    def test_not_over_weights_of_another_dtype(self, model_dir: Path, able: bool) -> None:
        for dtype in ("auto", "bfloat16", "float16"):
            spec = job_of({}, dtype=dtype)
            assert precision.resolved(spec, model_dir, on_gpu=False).training.precision == "fp32"

    @pytest.mark.parametrize(
        ("gpu", "chosen"), list(zip(GPUS, ["bf16", "fp16", "fp16", "fp32"], strict=True))
    )
    def test_auto_by_what_a_gpu_is_fast_in(
        self, model_dir: Path, gpus: Callable[..., None], gpu: str, chosen: str
    ) -> None:
        gpus(gpu)
        training = precision.resolved(spec_of({}), model_dir, on_gpu=True).training
        expected = (chosen, chosen == "bf16", chosen == "fp16")
        assert (training.precision, training.bf16, training.fp16) == expected

    def test_processes_choose_the_same_on_different_gpus(
        self, model_dir: Path, gpus: Callable[..., None]
    ) -> None:
        gpus("NVIDIA A100-SXM4-80GB", "Tesla T4")
        for processes, chosen in ((1, "bf16"), (2, "fp16")):
            spec = spec_of({}, resources={"gpus": processes})
            found = precision.resolved(spec, model_dir, on_gpu=True).training.precision
            assert found == chosen

    @pytest.mark.parametrize("kind", ["t5", "mt5", "pegasus", "gemma3_text"])
    def test_no_float16_for_models_that_overflow_in_it(
        self, model_dir: Path, gpus: Callable[..., None], kind: str
    ) -> None:
        (model_dir / "config.json").write_text(json.dumps({"model_type": kind}))
        gpus("Tesla T4")
        spec = spec_of({})
        chosen = precision.resolved(spec, model_dir, on_gpu=True)
        assert chosen.training.precision == "fp32"
        (told,) = precision.notices(spec, chosen, model_dir, on_gpu=True)
        assert "exceed the range of float16" in told.message
        assert told.data == {"model_type": kind}
        gpus("NVIDIA A100-SXM4-80GB")
        chosen = precision.resolved(spec, model_dir, on_gpu=True)
        assert chosen.training.precision == "bf16"
        assert list(precision.notices(spec, chosen, model_dir, on_gpu=True)) == []

    def test_known_types_are_types_of_models(self) -> None:
        """But for those of a composite that no task of ours loads."""
        assert set(transformers.CONFIG_MAPPING.keys()) >= precision._OVERFLOWING

    def test_no_scaling_where_it_is_refused(
        self, model_dir: Path, gpus: Callable[..., None]
    ) -> None:
        gpus("Tesla T4", "Tesla T4")
        resources = {"gpus": 2, "strategy": {"type": "fsdp"}}
        spec = precision.resolved(spec_of({}, resources=resources), model_dir, on_gpu=True)
        assert spec.training.precision == "fp32"

    @pytest.mark.parametrize(
        ("gpu", "words"),
        [("Tesla T4", "peak 8.1 teraflops, and 65.1 in float16"), ("Tesla P40", "no faster")],
    )
    def test_an_imitated_bf16_is_told_with_its_speed(
        self, model_dir: Path, gpus: Callable[..., None], gpu: str, words: str
    ) -> None:
        gpus(gpu)
        spec = spec_of({"bf16": True})
        assert precision.resolved(spec, model_dir, on_gpu=True) == spec
        (told,) = precision.notices(spec, spec, model_dir, on_gpu=True)
        assert "only emulates bfloat16" in told.message
        assert words in told.message
        gpus("NVIDIA A100-SXM4-80GB")
        assert list(precision.notices(spec, spec, model_dir, on_gpu=True)) == []

    def test_a_frozen_float16_model_under_an_adapter_is_scaled(
        self, model_dir: Path, gpus: Callable[..., None]
    ) -> None:
        gpus("NVIDIA A100-SXM4-80GB")
        (model_dir / "config.json").write_text('{"model_type": "gpt2", "dtype": "float16"}')
        for dtype, on_gpu, chosen in (
            ("auto", True, "fp16"),
            ("float16", True, "fp16"),
            ("auto", False, "fp32"),
            ("bfloat16", True, "fp32"),
        ):
            spec = job_of({}, dtype=dtype, **LORA)
            found = precision.resolved(spec, model_dir, on_gpu=on_gpu).training.precision
            assert found == chosen

    def test_not_with_a_model_that_fails_in_it(self, model_dir: Path, able: bool) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        spec = precision.resolved(spec_of({}), model_dir, on_gpu=False)
        assert spec.training.precision == "fp32"

    @pytest.mark.parametrize("name", ["bf16", "fp16"])
    def test_nor_by_request(self, model_dir: Path, name: str) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        with fails_with(FailureCode.INVALID_OPTION, rf"cannot be `{name}`.*use `fp32`"):
            precision.resolved(spec_of({name: True}), model_dir, on_gpu=True)

    @pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
    def test_what_is_asked_for_stays(self, model_dir: Path, able: bool, name: str) -> None:
        spec = spec_of({"precision": name})
        assert precision.resolved(spec, model_dir, on_gpu=True, earlier="bf16") == spec

    def test_what_a_training_began_with_stays(self, model_dir: Path, able: bool) -> None:
        for earlier in ("fp32", "bf16"):
            spec = precision.resolved(spec_of({}), model_dir, on_gpu=False, earlier=earlier)
            assert spec.training.precision == earlier


class TestFloat16Checkpoints:
    """Trained with `model.dtype: auto`, by the real stage."""

    @pytest.fixture
    def job(self, make_job: Callable[..., Job]) -> Job:
        job = make_job(dtype="auto", precision="auto", max_steps=3, save_steps=2)
        tiny_model().half().save_pretrained(job.home / "model")
        return job

    def told(self, recorder: Recorder) -> list[Any]:
        return [each for each in recorder.of(Notice) if "stored_dtype" in each.data]

    def test_all_weights_train_as_float32(self, job: Job) -> None:
        result, recorder = run(job.request())
        (told,) = self.told(recorder)
        assert told.data == {"stored_dtype": "float16", "dtype": "float32"}
        saved = load_file(job.workspace / str(result.output_dir) / "model.safetensors")
        assert {value.dtype for value in saved.values()} == {torch.float32}
        job.dtype = "float32"
        plain, other = run(job.request(2))
        assert self.told(other) == []
        assert plain.weights_sha256 == result.weights_sha256

    def test_with_loss_scaling(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        float16.on_cpu(monkeypatch)
        job.training["precision"] = "fp16"
        result, recorder = run(job.request())
        assert len(self.told(recorder)) == 1
        assert result.precision == "fp16"
        assert len(recorder.train_values("loss")) == 3

    def test_weights_that_cannot_be_scaled_are_refused_before_the_first_step(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        float16.on_cpu(monkeypatch)
        job.training["precision"], job.dtype = "fp16", "float16"
        recorder = Recorder()
        with pytest.raises(StageError, match=r"set `model.dtype` to `float32`") as caught:
            run(job.request(), recorder)
        assert caught.value.failure.details["option"] == "training.fp16"
        assert "transformer.wte.weight" in caught.value.failure.details["weights"]
        assert recorder.train_values("loss") == {}

    def test_others_are_loaded_as_they_are(self, tmp_path: Path) -> None:
        config = tmp_path / "config.json"
        for stored, options in (
            ("bfloat16", {}),
            ("float32", {}),
            ("float16", LORA),
            ("float16", {"mode": "predict", "dataset": {"source": "path", "test": "/data/t.json"}}),
        ):
            config.write_text(json.dumps({"model_type": "bert", "dtype": stored}))
            spec = job_of({}, dtype="auto", **options)
            assert precision.with_trainable_weights(spec, tmp_path) is spec

    def test_what_auto_loads(self, tmp_path: Path) -> None:
        config = tmp_path / "config.json"
        config.write_text('{"model_type": "bert", "torch_dtype": "float16"}')
        assert precision.stored_dtype(tmp_path) == "float16"
        config.write_text('{"model_type": "bert"}')
        assert precision.stored_dtype(tmp_path) is None
        weights = {"ids": torch.zeros(1, dtype=torch.int64), "w": torch.zeros(1).half()}
        save_file(weights, tmp_path / "model.safetensors")
        assert precision.stored_dtype(tmp_path) == "float16"


class TestStage:
    def test_says_what_auto_came_to(self, make_job: Callable[..., Job], able: bool) -> None:
        chosen = "bf16" if able else "fp32"
        options = {"max_steps": 2, "save_strategy": "no"}
        result, auto = run(make_job(precision="auto", **options).request())
        assert said(auto) == [result.precision] == [chosen]
        assert any("(`precision: auto`)" in each.message for each in auto.of(Notice))
        named, recorder = run(make_job(precision=chosen, bf16=able, **options).request())
        assert recorder.train_values("loss") == auto.train_values("loss")
        assert named.weights_sha256 == result.weights_sha256
        assert not any("`precision: auto`" in each.message for each in recorder.of(Notice))

    def test_says_that_the_cpu_imitates(self, make_job: Callable[..., Job], able: bool) -> None:
        _, recorder = run(make_job(precision="bf16", max_steps=1, save_strategy="no").request())
        told = [each.message for each in recorder.of(Notice) if "only emulates" in each.message]
        assert len(told) == (0 if able else 1)

    def test_goes_on_as_it_began_on_another_machine(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
        job = make_job(max_steps=4, save_steps=2, precision="auto")
        whole, _ = run(job.request(1))
        monkeypatch.setattr(precision, "cpu_has_bf16", lambda: False)
        resumed, recorder = run(job.request(2, resume_from=job.checkpoint(2)))
        assert said(recorder) == ["bf16"]
        assert resumed.weights_sha256 == whole.weights_sha256

    def test_an_unreadable_checkpoint_says_so(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=2, save_steps=2, precision="auto")
        run(job.request(1))
        kept = job.checkpoint(2)
        (kept / "progress.json").write_text("{")
        with fails_with(FailureCode.CHECKPOINT_UNREADABLE):
            run(job.request(2, resume_from=kept))
