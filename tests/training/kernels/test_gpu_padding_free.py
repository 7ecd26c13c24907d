"""gpu_padding_free: packed batches on a GPU, its kernels computed on the CPU."""

import copy
import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import varlen

from service.contract.failures import FailureCode
from service.contract.stage.events import Notice
from tests.support.gpus import packed_kernels
from tests.support.gpus.packed_kernels import PackedKernels
from tests.training.kernels.gpu_choice import CPU, capability, given, spec
from tests.training.kernels.padding import LLAMA, QA, SIZES, gradients, right
from tests.training.kernels.padding import batch as left_batch
from tests.training.support.jobs import Job, Recorder, fails_with, run
from worker.training import build
from worker.training.kernels import (
    attention_masks,
    equivalence_probe,
    gpu_padding_free,
    padding_free,
    varlen_attention,
)

CAUSAL = transformers.AutoModelForCausalLM
GPT2 = transformers.GPT2Config(
    vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=2,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (QA, transformers.BertConfig(**SIZES)),
    "roberta": (QA, transformers.RobertaConfig(**{**SIZES, "pad_token_id": 1})),
    "gpt2": (CAUSAL, GPT2),
    "llama": (CAUSAL, transformers.LlamaConfig(**LLAMA, num_key_value_heads=1)),
}
DROPPING = {**SIZES, "attention_probs_dropout_prob": 0.25}


@pytest.fixture
def kernels() -> Iterator[PackedKernels]:
    with packed_kernels.on_the_cpu() as made:
        yield made


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    capability(monkeypatch, (8, 0))


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    auto, config = MODELS[name]
    return auto.from_config(copy.deepcopy(config)).train()  # which attention, it keeps there


