"""CausalLMObjective: the loss of documents that share a block, and predictions without the logits
of whole blocks."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from tests.contract.factories import job_spec
from tests.tasks.language_modeling.conftest import TEXTS, Make
from tests.training.support.jobs import fails_with
from worker.tasks.base import PreparedSplit, load_splits
from worker.tasks.language_modeling.causal_lm import CausalLMObjective, require_separable
from worker.training import build
from worker.training.adapters import quantization
from worker.training.loss import chunked_cross_entropy


def objective_of(
    rows: list[dict[str, Any]],
    model: transformers.PreTrainedModel,
    linear: torch.nn.Linear | None = None,
) -> CausalLMObjective:
    features = datasets.Dataset.from_list(rows)
    split = PreparedSplit(features, features)
    return CausalLMObjective({"train": split, "test": split}, model, None, linear)


def architectures() -> list[Any]:
    small: dict[str, Any] = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
    }
    return [
        transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=64),
        transformers.LlamaConfig(**small, **sizes),
        transformers.GPTNeoXConfig(**small, **sizes),
        transformers.Qwen2Config(**small, **sizes, num_key_value_heads=1),
    ]


class TestSeparateDocuments:
    """In one block, documents give exactly what each of them gives alone."""

    LENGTHS = (7, 1, 4, 12)

    def model(self, config: Any, dtype: torch.dtype = torch.float32) -> Any:
        transformers.set_seed(1)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()

    def documents(self) -> list[list[int]]:
        draw = torch.Generator().manual_seed(2)
        return [torch.randint(50, (size,), generator=draw).tolist() for size in self.LENGTHS]

    def block(self) -> dict[str, Any]:
        documents = self.documents()
        starts = [int(at == 0) for document in documents for at in range(len(document))]
        starts[0] = 0  # a block that begins in the middle of a document
        return {"input_ids": list(chain.from_iterable(documents)), "starts": starts}

    @pytest.mark.parametrize("config", architectures(), ids=lambda config: config.model_type)
    def test_loss_and_gradients_are_those_of_each_alone(self, config: Any) -> None:
        model = self.model(config, torch.float64)
        objective = objective_of([self.block()], model)
        batch = objective.collate([self.block(), self.block()])
        packed = objective.loss_sum(model, batch)
        packed.backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        alone = torch.zeros((), dtype=torch.float64)
        for document in self.documents():
            ids = torch.tensor([document])
            logits = model(ids).logits[:, :-1]
            if logits.shape[1]:
                alone += 2 * torch.nn.functional.cross_entropy(
                    logits[0].float(), ids[0, 1:], reduction="sum"
                )
        alone.backward()
        assert objective.item_count(batch) == 2 * sum(size - 1 for size in self.LENGTHS)
        assert packed.item() == pytest.approx(alone.item(), rel=1e-6)
        for name, gradient in gradients.items():
            expected = model.get_parameter(name).grad
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)

    def test_joined_documents_see_each_other(self) -> None:
        model = self.model(architectures()[0])
        block = self.block()
        separate = objective_of([block], model)
        joined = objective_of([{"input_ids": block["input_ids"]}], model)
        batches = [
            separate.collate([block]),
            joined.collate([{"input_ids": block["input_ids"]}]),
        ]
        losses = [
            objective.loss_sum(model, batch).item()
            for objective, batch in zip((separate, joined), batches, strict=True)
        ]
        assert [separate.item_count(batches[0]), joined.item_count(batches[1])] == [20, 23]
        assert abs(losses[0] / 20 - losses[1] / 23) > 1e-3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("config", architectures(), ids=lambda config: config.model_type)
    def test_models_that_can(self, config: Any, dtype: torch.dtype) -> None:
        """What is made without a device comes to lie where the model is not, as for a GPU."""
        model = self.model(config, dtype)
        with torch.device("meta"):
            require_separable(model)

    def test_models_in_eight_bits_can(self, tmp_path: Path) -> None:
        lora = {"method": "lora", "target_modules": "all-linear", "quantization": {"bits": 8}}
        spec = job_spec(task="causal-lm", peft=lora)
        self.model(architectures()[1]).save_pretrained(tmp_path / "model")
        auto, cpu = transformers.AutoModelForCausalLM, torch.device("cpu")
        loading = quantization.loading(spec, auto, tmp_path / "model", cpu)
        model: Any
        model, _ = build.load_model(auto, tmp_path / "model", "float32", {}, **loading)
        assert model.model.layers[0].self_attn.q_proj.weight.dtype == torch.int8
        with torch.device("meta"):
            require_separable(model)

    def test_a_job_in_eight_bits(self, make: Make) -> None:
        training = {"max_steps": 2, "logging_steps": 1, "save_strategy": "no"}
        job = make(block_size=16, separate_documents=True, training=training)
        few = {"quantization": {"bits": 8}, "target_modules": ["c_attn"], "merge": False}
        job.body["peft"] = {"method": "lora", **few}
        result, recorder = job.train()
        assert result.steps == 2
        assert all(5 < loss < 7 for loss in recorder.train_values("loss").values())  # ln 400 is 6

    @pytest.mark.parametrize(
        "config",
        [
            transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1),
            transformers.BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2),
        ],
        ids=lambda config: config.model_type,
    )
    def test_models_that_cannot(self, config: Any) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "`separate_documents` does not work"):
            require_separable(self.model(config))

    @pytest.mark.parametrize("bf16", [False, True])
    def test_rows_of_a_job_are_its_documents(self, make: Make, gpt2: Path, bf16: bool) -> None:
        training = {"max_steps": 2, "bf16": bf16}
        job = make(block_size=16, separate_documents=True, training=training)
        prepared = job.prepare()
        features = load_splits(prepared.prepared_dir)["train"].features
        everything = [start for starts in features["starts"] for start in starts]
        tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
        lengths = [len(tokenizer(text).input_ids) for text in TEXTS]
        expected = [int(at == 0) for length in lengths for at in range(length)]
        assert everything == expected[: len(everything)]
        assert job.train()[0].steps == 2


@pytest.mark.parametrize("separate", [False, True])
def test_an_evaluation_needs_no_logits_of_whole_blocks(tmp_path: Path, separate: bool) -> None:
    """The same predictions as with them."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(architectures()[0]).eval()
    starts = {"starts": [0, 0, 0, 0, 1, 0, 1, 0, 0]} if separate else {}
    rows = [{"input_ids": torch.randint(50, (9,)).tolist(), **starts} for _ in range(5)]
    lengths: list[int] = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: lengths.append(out.shape[1]))

    def forward(features: Any, collate: Any, run: Any = None, **_: Any) -> Any:
        for indices in ([3, 0], [1, 2, 4]):
            with torch.no_grad():
                found = run(model, collate([features[index] for index in indices]))
            yield indices, found

    written, lengths_of = [], []
    for linear in (None, chunked_cross_entropy.plain_head(model)):
        objective = objective_of(rows, model, linear)
        lengths.clear()
        evaluation = objective.evaluate("test", forward, tmp_path)
        assert evaluation is not None
        written.append(json.loads(evaluation.files["test/predictions.json"].read_text()))
        lengths_of.append(set(lengths))
    assert lengths_of == [{9}, {1}]
    assert [row["tokens"] for row in written[1]] == [6 if separate else 8] * 5
    for one, other in zip(*written, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
