"""worker.training.kernels.cpu_attention_choice: what is measured of the attention, and chosen."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedConfig

from service.contract.spec.spec import JobSpec
from tests.training.kernels.gpu_choice import spec
from tests.training.support.jobs import Job, run
from worker.storage import verdicts
from worker.training.fast_paths import FastPaths
from worker.training.kernels import cpu_attention, cpu_attention_choice
from worker.training.kernels.cpu_attention import Kernels
from worker.training.kernels.cpu_attention_choice import Seconds, Shape, measured

FUSED = Seconds(1.0, 2.0, 1.0, 2.0)
SLIGHTLY = Seconds(1.0, 1.1, 1.0, 1.1)
PLAIN = Seconds(2.0, 1.0, 2.0, 1.0)
EVALUATIONS = Seconds(2.0, 1.0, 1.0, 2.0)
ALL_FUSED = Kernels("fused", "fused")


def features_of(*lengths: int) -> list[dict[str, Any]]:
    return [{"input_ids": [1] * length} for length in lengths]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = cpu_attention._kernels
    yield
    cpu_attention.use(before)


class TestKernels:
    @pytest.mark.parametrize(
        ("milliseconds", "training", "evaluation"),
        [
            pytest.param((102.2, 60.2, 32.0, 23.5), "plain", "plain", id="Zen 4, 512"),
            pytest.param((167.3, 130.8, 58.4, 46.4), "plain", "plain", id="Zen 4, 2048"),
            pytest.param((71.7, 27.6, 6.0, 11.2), "plain", "fused", id="Xeon with AMX, 184"),
            pytest.param((144.0, 111.0, 19.5, 37.9), "plain", "fused", id="Xeon with AMX, 512"),
            pytest.param((153.0, 227.0, 27.5, 87.8), "fused", "fused", id="Xeon with AMX, 2048"),
        ],
    )
    def test_the_faster_one(
        self, milliseconds: tuple[float, ...], training: str, evaluation: str
    ) -> None:
        kernels = Seconds(*milliseconds).kernels
        assert (kernels.training, kernels.evaluation) == (training, evaluation)

    def test_a_little_faster_is_noise(self) -> None:
        assert SLIGHTLY.kernels == Kernels("plain", "plain")

    @pytest.mark.parametrize(
        ("dtype", "trains", "expected"),
        [
            (torch.bfloat16, True, "fused"),
            (torch.bfloat16, False, "plain"),
            (torch.float32, True, "fused"),
            (torch.float32, False, "fused"),
        ],
    )
    def test_attention_takes_them(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, trains: bool, expected: str
    ) -> None:
        taken = []
        for name in ("fused", "plain"):
            own = getattr(cpu_attention, name)

            def noting(*given: Any, name: str = name, own: Any = own, **named: Any) -> Any:
                taken.append(name)
                return own(*given, **named)

            monkeypatch.setattr(cpu_attention, name, noting)
        cpu_attention.use(Kernels(training="fused", evaluation="plain"))
        module = torch.nn.Module().train(trains)
        query, key, value = (torch.randn(1, 2, 9, 4, dtype=dtype) for _ in range(3))
        for dropout in (0.0, 0.5):
            cpu_attention.attention(module, query, key, value, None, dropout)
        assert taken == [expected, "plain"]


class TestShape:
    def test_is_that_of_a_typical_example(self) -> None:
        config = BertConfig(
            num_hidden_layers=1, hidden_size=48, num_attention_heads=6, intermediate_size=8
        )
        found = cpu_attention_choice.shape_of(BertModel(config), features_of(3, 130, 200, 250, 400))
        assert found == Shape(heads=6, tokens=256, width=8, causal=False)

    def test_a_language_models(self) -> None:
        config = LlamaConfig(
            num_hidden_layers=1,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=8,
            vocab_size=9,
        )
        model = LlamaModel(config)
        shapes = [
            cpu_attention_choice.shape_of(model, features_of(*lengths))
            for lengths in ((5,), (1024,), (9000,), ())
        ]
        assert shapes == [
            Shape(heads, tokens, 16, causal=True)
            for heads, tokens in ((4, 64), (2, 1024), (1, 2048), (1, 2048))
        ]

    @pytest.mark.parametrize(
        ("settings", "heads", "width"),
        [
            ({"num_attention_heads": [4, 8], "head_dim": [64, 32], "hidden_size": 384}, 12, 32),
            ({"num_attention_heads": 6, "hidden_size": 384}, 6, 64),
            ({}, 12, 64),
        ],
        ids=["one for each layer", "no width", "neither"],
    )
    def test_of_unusual_configurations(
        self, settings: dict[str, Any], heads: int, width: int
    ) -> None:
        model: Any = torch.nn.Module()
        model.config = PreTrainedConfig(**settings)
        found = cpu_attention_choice.shape_of(model, features_of(64))
        assert (found.heads, found.width) == (heads, width)


class TestMeasured:
    def test_leaves_threads_random_numbers_and_gradients_alone(self) -> None:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        found = measured(Shape(2, 64, 8, causal=True))
        assert all(0 < each < 10 for each in vars(found).values())
        # With gradients there is more to compute.
        assert found.trained_plain > found.evaluated_plain
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.is_grad_enabled()

    def test_the_shortest_of_three_rounds_where_one_takes_longer_than_there_is_time(self) -> None:
        """A clock on which each attention takes as long as its number."""
        calls = count()
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += next(calls)
            return now

        found = measured(Shape(1, 64, 4, causal=False), clock)
        # Number 0 is asked for the end, the next 8 for what is prepared once. Of each attention the
        # first clock is odd: evaluations come first, then the trainings.
        assert found == Seconds(14.0, 16.0, 10.0, 12.0)


class TestChoose:
    @pytest.fixture(autouse=True)
    def shapes(self, monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
        """That were measured."""
        found: list[Shape] = []

        def measure(shape: Shape) -> Seconds:
            found.append(shape)
            return EVALUATIONS

        monkeypatch.setattr(cpu_attention_choice, "measured", measure)
        return found

    def choose(
        self,
        folder: Path,
        options: JobSpec,
        chosen: Any = None,
        *,
        refers: bool = False,
        **model: Any,
    ) -> tuple[Kernels, FastPaths]:
        made = BertModel(
            BertConfig(
                num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8
            )
        ).to(model.get("dtype", torch.float32))
        made.config._attn_implementation = model.get("attention", cpu_attention.NAME)
        paths = FastPaths(chosen=dict(chosen or {}))
        cpu_attention_choice.choose(made, options, features_of(9), paths, folder, refers=refers)
        return cpu_attention._kernels, paths

    @pytest.mark.parametrize(
        "case",
        [
            ({"precision": "bf16"}, {}),
            ({"bf16_full_eval": True}, {}),
            ({}, {"dtype": torch.bfloat16}),
        ],
        ids=["autocast", "evaluations", "weights"],
    )
    def test_where_it_computes_in_half_precision(self, tmp_path: Path, case: Any) -> None:
        options, model = case
        kernels, paths = self.choose(tmp_path, spec(**options), **model)
        assert kernels == Kernels(training="plain", evaluation="fused")
        assert paths.chosen == {"cpu_attention": {"training": "plain", "evaluation": "fused"}}

    @pytest.mark.parametrize(
        "case", [({}, {}), ({"precision": "bf16"}, {"attention": "eager"})], ids=["float32", "own"]
    )
    def test_measures_nothing_else(self, tmp_path: Path, shapes: list[Shape], case: Any) -> None:
        cpu_attention.use(ALL_FUSED)  # of the job before, in this process
        kernels, _ = self.choose(tmp_path, spec(**case[0]), **case[1])
        assert (kernels, shapes) == (Kernels(), [])

    def test_measures_once_on_a_machine(self, tmp_path: Path, shapes: list[Shape]) -> None:
        for _ in range(2):
            self.choose(tmp_path, spec(precision="bf16"))
        assert shapes == [Shape(2, 64, 4, causal=False)]

    def test_a_resumed_training_keeps_its_own(self, tmp_path: Path, shapes: list[Shape]) -> None:
        began = {"cpu_attention": {"training": "fused", "evaluation": "fused"}}
        kernels, paths = self.choose(tmp_path, spec(precision="bf16"), began)
        assert (kernels, paths.chosen, shapes) == (ALL_FUSED, began, [])

    def test_values_to_compare_with_come_from_the_trainings_kernel(self, tmp_path: Path) -> None:
        kernels, _ = self.choose(tmp_path, spec(precision="bf16"), refers=True)
        assert kernels == Kernels("plain", "plain")

    def test_what_cannot_be_kept_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verdicts, "write", lambda *_: False)
        assert self.choose(tmp_path, spec(precision="bf16"))[0] == Kernels()


class TestStage:
    def figures(self, monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
        monkeypatch.setattr(cpu_attention_choice, "measured", lambda _shape: seconds)

    def chosen(self, job: Job, step: int) -> Any:
        progress = json.loads((job.checkpoint(step) / "progress.json").read_text())
        return progress["fast_paths"].get(cpu_attention_choice.PATH)

    def test_a_resumed_training_computes_as_the_uninterrupted_one(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the measurement would now come out otherwise, which the numbers show."""
        self.figures(monkeypatch, FUSED)
        options: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "precision": "bf16"}
        job, other = (make_job(**options, padding_free=None, dropout=0.0) for _ in range(2))
        whole, recorder = run(job.request(1))
        assert self.chosen(job, 2) == {"training": "fused", "evaluation": "fused"}
        self.figures(monkeypatch, PLAIN)
        resumed, again = run(job.request(2, resume_from=job.checkpoint(2)))
        assert resumed.weights_sha256 == whole.weights_sha256
        assert recorder.train_values("loss").items() >= again.train_values("loss").items()
        elsewhere, _ = run(other.request(1))
        assert elsewhere.weights_sha256 != whole.weights_sha256

    def test_a_checkpoint_of_an_earlier_release_goes_on_with_plain_products(
        self, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "precision": "bf16"}
        job = make_job(**options, padding_free=None, dropout=0.0)
        cpu_attention.use(Kernels())
        with monkeypatch.context() as earlier:
            earlier.setattr(cpu_attention_choice, "choose", lambda *_, **__: None)
            whole, _ = run(job.request(1))
        assert self.chosen(job, 2) is None
        self.figures(monkeypatch, FUSED)
        resumed, _ = run(job.request(2, resume_from=job.checkpoint(2)))
        assert resumed.weights_sha256 == whole.weights_sha256