def shown(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    attention_masks.read_batch(batch)
    padding_free.read_batch(batch, batch)
    return batch


def last_output(output: Any) -> torch.Tensor:
    value: torch.Tensor = output[0]
    return value


class TestNumbers:
    @pytest.mark.parametrize("kernel", ["varlen", "efficient"])
    @pytest.mark.parametrize("name", MODELS)
    def test_are_those_of_the_padded_batch(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, name: str, kernel: str
    ) -> None:
        """In bfloat16 autocast, where flash attention exists, and in float32."""
        model, batch = model_of(name), right(left_batch())
        real = batch["attention_mask"].bool()
        half = kernel == "varlen"
        tolerance = 0.03 if half else 1e-5
        precision = torch.autocast("cpu", torch.bfloat16, enabled=half)
        with precision:
            padded = model(**batch)[0][real].float()
        expected = gradients(model, padded.square().sum())
        options = spec(precision="bf16" if half else "fp32")
        assert gpu_padding_free.install(model, options, CPU, given(tmp_path, Recorder())) is None
        kernels.calls.clear()
        with precision:
            packed = model(**shown(batch))[0][real].float()
        found = gradients(model, packed.square().sum())
        torch.testing.assert_close(packed, padded, rtol=tolerance, atol=tolerance)
        for weight, value in expected.items():
            assert (found[weight] - value).norm() <= tolerance * (value.norm() + 1), weight
        causal = name in ("gpt2", "llama")
        groups = 1 if name == "llama" and half else 2
        # 5, 11, 2 and 11 tokens, and filler up to 32.
        call = {"kernel": kernel, "sizes": [5, 11, 2, 11, 3], "heads": (2, groups)}
        window = {"window": (-1, 0) if causal else (-1, -1)} if half else {}
        assert kernels.calls == [{**call, "causal": causal, **window}] * 2

    def test_a_batch_without_padding_goes_in_whole(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path
    ) -> None:
        model = model_of("bert")
        batch = {"input_ids": left_batch()["input_ids"], "attention_mask": torch.ones(4, 11).long()}
        expected = model(**batch)[0]
        assert gpu_padding_free.install(model, spec(), CPU, given(tmp_path, Recorder())) is None
        kernels.calls.clear()
        torch.testing.assert_close(model(**shown(batch))[0], expected)
        assert kernels.calls == []

    def test_a_batch_that_was_not_shown_stays_padded(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path
    ) -> None:
        model, batch = model_of("bert"), right(left_batch())
        real = batch["attention_mask"].bool()
        expected = model(**batch)[0][real]
        assert gpu_padding_free.install(model, spec(), CPU, given(tmp_path, Recorder())) is None
        kernels.calls.clear()
        shown({name: value.clone() for name, value in batch.items()})
        torch.testing.assert_close(model(**batch)[0][real], expected)
        assert kernels.calls == []

    def test_an_empty_sequence_is_not_given_to_a_kernel(self) -> None:
        mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
        sequences = padding_free._Layout.from_mask(mask).for_kernel("varlen")
        assert sequences.starts.tolist() == [0, 3, 4, 8]
        assert (sequences.longest, sequences.starts.dtype) == (4, torch.int32)

    def test_float32_in_an_evaluation_never_comes_to_flash_attention(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path
    ) -> None:
        model = model_of("bert")
        gpu_padding_free.install(model, spec(precision="bf16"), CPU, given(tmp_path, Recorder()))
        kernels.calls.clear()
        model(**shown(right(left_batch())))
        assert kernels.names == ["efficient"] * 2


class TestKernels:
    def test_by_device_precision_and_dropout(self) -> None:
        both, one = ["varlen", "efficient"], ["efficient"]
        for dtype in (torch.bfloat16, torch.float16):
            assert varlen_attention.kernels((8, 0), dtype, 0.0) == both
            assert varlen_attention.kernels((9, 0), dtype, 0.1) == one
            assert varlen_attention.kernels((7, 5), dtype, 0.0) == one
        assert varlen_attention.kernels((9, 0), torch.float32, 0.0) == one

    def test_torch_still_takes_what_it_is_given(self) -> None:
        parameters = inspect.signature(varlen.varlen_attn).parameters
        in_order = [
            name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        assert in_order == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
        assert {"scale", "window_size", "enable_gqa"} <= parameters.keys()
        assert parameters["window_size"].default == (-1, -1)
        schema = torch.ops.aten._efficient_attention_forward.default._schema
        assert [argument.name for argument in schema.arguments][:12] == [
            *("query", "key", "value", "bias", "cu_seqlens_q", "cu_seqlens_k"),
            *("max_seqlen_q", "max_seqlen_k", "dropout_p", "custom_mask_type"),
            *("compute_log_sumexp", "scale"),
        ]
        assert schema.returns[0].name == "output"

    @pytest.mark.parametrize(
        ("name", "dropout"),
        [("attention_probs_dropout_prob", 0.25), ("hidden_dropout_prob", 0.0)],
    )
    def test_a_models_attention_dropout(self, name: str, dropout: float) -> None:
        config = transformers.BertConfig(**{**SIZES, name: 0.25})
        assert gpu_padding_free.attention_dropout(config) == dropout

    def test_dropout_is_required_to_act(self, kernels: PackedKernels) -> None:
        gpu_padding_free.require_dropout("efficient", 0.25, torch.float32, CPU)
        kernels.forgets_dropout = True
        with pytest.raises(RuntimeError, match="its dropout does not drop single weights"):
            gpu_padding_free.require_dropout("efficient", 0.4, torch.float32, CPU)


class TestChoice:
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    def choose(
        self, tmp_path: Path, recorder: Recorder, recorded: Any = None, **options: Any
    ) -> tuple[str | None, dict[str, Any]]:
        name = options.pop("model", "llama")
        model = name if isinstance(name, torch.nn.Module) else model_of(name)
        made = given(tmp_path, recorder, recorded)
        why = gpu_padding_free.install(model, spec(**options), CPU, made)
        return why, made.fast_paths.chosen.get("attention", {})

    def test_is_recorded(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        why, chosen = self.choose(tmp_path, recorder, precision="bf16")
        assert why is None
        assert chosen == {"kernel": "varlen", "is_body": False, "first": 0}
        assert recorder.events == []
        _, roberta = self.choose(tmp_path, recorder, model="roberta", precision="bf16")
        assert roberta == {"kernel": "varlen", "is_body": False, "first": 2}

    def test_a_later_job_of_the_kind_compares_nothing(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        first = self.choose(tmp_path, recorder, precision="bf16")
        assert kernels.calls
        kernels.calls.clear()
        assert self.choose(tmp_path, recorder, precision="bf16") == first
        assert kernels.calls == []
        self.choose(tmp_path, recorder, precision="bf16", model="gpt2")
        assert kernels.calls

    def test_a_damaged_verdict_is_found_again(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        first = self.choose(tmp_path, recorder, precision="bf16")
        for file in tmp_path.iterdir():
            file.write_text("{")
        kernels.calls.clear()
        assert self.choose(tmp_path, recorder, precision="bf16") == first
        assert kernels.calls

    def test_a_kernel_that_fails_is_left_out_with_an_event(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        kernels.error = "no kernel image is available"
        why, chosen = self.choose(tmp_path, recorder, precision="bf16")
        assert (why, chosen["kernel"]) == (None, "efficient")
        (notice,) = recorder.of(Notice)
        assert notice.message == (
            "The fast path `varlen` is not used: it fails: RuntimeError: no kernel image is "
            "available. The kernel `efficient` is tried instead"
        )
        assert notice.data["fast_path"] == "varlen"
        kernels.error = None  # what failed once is tried again
        assert self.choose(tmp_path, recorder, precision="bf16")[1]["kernel"] == "varlen"

    @pytest.mark.parametrize("precision", ["bf16", "fp32"])
    def test_kernels_that_mix_sequences_are_left_out(
        self,
        kernels: PackedKernels,
        ampere: None,
        tmp_path: Path,
        recorder: Recorder,
        precision: str,
    ) -> None:
        kernels.sees_all = True
        why, chosen = self.choose(tmp_path, recorder, precision=precision, model="bert")
        assert why is not None
        assert chosen == {"kernel": "padded"}
        messages = [each.message for each in recorder.of(Notice)]
        assert len(messages) == (2 if precision == "bf16" else 1)
        assert "sequences would attend to each other" in messages[-1]
        assert "group_by_length" in messages[-1]

    @pytest.mark.parametrize("name", MODELS)
    def test_a_flash_attention_that_mixes_sequences_differs(
        self,
        kernels: PackedKernels,
        ampere: None,
        tmp_path: Path,
        recorder: Recorder,
        name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Seen in bfloat16, where rounding is coarse, though the other kernel is right."""
        real = varlen.varlen_attn

        def whole(query: Any, key: Any, value: Any, *_starts: Any, **options: Any) -> Any:
            starts = torch.tensor([0, len(query)], dtype=torch.int32)
            return real(query, key, value, starts, starts, len(query), len(query), **options)

        monkeypatch.setattr(varlen, "varlen_attn", whole)
        why, chosen = self.choose(tmp_path, recorder, precision="bf16", model=name)
        assert (why, chosen["kernel"]) == (None, "efficient")
        (notice,) = recorder.of(Notice)
        assert "`varlen` is not used: it differs: relative difference" in notice.message
        assert notice.data["difference"] > notice.data["allowed"]

    def test_dropout_is_never_left_out(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        model = QA.from_config(transformers.BertConfig(**DROPPING)).train()
        why, chosen = self.choose(tmp_path, recorder, precision="bf16", model=model)
        assert (why, chosen["kernel"]) == (None, "efficient")
        kernels.calls.clear()
        batch = shown(right(left_batch()))
        with torch.autocast("cpu", torch.bfloat16):
            one, other = model(**batch)[0], model(**batch)[0]
        assert not torch.equal(one, other)
        assert kernels.names == ["efficient"] * 4

    def test_a_kernel_without_its_dropout_is_left_out(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        kernels.forgets_dropout = True
        model = QA.from_config(transformers.BertConfig(**DROPPING)).train()
        why, _ = self.choose(tmp_path, recorder, precision="bf16", model=model)
        assert why is not None
        assert "its dropout" in recorder.of(Notice)[0].message

    def test_a_resumed_training_takes_its_own(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        """Whatever a new comparison would find."""
        kernels.sees_all = True
        kept = {"kernel": "efficient", "is_body": True, "first": 0}
        recorded = {"attention": kept}
        why, chosen = self.choose(tmp_path, recorder, recorded, model="bert")
        assert (why, chosen) == (None, kept)
        assert (kernels.calls, recorder.events) == ([], [])

    def test_resumed_on_a_gpu_without_the_kernel(
        self,
        kernels: PackedKernels,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        recorder: Recorder,
    ) -> None:
        capability(monkeypatch, (7, 5))
        kept = {"kernel": "varlen", "is_body": False, "first": 0}
        why, _ = self.choose(tmp_path, recorder, {"attention": kept}, precision="fp16")
        assert why is not None
        assert "resume on a GPU of the same model" in recorder.of(Notice)[0].message

    def test_a_model_without_positions_stays_padded_in_silence(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=99, d_model=16, d_kv=8, num_layers=1, num_heads=2, d_ff=16
            )
        )
        why, chosen = self.choose(tmp_path, recorder, model=model)
        assert (why is None, chosen, recorder.events) == (False, {}, [])

    def test_padding_free_true_explains_why_not(
        self, kernels: PackedKernels, ampere: None, tmp_path: Path, recorder: Recorder
    ) -> None:
        kernels.sees_all = True
        options = spec(padding_free=True)
        with fails_with(FailureCode.INVALID_OPTION, r"`training.padding_free` gives other numbers"):
            build.choose_attention(
                model_of("bert"), options, torch.device("cuda"), given(tmp_path, recorder)
            )


class TestStage:
    @pytest.fixture
    def on_ampere(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackedKernels]:
        with packed_kernels.as_on_ampere(monkeypatch) as made:
            yield made

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_a_resumed_training_computes_as_the_uninterrupted_one(
        self, make_job: Callable[..., Job], on_ampere: PackedKernels, dropout: float
    ) -> None:
        """Also where the comparison would now come out otherwise."""
        options = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4}
        job = make_job(**options, precision="bf16", padding_free=None, dropout=dropout)
        whole, recorder = run(job.request(1))
        kernel = "efficient" if dropout else "varlen"
        assert on_ampere.names[-1] == kernel
        assert sum("without padding" in each.message for each in recorder.of(Notice)) == 1
        kept = job.checkpoint(2)
        recorded = json.loads((kept / "progress.json").read_text())["fast_paths"]["attention"]
        assert recorded == {"kernel": kernel, "is_body": False, "first": 0}
        shutil.rmtree(job.home / "cache" / "equivalence", ignore_errors=True)
        on_ampere.calls.clear()
        resumed, again = run(job.request(2, resume_from=kept))
        assert resumed.weights_sha256 == whole.weights_sha256
        losses = recorder.train_values("loss")
        assert again.train_values("loss") == {step: losses[step] for step in (3, 4)}
        assert set(on_ampere.names) == {kernel}  # and no other was compared
        assert not (job.home / "cache" / "equivalence").exists()

    def test_the_numbers_are_those_of_padded_batches(
        self, make_job: Callable[..., Job], on_ampere: PackedKernels
    ) -> None:
        options = {"max_steps": 3, "save_strategy": "no", "dropout": 0.0}
        _, packed = run(make_job(**options, padding_free=None).request())
        assert on_ampere.names
        on_ampere.calls.clear()
        _, padded = run(make_job(**options, padding_free=False).request())
        assert on_ampere.calls == []
        assert packed.train_values("loss") == pytest.approx(padded.train_values("loss"), rel=1e-5)


class TestShortBatches:
    def test_are_made_of_the_jobs_own_tokens(self) -> None:
        model = model_of("bert")
        features: Any = [{"input_ids": [11 + n, 12 + n, 13 + n, 14 + n]} for n in range(5)]
        batches = equivalence_probe.short_batches(model, features)
        assert [batch["attention_mask"].sum(1).tolist() for batch in batches] == [
            [3, 7, 5],
            [12, 5, 9],
            [16, 25, 20],
        ]
        assert batches[0]["input_ids"].tolist() == [
            [11, 12, 13, 0, 0, 0, 0],
            [12, 13, 14, 15, 12, 13, 14],
            [13, 14, 15, 16, 13, 0, 0],
        ]

    def test_a_shallow_model_has_each_kind_of_layer(self) -> None:
        config = transformers.Qwen2Config(
            **{**LLAMA, "num_hidden_layers": 6, "vocab_size": 5000, "pad_token_id": 4000},
            num_key_value_heads=1,
        )
        config.layer_types = ["full_attention"] * 3 + ["sliding_attention"] * 3
        model = equivalence_probe.small_model(CAUSAL.from_config(config).bfloat16(), CPU)
        assert model.config.layer_types == ["full_attention"] * 3 + ["sliding_attention"]
        assert (len(model.model.layers), model.config.vocab_size) == (4, 1024)
        assert model.config.pad_token_id == 1023
        assert model.dtype == torch.float32
        assert config.num_hidden_layers == 6
