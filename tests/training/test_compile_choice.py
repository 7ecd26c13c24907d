"""worker.training.compile_choice, on the CPU and by torch's back end that only traces."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from service.contract.stage import prepared_data
from service.contract.stage.events import Notice
from service.contract.stage.stages import StageRequest, TrainResult
from tests.contract.factories import job_spec
from tests.training.support.jobs import Job, Killed, Recorder, rows, run
from worker.training import compile_choice
from worker.training.checkpointing import state

# Of dynamo itself, which looks at each tensor that a layer is given.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]
MAY_BE_MEASURED = compile_choice.may_be_measured
OPTIONS: dict[str, Any] = {
    **{"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4, "precision": "fp32"},
    "padding_free": False,
}
Make = Callable[..., StageRequest]


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As far as the choice is concerned; every training is long enough."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "that of all")
    monkeypatch.setattr(compile_choice, "may_be_measured", lambda spec: spec.trains)
    monkeypatch.setattr(compile_choice, "_HOW", {"backend": "eager"})
    monkeypatch.setattr(compile_choice, "_PAYS_FROM", 0.0)
    torch.compiler.reset()
    with torch._dynamo.config.patch(suppress_errors=False):
        yield
    torch.compiler.reset()


@pytest.fixture
def make(make_job: Callable[..., Job], tmp_path: Path) -> Make:
    """Jobs of one kind, that share a cache."""

    def make(attempt: int = 1, resume_from: Path | None = None) -> StageRequest:
        request = make_job(**OPTIONS, train=rows(16, length=12)).request(attempt, resume_from)
        return request.model_copy(update={"cache_dir": tmp_path / "cache"})

    return make


def timed(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """The passes take so long, one after the other: a first look, plain, compiled."""
    taken = iter(seconds)
    passed = compile_choice._Passes.seconds

    def measure(passes: compile_choice._Passes) -> float:
        passed(passes)
        return next(taken)

    monkeypatch.setattr(compile_choice._Passes, "seconds", measure)


class Compiler:
    """In the place of torch's: the layers compute as before, times `factor`."""

    def __init__(self) -> None:
        self.layers: list[torch.nn.Module] = []
        self.factor = 1.0
        self.fails: BaseException | None = None

    def __call__(self, layer: torch.nn.Module) -> None:
        self.layers.append(layer)
        if self.fails is not None:
            raise self.fails

        def call(*arguments: Any, **named: Any) -> Any:
            states = layer._call_impl(*arguments, **named)
            return states if self.factor == 1.0 else states * self.factor

        layer._compiled_call_impl = call


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(compile_choice, "_compile", made)
    return made


def messages(recorder: Recorder) -> list[str]:
    found = [each.message for each in recorder.events if isinstance(each, Notice)]
    return [each for each in found if "layers" in each]


def chosen(request: StageRequest) -> Any:
    progress = state.read_progress(request.attempt_dir / "checkpoints" / "4")
    return progress["fast_paths"]["compiled_layers"]


def kept(request: StageRequest) -> Any:
    """For later jobs of the kind."""
    [file] = (request.cache_dir / prepared_data.COMPILED).glob("*/verdict.json")
    return json.loads(file.read_text())


@pytest.fixture
def plain(make: Make, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainResult, Recorder]:
    """The training without any of it."""
    with monkeypatch.context() as patch:
        patch.setattr(compile_choice, "may_be_measured", lambda _: False)
        return run(make())


def assert_same(one: tuple[TrainResult, Recorder], other: tuple[TrainResult, Recorder]) -> None:
    assert one[0].weights_sha256 == other[0].weights_sha256
    for name in ("loss", "grad_norm"):
        assert one[1].train_values(name) == other[1].train_values(name)


