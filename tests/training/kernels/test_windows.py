"""Windows, chunks and blocks: batches without padding give what each row gives by itself, or stay
padded."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks import attention_windows
from benchmarks.attention_windows import PACKED, TOLERANCE, ModelComparison
from service.contract.stage.events import Notice
from tests.support.gpus import packed_kernels
from tests.training.kernels.gpu_choice import CPU, capability, given, spec
from tests.training.support.jobs import Recorder
from worker.training.kernels import (
    cpu_attention,
    equivalence_probe,
    gpu_padding_free,
    padding_free,
)

ROOT = Path(__file__).parents[3]
# One of each kind; `test_all_model_types` has the others.
PADDED = {
    **dict.fromkeys(["qwen2_moe", "mistral", "modernbert", "t5gemma2"], "mask"),
    "deepseek_v32": "error",  # selects keys, in rows that are long enough
    "gemma3n_text": "mask",  # had no gradient where padding saw no token
    "gpt_neo": "mixes",
    "minimax_m3_vl_text": "argument",
}
TABLE = re.findall(
    r"^\| (\S+) \| ([^|]+) \| ([a-z ]+) \|",
    (ROOT / "docs" / "attention-windows.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Model type, tasks and path."""
NO_WINDOW: dict[str, Any] = {"sliding_window": None}
FULL: dict[str, Any] = {**NO_WINDOW, "layer_types": ["full_attention"] * 2}
PLAIN = ("bert", "gpt2", "llama")
SELDOM = ("cohere", "distilbert", "electra", "gemma", "gpt_neox", "opt", "phi", "roberta")
SELDOM_WITHOUT_WINDOW = ("mixtral", "phi3", "starcoder2")
STAYS: dict[str, dict[str, Any]] = {
    **{name: {} for name in (*PLAIN, *SELDOM)},
    **dict.fromkeys(("mistral", *SELDOM_WITHOUT_WINDOW), NO_WINDOW),
    "qwen2": FULL,
    "qwen2_moe": {"use_sliding_window": False},  # makes a mask for layers that it has not
    "qwen3": FULL,
}


def first_task(model_type: str) -> str:
    names = ("seq2seq", *attention_windows.TASKS)
    return next(n for n in names if model_type in attention_windows.TASKS[n].model_types)


def model_of(name: str, **settings: Any) -> Any:
    config = attention_windows.tiny_config(name, **settings)
    return attention_windows.tiny_model("causal", config)


def assert_right(compared: ModelComparison) -> None:
    assert compared.right, compared
    assert compared.plain.gradients <= TOLERANCE, compared


@pytest.mark.parametrize("name", PADDED)
def test_a_model_with_a_window_stays_padded(name: str) -> None:
    compared = attention_windows.compare(name, first_task(name))
    assert_right(compared)
    assert compared.path == PADDED[name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.heavy)
        if name in (*SELDOM, *SELDOM_WITHOUT_WINDOW)
        else name
        for name in STAYS
    ],
)
def test_the_fast_path_stays_on(name: str) -> None:
    compared = attention_windows.compare(name, first_task(name), **STAYS[name])
    assert_right(compared)
    assert compared.path == PACKED


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "tasks", "path"), TABLE)
def test_all_model_types(name: str, tasks: str, path: str) -> None:
    for task in tasks.split(", "):
        compared = attention_windows.compare(name, task)
        assert compared.right, compared
        assert compared.path == path


# As published: no probe has rows as long as these.
LONG: dict[str, dict[str, Any]] = {
    "llama4_text": {"attention_chunk_size": 8192},
    "phimoe": {"sliding_window": 131072},
    "qwen2_moe": {"sliding_window": 4096},
}


@pytest.mark.parametrize("name", LONG)
def test_a_window_that_is_longer_than_the_probe_is_seen(name: str) -> None:
    model = model_of(name, **LONG[name])
    assert padding_free.install(model) is None
    assert model.config._attn_implementation == cpu_attention.NAME
    assert padding_free.install(model_of(name, **LONG[name]).bfloat16()) is None


@pytest.mark.parametrize(
    ("no_rope_layers", "kind", "free"),
    [
        ([1, 1], "full_attention", True),
        ([1, 0], "full_attention", False),  # a scale of the scores, by the place in the row
        ([1, 1], "chunked_attention", False),
    ],
)
def test_a_small_model_shows_what_a_mask_does_not(
    monkeypatch: pytest.MonkeyPatch, no_rope_layers: list[int], kind: str, free: bool
) -> None:
    if kind != "full_attention":
        monkeypatch.setattr(cpu_attention, "packed_mask", lambda _function, _device: None)
    settings = {"attention_chunk_size": 8192, "floor_scale": 8192, "layer_types": [kind] * 2}
    model = model_of("llama4_text", no_rope_layers=no_rope_layers, **settings)
    assert (padding_free.install(model) is not None) == free


def test_a_selection_that_begins_beyond_the_probe_is_left_to_the_model() -> None:
    model = model_of("deepseek_v32", index_topk=2048)
    before = model.config._attn_implementation
    assert padding_free.install(model) is None
    assert model.config._attn_implementation == before != cpu_attention.NAME


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("phi3", {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [9.0] * 8}),
        ("llama", {"rope_type": "dynamic", "factor": 4.0}),
    ],
)
def test_positions_are_scaled_by_the_longest_sequence(name: str, rope: dict[str, Any]) -> None:
    """And not by the packed row, which is longer than what was pretrained."""
    parameters = {**rope, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    settings = {"max_position_embeddings": 64, "rope_parameters": parameters}
    model = model_of(name, sliding_window=None, **settings)
    model.config.original_max_position_embeddings = 64
    lengths = (20, 50, 40)
    ids = torch.arange(50).expand(3, 50) + 3
    mask = (torch.arange(50) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        expected = [
            model(input_ids=ids[row : row + 1, :length]).logits[0]
            for row, length in enumerate(lengths)
        ]
        assert padding_free.install(model) is not None
        found = model(input_ids=ids, attention_mask=mask).logits
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row], rtol=1e-4, atol=1e-5)


def test_a_small_models_windows_are_shorter_than_the_probe() -> None:
    config = transformers.LongformerConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, attention_window=[512, 512],
    )  # fmt: skip
    model = transformers.LongformerForMaskedLM(config)
    assert equivalence_probe.depends_on_length(model)
    small = equivalence_probe.small_model(model, CPU)
    assert small.config.attention_window == [2, 2]
    assert min(equivalence_probe.LENGTHS[1:]) > 2 * 2
    assert not equivalence_probe.depends_on_length(small)
    assert config.attention_window == [512, 512]


def test_few_models_pay_for_a_second_probe() -> None:
    for name in ("bert", "gpt2", "llama", "mistral", "qwen2", "roberta"):
        settings = STAYS.get(name, {})
        config = attention_windows.tiny_config(name, **settings)
        model = attention_windows.tiny_model(first_task(name), config)
        assert not equivalence_probe.depends_on_length(model), name


class TestGPU:
    @pytest.mark.parametrize("name", LONG)
    def test_a_window_in_the_mask_alone_stays_padded(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        capability(monkeypatch, (8, 0))
        recorder = Recorder()
        inputs = given(tmp_path, recorder)
        with packed_kernels.on_the_cpu():
            why = gpu_padding_free.install(model_of(name, **LONG[name]), spec(), CPU, inputs)
        assert why is not None
        assert inputs.fast_paths.chosen["attention"] == {"kernel": "padded"}
        (notice,) = recorder.of(Notice)
        assert attention_windows.REASONS["mask"] in notice.message
