"""worker.training.cpu_products: what is measured of a model's products, and kept of it."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from worker.storage import verdicts
from worker.training import cpu_products, cpu_trials
from worker.training.cpu_products import Seconds, Trial

FIGURES = Seconds(float32=2.0, bfloat16=1.0)


class TestShapes:
    def test_the_largest_shares_come_first(self) -> None:
        with torch.device("meta"):
            bert = BertModel(
                BertConfig(num_hidden_layers=2, hidden_size=384, num_attention_heads=6)
            )
            gpt2 = GPT2Model(GPT2Config(n_layer=2, n_embd=384, n_head=6))
        # Of four square ones in each layer and one in the pooler, and of 384 inputs.
        assert cpu_products.shapes(bert) == [(384, 3072), (3072, 384), (384, 384)]
        assert cpu_products.shapes(gpt2) == [(384, 1536), (1536, 384), (384, 1152)]

    def test_without_a_layer(self) -> None:
        assert cpu_products.shapes(nn.Embedding(3, 4)) == []


class TestMeasured:
    def test_leaves_threads_random_numbers_and_gradients_alone(self) -> None:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        found = cpu_products.measured([(256, 256)])
        assert 0 < found.float32 < 10
        assert 0 < found.bfloat16 < 10
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)

    def test_sums_the_shortest_times_of_each_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a row takes 0.1 µs for each output, twice that in bfloat16, and every second try
        takes ten times as long, because others compute."""
        asked: list[tuple[tuple[int, int], int]] = []
        calls = count()

        class Product:
            def __init__(self, shape: tuple[int, int], clock: Any) -> None:
                self.shape = shape

            def seconds(self, rows: int) -> Seconds:
                asked.append((self.shape, rows))
                each = 1e-7 * rows * self.shape[1] * (10 if next(calls) % 2 else 1)
                return Seconds(each, 2 * each)

        monkeypatch.setattr(cpu_products, "_Product", Product)
        found = cpu_products.measured([(256, 256), (256, 512)], clock=lambda: 0.0)
        assert (found.float32, found.bfloat16) == pytest.approx((0.0196608, 0.0393216))
        tried = [((256, 256), 64)] * 4 + [((256, 256), 256)] * 10
        assert asked == tried + [((256, 512), 64)] * 4 + [((256, 512), 256)] * 10

    def test_a_slow_moment_at_the_beginning_decides_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = count()

        class Product:
            def __init__(self, shape: tuple[int, int], clock: Any) -> None: ...

            def seconds(self, rows: int) -> Seconds:
                return Seconds(0.001, 5.0) if next(calls) < 3 else Seconds(0.001, 0.0005)

        monkeypatch.setattr(cpu_products, "_Product", Product)
        assert cpu_products.measured([(256, 256)]) == Seconds(0.001, 0.0005)

    def test_stops_after_a_shape_that_took_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = count()
        asked: list[tuple[int, int]] = []

        class Product:
            def __init__(self, shape: tuple[int, int], clock: Any) -> None:
                asked.append(shape)

            def seconds(self, rows: int) -> Seconds:
                return Seconds(1.0, 20.0)

        monkeypatch.setattr(cpu_products, "_Product", Product)
        found = cpu_products.measured([(256, 256), (256, 512)], clock=lambda: float(next(clock)))
        assert (found, asked) == (Seconds(1.0, 20.0), [(256, 256)])


def asked(model_shapes: list[Any], folder: Path) -> Seconds | None:
    trial = Trial(model_shapes, folder)
    trial.bfloat16_is_faster()
    return trial.seconds


class TestTrial:
    @pytest.fixture(autouse=True)
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        found: list[Any] = []

        def measured(shapes: Any) -> Seconds:
            found.append(shapes)
            return FIGURES

        monkeypatch.setattr(cpu_products, "measured", measured)
        return found

    def test_is_made_once_on_a_machine(
        self, tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(2):
            assert asked([(64, 64), (384, 5000)], tmp_path) == FIGURES
        assert measured == [[(384, 384), (384, 1024)]]
        others = {"cpu_name": "Xeon", "cpu_microcode": "another", "cpu_flags": ["sse"]}
        for name, other in others.items():
            monkeypatch.setattr(cpu_trials, name, lambda other=other: other)
            assert Trial([(64, 64), (384, 5000)], tmp_path).bfloat16_is_faster()
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        assert Trial([(64, 64), (384, 5000)], tmp_path).bfloat16_is_faster()
        assert len(measured) == 5

    def test_without_layers_it_is_of_usual_ones(self, tmp_path: Path, measured: list[Any]) -> None:
        assert asked([], tmp_path) == FIGURES
        assert measured == [[(768, 768), (768, 1024), (1024, 768)]]

    def test_a_damaged_verdict_is_measured_again(self, tmp_path: Path, measured: list[Any]) -> None:
        assert asked([], tmp_path) == FIGURES
        (file,) = tmp_path.glob("*.json")
        words = '{"float32": "fast", "bfloat16": "slow"}'
        for damage in ("{", "[]", '{"float32": 1}', '{"other": 1}', words):
            file.write_text(damage)
            assert asked([], tmp_path) == FIGURES
        assert len(measured) == 6

    def test_what_cannot_be_kept_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each process of a training would go by figures of its own."""
        monkeypatch.setattr(verdicts, "write", lambda *_: False)
        trial = Trial([], tmp_path)
        assert not trial.bfloat16_is_faster()
        assert trial.seconds is None
