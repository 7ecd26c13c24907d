"""worker.training.precision: what `auto` comes to, and that a resumed training keeps it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from tests.training.support import float16
from tests.training.support.factories import spec_of
from tests.training.support.jobs import Job, Recorder, fails_with, run, tiny_model
from worker.training import cpu_products, precision
from worker.training.cpu_products import Seconds, Trial


def reported(recorder: Recorder) -> list[Any]:
    return [each.data["precision"] for each in recorder.of(Notice) if "precision" in each.data]


FASTER, SLOWER = Seconds(float32=2.0, bfloat16=1.0), Seconds(float32=1.0, bfloat16=2.0)


class TestCPU:
    @pytest.mark.parametrize(
        ("seconds", "chosen"),
        [
            pytest.param(Seconds(1.0, 0.26), "bf16", id="Zen 5"),
            pytest.param(Seconds(1.0, 1.57), "fp32", id="Emerald Rapids without AMX"),
            pytest.param(Seconds(1.0, 0.15), "bf16", id="Sapphire Rapids with AMX"),
            pytest.param(Seconds(1.0, 0.45), "bf16", id="ARM with bf16"),
            pytest.param(Seconds(1.0, 17.0), "fp32", id="no AVX-512"),
        ],
    )
    def test_auto_is_what_is_faster(
        self, model_dir: Path, monkeypatch: pytest.MonkeyPatch, seconds: Seconds, chosen: str
    ) -> None:
        monkeypatch.setattr(cpu_products, "measured", lambda shapes: seconds)
        asked, trial = spec_of({}), Trial([], model_dir / "verdicts")
        spec = precision.resolved(asked, model_dir, trial)
        assert spec.training.precision == chosen
        (notice,) = precision.notices(asked, spec, model_dir, trial)
        assert f"in bfloat16: `precision: auto` is {chosen}" in notice.message
        assert notice.data == {"layer_seconds": vars(seconds)}

    def test_what_is_slower_is_named_where_it_was_asked_for(
        self, model_dir: Path, trial: Trial, able: bool
    ) -> None:
        asked = spec_of({"precision": "bf16"})
        spec = precision.resolved(asked, model_dir, trial)
        assert spec.training.precision == "bf16"
        told = [each.message for each in precision.notices(asked, spec, model_dir, trial)]
        slow = "this CPU 1e+03 ms in float32 and 2e+03 ms in bfloat16: set `precision: fp32`"
        assert told == ([] if able else [f"A pass through layers like this model's takes {slow}"])

    def test_nothing_is_measured_where_nothing_depends_on_it(
        self, model_dir: Path, trial: Trial
    ) -> None:
        resumed = precision.resolved(spec_of({}), model_dir, trial, earlier="fp32")
        named = spec_of({"precision": "fp32"})
        for asked, spec in ((spec_of({}), resumed), (named, named)):
            assert list(precision.notices(asked, spec, model_dir, trial)) == []
        assert trial.seconds is None


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    return tmp_path


@pytest.fixture(params=[True, False], ids=["able", "unable"])
def able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    seconds = FASTER if request.param else SLOWER
    monkeypatch.setattr(cpu_products, "measured", lambda shapes: seconds)
    return bool(request.param)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial([], tmp_path / "verdicts")


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
    def test_auto_on_a_cpu(self, model_dir: Path, trial: Trial, able: bool) -> None:
        training = precision.resolved(spec_of({}), model_dir, trial).training
        assert training.precision == ("bf16" if able else "fp32")
        assert (training.bf16, training.fp16) == (able, False)

    def test_not_over_weights_of_another_dtype(
        self, model_dir: Path, trial: Trial, able: bool
    ) -> None:
        for dtype in ("auto", "bfloat16", "float16"):
            spec = job_of({}, dtype=dtype)
            assert precision.resolved(spec, model_dir, trial).training.precision == "fp32"

    @pytest.mark.parametrize(
        ("gpu", "chosen"), list(zip(GPUS, ["bf16", "fp16", "fp16", "fp32"], strict=True))
    )
    def test_auto_by_what_a_gpu_is_fast_in(
        self, model_dir: Path, gpus: Callable[..., None], gpu: str, chosen: str
    ) -> None:
        gpus(gpu)
        training = precision.resolved(spec_of({}), model_dir, None).training
        expected = (chosen, chosen == "bf16", chosen == "fp16")
        assert (training.precision, training.bf16, training.fp16) == expected

    def test_processes_choose_the_same_on_different_gpus(
        self, model_dir: Path, gpus: Callable[..., None]
    ) -> None:
        gpus("NVIDIA A100-SXM4-80GB", "Tesla T4")
        for processes, chosen in ((1, "bf16"), (2, "fp16")):
            spec = spec_of({}, resources={"gpus": processes})
            found = precision.resolved(spec, model_dir, None).training.precision
            assert found == chosen

    @pytest.mark.parametrize("kind", ["t5", "mt5", "pegasus", "gemma3_text"])
    def test_no_float16_for_models_that_overflow_in_it(
        self, model_dir: Path, gpus: Callable[..., None], kind: str
    ) -> None:
        (model_dir / "config.json").write_text(json.dumps({"model_type": kind}))
        gpus("Tesla T4")
        spec = spec_of({})
        chosen = precision.resolved(spec, model_dir, None)
        assert chosen.training.precision == "fp32"
        (notice,) = precision.notices(spec, chosen, model_dir, None)
        assert "exceed the range of float16" in notice.message
        assert notice.data == {"model_type": kind}
        gpus("NVIDIA A100-SXM4-80GB")
        chosen = precision.resolved(spec, model_dir, None)
        assert chosen.training.precision == "bf16"
        assert list(precision.notices(spec, chosen, model_dir, None)) == []

    def test_known_types_are_types_of_models(self) -> None:
        """But for those of a composite that no task of ours loads."""
        assert set(transformers.CONFIG_MAPPING.keys()) >= precision._OVERFLOWING

    def test_no_scaling_where_it_is_refused(
        self, model_dir: Path, gpus: Callable[..., None]
    ) -> None:
        gpus("Tesla T4", "Tesla T4")
        resources = {"gpus": 2, "strategy": {"type": "fsdp"}}
        spec = precision.resolved(spec_of({}, resources=resources), model_dir, None)
        assert spec.training.precision == "fp32"

    @pytest.mark.parametrize(
        ("gpu", "words"),
        [("Tesla T4", "peak 8.1 teraflops, and 65.1 in float16"), ("Tesla P40", "no faster")],
    )
    def test_an_emulated_bf16_is_reported_with_its_speed(
        self, model_dir: Path, gpus: Callable[..., None], gpu: str, words: str
    ) -> None:
        gpus(gpu)
        spec = spec_of({"bf16": True})
        assert precision.resolved(spec, model_dir, None) == spec
        (notice,) = precision.notices(spec, spec, model_dir, None)
        assert "only emulates bfloat16" in notice.message
        assert words in notice.message
        gpus("NVIDIA A100-SXM4-80GB")
        assert list(precision.notices(spec, spec, model_dir, None)) == []

    def test_a_frozen_float16_model_under_an_adapter_is_scaled(
        self, model_dir: Path, trial: Trial, gpus: Callable[..., None]
    ) -> None:
        gpus("NVIDIA A100-SXM4-80GB")
        (model_dir / "config.json").write_text('{"model_type": "gpt2", "dtype": "float16"}')
        for dtype, cpu, chosen in (
            ("auto", None, "fp16"),
            ("float16", None, "fp16"),
            ("auto", trial, "fp32"),
            ("bfloat16", None, "fp32"),
        ):
            spec = job_of({}, dtype=dtype, **LORA)
            found = precision.resolved(spec, model_dir, cpu).training.precision
            assert found == chosen

    def test_not_with_a_model_that_fails_in_it(self, model_dir: Path, trial: Trial) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        spec = precision.resolved(spec_of({}), model_dir, trial)
        assert spec.training.precision == "fp32"

    @pytest.mark.parametrize("name", ["bf16", "fp16"])
    def test_nor_by_request(self, model_dir: Path, name: str) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        with fails_with(FailureCode.INVALID_OPTION, rf"cannot be `{name}`.*use `fp32`"):
            precision.resolved(spec_of({name: True}), model_dir, None)

    @pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
    def test_what_is_asked_for_stays(self, model_dir: Path, name: str) -> None:
        spec = spec_of({"precision": name})
        assert precision.resolved(spec, model_dir, None, earlier="bf16") == spec

    def test_what_a_training_began_with_stays(
        self, model_dir: Path, trial: Trial, able: bool
    ) -> None:
        for earlier in ("fp32", "bf16"):
            spec = precision.resolved(spec_of({}), model_dir, trial, earlier=earlier)
            assert spec.training.precision == earlier


class TestFloat16Checkpoints:
    """Trained with `model.dtype: auto`, by the real stage."""

    @pytest.fixture
    def job(self, make_job: Callable[..., Job]) -> Job:
        job = make_job(dtype="auto", precision="auto", max_steps=3, save_steps=2)
        tiny_model().half().save_pretrained(job.home / "model")
        return job

    def notices(self, recorder: Recorder) -> list[Any]:
        return [each for each in recorder.of(Notice) if "stored_dtype" in each.data]

    def test_all_weights_train_as_float32(self, job: Job) -> None:
        result, recorder = run(job.request())
        (notice,) = self.notices(recorder)
        assert notice.data == {"stored_dtype": "float16", "dtype": "float32"}
        saved = load_file(job.workspace / str(result.output_dir) / "model.safetensors")
        assert {value.dtype for value in saved.values()} == {torch.float32}
        job.dtype = "float32"
        plain, other = run(job.request(2))
        assert self.notices(other) == []
        assert plain.weights_sha256 == result.weights_sha256

    def test_with_loss_scaling(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        float16.on_cpu(monkeypatch)
        job.training["precision"] = "fp16"
        result, recorder = run(job.request())
        assert len(self.notices(recorder)) == 1
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
    def test_reports_what_auto_became(self, make_job: Callable[..., Job], able: bool) -> None:
        chosen = "bf16" if able else "fp32"
        options = {"max_steps": 2, "save_strategy": "no"}
        result, auto = run(make_job(precision="auto", **options).request())
        assert reported(auto) == [result.precision] == [chosen]
        assert any("(`precision: auto`)" in each.message for each in auto.of(Notice))
        named, recorder = run(make_job(precision=chosen, bf16=able, **options).request())
        assert recorder.train_values("loss") == auto.train_values("loss")
        assert named.weights_sha256 == result.weights_sha256
        assert not any("`precision: auto`" in each.message for each in recorder.of(Notice))

    def test_reports_that_another_is_faster(self, make_job: Callable[..., Job], able: bool) -> None:
        _, recorder = run(make_job(precision="bf16", max_steps=1, save_strategy="no").request())
        told = [
            each.data for each in recorder.of(Notice) if "set `precision: fp32`" in each.message
        ]
        assert told == ([] if able else [{"layer_seconds": vars(SLOWER)}])

    def test_goes_on_as_it_began_on_another_machine(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cpu_products, "measured", lambda shapes: FASTER)
        job = make_job(max_steps=4, save_steps=2, precision="auto")
        whole, _ = run(job.request(1))
        monkeypatch.setattr(cpu_products, "measured", lambda shapes: SLOWER)
        resumed, recorder = run(job.request(2, resume_from=job.checkpoint(2)))
        assert reported(recorder) == ["bf16"]
        assert resumed.weights_sha256 == whole.weights_sha256

    def test_an_unreadable_checkpoint_is_reported(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=2, save_steps=2, precision="auto")
        run(job.request(1))
        kept = job.checkpoint(2)
        (kept / "progress.json").write_text("{")
        with fails_with(FailureCode.CHECKPOINT_UNREADABLE):
            run(job.request(2, resume_from=kept))
