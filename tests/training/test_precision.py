"""worker.training.precision: what `auto` comes to, and that a resumed training keeps it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.contract.events import Notice
from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from tests.training.support import Job, Recorder, run
from tests.training.test_build import spec_of
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
    for name in ("cpu_has_bf16", "gpu_has_bf16"):
        monkeypatch.setattr(precision, name, lambda: request.param)
    return bool(request.param)


class TestResolved:
    @pytest.mark.parametrize("on_gpu", [False, True])
    def test_auto_is_bf16_where_it_is_computed_in(
        self, model_dir: Path, able: bool, on_gpu: bool
    ) -> None:
        training = precision.resolved(spec_of({}), model_dir, on_gpu=on_gpu).training
        assert training.precision == ("bf16" if able else "fp32")
        assert (training.bf16, training.fp16) == (able, False)

    def test_not_over_weights_of_another_dtype(self, model_dir: Path, able: bool) -> None:
        for dtype in ("auto", "bfloat16", "float16"):
            model = {"name_or_path": "/models/tiny", "dtype": dtype}
            spec = JobSpec.model_validate(spec_of({}).model_dump() | {"model": model})
            assert precision.resolved(spec, model_dir, on_gpu=False).training.precision == "fp32"

    def test_not_with_a_model_that_fails_in_it(self, model_dir: Path, able: bool) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        spec = precision.resolved(spec_of({}), model_dir, on_gpu=False)
        assert spec.training.precision == "fp32"

    def test_nor_by_request(self, model_dir: Path) -> None:
        (model_dir / "config.json").write_text('{"model_type": "deberta"}')
        with pytest.raises(StageError, match=r"cannot be `bf16`.*use `fp32`") as caught:
            precision.resolved(spec_of({"bf16": True}), model_dir, on_gpu=False)
        assert caught.value.failure.code is FailureCode.INVALID_OPTION

    @pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
    def test_what_is_asked_for_stays(self, model_dir: Path, able: bool, name: str) -> None:
        spec = spec_of({"precision": name})
        assert precision.resolved(spec, model_dir, on_gpu=True, earlier="bf16") == spec

    def test_what_a_training_began_with_stays(self, model_dir: Path, able: bool) -> None:
        for earlier in ("fp32", "bf16"):
            spec = precision.resolved(spec_of({}), model_dir, on_gpu=False, earlier=earlier)
            assert spec.training.precision == earlier


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
        told = [each.message for each in recorder.of(Notice) if "only imitates" in each.message]
        assert len(told) == (0 if able else 1)

    def test_goes_on_as_it_began_on_another_machine(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
        job = make_job(max_steps=4, save_steps=2, precision="auto")
        whole, _ = run(job.request(1))
        monkeypatch.setattr(precision, "cpu_has_bf16", lambda: False)
        kept = job.workspace / "attempts" / "1" / "checkpoints" / "2"
        resumed, recorder = run(job.request(2, resume_from=kept))
        assert said(recorder) == ["bf16"]
        assert resumed.weights_sha256 == whole.weights_sha256

    def test_an_unreadable_checkpoint_says_so(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=2, save_steps=2, precision="auto")
        run(job.request(1))
        kept = job.workspace / "attempts" / "1" / "checkpoints" / "2"
        (kept / "progress.json").write_text("{")
        with pytest.raises(StageError) as caught:
            run(job.request(2, resume_from=kept))
        assert caught.value.failure.code is FailureCode.CHECKPOINT_UNREADABLE