def test_a_slower_measurement_leaves_no_trace(
    make: Make, plain: tuple[TrainResult, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's own tracing of the layers, dropout and all."""
    timed(monkeypatch, 3.0, 3.0, 2.88)
    request = make()
    found = run(request)
    assert_same(found, plain)
    assert messages(found[1]) == [
        "Measuring whether compiled layers are faster",
        "The layers stay as they are: a batch takes 1.0000 s plain and 0.9600 s compiled",
    ]
    assert chosen(request) is False
    assert kept(request) is False
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_faster_layers_are_compiled_and_stay_so_when_resumed(
    make: Make,
    plain: tuple[TrainResult, Recorder],
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(monkeypatch, 3.0, 3.0, 1.5)
    request = make()
    found = run(request)
    assert_same(found, plain)  # this back end computes what the layers do
    assert (
        "The layers are compiled: a batch takes 1.0000 s plain and 0.5000 s"
        in messages(found[1])[1]
    )
    assert chosen(request) is True
    assert len(compiler.layers) == 4

    monkeypatch.setattr(compile_choice, "_pays", lambda *_: pytest.fail("measured again"))
    earlier = request.attempt_dir / "checkpoints" / "2"
    again = request.model_copy(
        update={"attempt": 2, "attempt_dir": request.attempt_dir.with_name("2")}
    )
    again.attempt_dir.mkdir()
    resumed, _ = run(again.model_copy(update={"resume_from": earlier}))
    assert resumed.weights_sha256 == found[0].weights_sha256
    assert chosen(again) is True
    assert len(compiler.layers) == 6


def test_the_next_job_of_the_kind_measures_nothing(
    make: Make, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 3.0, 3.0, 1.5, 3.0)
    request = make()
    run(request)
    assert kept(request) is True
    compiler.layers.clear()
    _, recorder = run(make())
    assert messages(recorder) == [
        "The layers are compiled: an earlier job of this kind has measured that it is faster"
    ]
    assert len(compiler.layers) == 2


def test_layers_that_compute_something_else_are_left_out(
    make: Make, plain: tuple[TrainResult, Recorder], compiler: Compiler
) -> None:
    compiler.factor = 1.05
    request = make()
    found = run(request)
    assert_same(found, plain)
    assert messages(found[1])[1].startswith(
        "The layers are not compiled: ArithmeticError: their gradients are "
    )
    assert chosen(request) is False
    assert kept(request) is False


def test_a_compiler_that_fails_ends_no_training(
    make: Make, plain: tuple[TrainResult, Recorder], compiler: Compiler
) -> None:
    compiler.fails = RuntimeError("raised:\nno C compiler" + 400 * "!")
    found = run(make())
    assert_same(found, plain)
    [_, why] = messages(found[1])
    assert why.startswith("The layers are not compiled: RuntimeError: raised: no C compiler!!!")
    assert len(why) < 400


def test_one_that_takes_too_long_is_given_up(
    make: Make, plain: tuple[TrainResult, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_choice, "_MOST_SECONDS", -1.0)
    found = run(make())
    assert_same(found, plain)
    assert messages(found[1]) == ["Whether compiled layers are faster was not measured: no verdict "
                              "after -1 s"]  # fmt: skip


def test_an_attempt_that_dies_measuring_is_the_last_to_measure(
    make: Make, compiler: Compiler
) -> None:
    compiler.fails = Killed()
    with pytest.raises(Killed):
        run(make())
    compiler.layers.clear()
    compiler.fails = None
    request = make(2)
    _, recorder = run(request)
    assert messages(recorder) == []
    assert compiler.layers == []
    assert chosen(request) is False


def test_a_short_training_is_not_measured(
    make: Make, plain: tuple[TrainResult, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_choice, "_PAYS_FROM", 1800.0)
    timed(monkeypatch, 1349.0)  # of three batches, and there are four
    request = make()
    found = run(request)
    assert_same(found, plain)
    assert messages(found[1]) == []
    assert not list((request.cache_dir / prepared_data.COMPILED).glob("*verdict*"))


def test_only_training_calls_the_compiled_layers() -> None:
    calls: list[int] = []

    def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        return lambda *inputs: calls.append(1) or graph(*inputs)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = self.linear(states) + 1
            return moved

    layer = Layer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_choice, "_HOW", {"backend": counting})
        compile_choice._compile(layer)
    assert list(layer.state_dict()) == ["linear.weight", "linear.bias"]
    layer.eval()(torch.ones(1, 2))
    assert calls == []
    layer.train()(torch.ones(1, 2))
    assert calls == [1]


class TestWhenItIsMeasured:
    def test_not_where_rows_are_packed(self, make: Make, compiler: Compiler) -> None:
        request = make()
        training = request.spec.training.model_copy(update={"padding_free": True})
        spec = request.spec.model_copy(update={"training": training})
        _, recorder = run(request.model_copy(update={"spec": spec}))
        assert messages(recorder) == []
        assert compiler.layers == []

    @pytest.mark.parametrize(
        ("expected", "training", "resources"),
        [
            (True, {}, {"gpus": 1}),
            (True, {"bf16": True}, {"gpus": 2}),
            (False, {"compile_if_faster": False}, {"gpus": 1}),
            (False, {"torch_compile": True}, {"gpus": 1}),
            (False, {"full_determinism": True}, {"gpus": 1}),
            (False, {"neftune_noise_alpha": 5.0}, {"gpus": 1}),
            (False, {}, {"gpus": 2, "strategy": {"type": "fsdp"}}),
            (False, {}, {"gpus": 0}),
            (False, {"use_cpu": True}, {}),
        ],
    )
    def test_by_the_options(
        self, expected: bool, training: Any, resources: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        spec = job_spec(task="causal-lm", training=training, resources=resources)
        assert MAY_BE_MEASURED(spec) is expected
