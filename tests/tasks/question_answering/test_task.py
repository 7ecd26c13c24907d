import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, BertConfig, DistilBertConfig

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.tasks.parameters import QuestionAnsweringSpec
from tests.data.squad_sample import squad_rows
from tests.support.factories import make_spec
from worker.tasks import registry
from worker.tasks.base import PrepareContext, PreparedSplit, parameters_of
from worker.tasks.question_answering.metrics import squad_v1, squad_v2
from worker.tasks.question_answering.task import QuestionAnswering, QuestionAnsweringObjective

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def qa_spec(**task: Any) -> JobSpec:
    defaults = {"type": "question-answering", "max_seq_length": 128, "doc_stride": 32}
    dataset = {"source": "hub", "name": "squad", "validation": "validation"}
    return make_spec(task=defaults | task, dataset=dataset)


def prepare(
    folder: Path, tokenizer: Any, spec: JobSpec, split: str, rows: list[dict[str, Any]]
) -> PreparedSplit:
    task = registry.get("question-answering")
    examples = datasets.Dataset.from_list(rows, features=task.example_schema())
    notices: list[Notice] = []
    length = task.max_length(spec.task, None)
    context = PrepareContext(spec, tokenizer, None, length, notices.append, lambda _done, _of: None)
    task.prepare(split, examples, context, folder / f"{split}.arrow")
    return PreparedSplit(examples, datasets.Dataset.from_file(str(folder / f"{split}.arrow")))


def tiny_bert(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_config(
        BertConfig(vocab_size=len(tokenizer), **TINY), attn_implementation="eager"
    )
    torch.nn.init.normal_(model.qa_outputs.weight, std=3.0)  # so that answers differ
    return model.eval()


def bind(
    folder: Path, tokenizer: Any, *, model: Any = None, rows: int = 24, **task: Any
) -> tuple[QuestionAnsweringObjective, Any, dict[str, PreparedSplit]]:
    spec = qa_spec(**task)
    version = "2.0" if parameters_of(spec, QuestionAnsweringSpec).version_2_with_negative else "1.1"
    splits = {
        split: prepare(folder, tokenizer, spec, split, squad_rows(source, version)[:rows])
        for split, source in (("train", "train"), ("validation", "validation"))
    }
    model = model or tiny_bert(tokenizer)
    objective = QuestionAnswering().bind(spec, tokenizer, model, splits)
    assert isinstance(objective, QuestionAnsweringObjective)
    return objective, model, splits


def forward_with(model: Any, size: int) -> Any:
    """A stand-in for the loop's: batches of `size`, last features first."""

    def forward(features: Any, collate: Any) -> Iterator[tuple[list[int], Any]]:
        order = list(range(len(features)))[::-1]
        for first in range(0, len(order), size):
            indices = order[first : first + size]
            with torch.no_grad():
                yield indices, model(**collate([features[i] for i in indices]))

    return forward


class TestCollate:
    def test_pads_on_the_right_to_the_longest(self, tmp_path: Path, minilm: Any) -> None:
        objective, _, _ = bind(tmp_path, minilm)
        two = sorted((objective.train_features[i] for i in range(24)), key=_length)
        batch = objective.collate([two[0], two[-1]])
        short, long = _length(two[0]), _length(two[-1])
        assert short < long
        assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
            "input_ids": (2, long),
            "token_type_ids": (2, long),
            "attention_mask": (2, long),
            "start_positions": (2,),
            "end_positions": (2,),
        }
        assert batch["input_ids"][0].tolist() == two[0]["input_ids"] + [0] * (long - short)
        assert batch["attention_mask"].sum(1).tolist() == [short, long]
        assert batch["start_positions"].tolist() == [
            f["start_positions"] for f in (two[0], two[-1])
        ]

    def test_labels_move_with_padding_on_the_left(self, tmp_path: Path, minilm_left: Any) -> None:
        objective, _, _ = bind(tmp_path, minilm_left)
        two = sorted((objective.train_features[i] for i in range(24)), key=_length)
        batch = objective.collate([two[0], two[-1]])
        shift = _length(two[-1]) - _length(two[0])
        for name in ("start_positions", "end_positions"):
            label = int(batch[name][0])
            assert label == two[0][name] + shift
            assert batch["input_ids"][0, label] == two[0]["input_ids"][two[0][name]]
        assert batch["attention_mask"][0, :shift].sum() == 0

    def test_leaves_out_token_types_that_the_model_does_not_take(
        self, tmp_path: Path, minilm: Any
    ) -> None:
        config = DistilBertConfig(vocab_size=len(minilm), dim=16, n_layers=1, n_heads=2)
        model = AutoModelForQuestionAnswering.from_config(config)
        objective, _, _ = bind(tmp_path, minilm, model=model)
        batch = objective.collate([objective.train_features[0]])
        assert "token_type_ids" not in batch
        assert objective.loss_sum(model, batch) > 0


def _length(feature: Any) -> int:
    return len(feature["input_ids"])


class TestLoss:
    def test_is_the_sum_of_the_models_own_without_padding(
        self, tmp_path: Path, minilm: Any
    ) -> None:
        objective, model, _ = bind(tmp_path, minilm)
        rows = [objective.train_features[i] for i in range(6)]
        batch = objective.collate(rows)
        assert not batch["attention_mask"].all()
        own = sum(model(**objective.collate([row])).loss.item() for row in rows)
        assert objective.item_count(batch) == 6
        assert objective.loss_sum(model, batch).item() == pytest.approx(own, rel=1e-5)

    def test_padding_on_the_left_takes_no_part(self, tmp_path: Path, minilm_left: Any) -> None:
        objective, model, _ = bind(tmp_path, minilm_left)
        rows = [objective.train_features[i] for i in range(6)]
        batch = objective.collate(rows)
        output = model(**batch)
        expected = 0.0
        for number, row in enumerate(rows):
            for name in ("start", "end"):
                logits = output[f"{name}_logits"][number, -_length(row) :]
                expected -= logits.log_softmax(0)[row[f"{name}_positions"]].item() / 2
        assert objective.loss_sum(model, batch).item() == pytest.approx(expected, rel=1e-5)

    def test_is_computed_in_float32_whatever_the_model_returns(
        self, tmp_path: Path, minilm: Any
    ) -> None:
        objective, model, _ = bind(tmp_path, minilm)
        batch = objective.collate([objective.train_features[0]])
        assert objective.loss_sum(model.bfloat16(), batch).dtype is torch.float32


class TestEvaluate:
    @pytest.mark.parametrize("v2", [False, True])
    @pytest.mark.parametrize("size", [1, 5])
    def test_reports_what_its_own_files_say(
        self, tmp_path: Path, minilm: Any, v2: bool, size: int
    ) -> None:
        objective, model, splits = bind(tmp_path, minilm, version_2_with_negative=v2)
        evaluation = objective.evaluate("validation", forward_with(model, size), tmp_path)
        assert evaluation is not None
        files = {name: json.loads(path.read_text()) for name, path in evaluation.files.items()}
        golds = {row["id"]: row["answers"]["text"] for row in splits["validation"].examples}
        names = {"predictions.json", "nbest_predictions.json"}
        assert set(files) == (names | {"null_odds.json"} if v2 else names)
        assert set(files["predictions.json"]) == set(golds)
        expected = (
            squad_v2(golds, files["predictions.json"], files["null_odds.json"])
            if v2
            else squad_v1(golds, files["predictions.json"])
        )
        loss = evaluation.metrics.pop("loss")
        assert evaluation.metrics == expected
        assert loss == pytest.approx(_mean_loss(objective, model, splits["validation"]), rel=1e-3)

    def test_padding_on_the_left_does_not_change_the_answers(
        self, tmp_path: Path, minilm_left: Any
    ) -> None:
        """Batches of one have no padding; those of five have. The model here sees only tokens."""
        objective, _, _ = bind(tmp_path, minilm_left)
        answers = [
            objective.evaluate(
                "validation", forward_with(_TokenModel(), size), tmp_path / str(size)
            )
            for size in (1, 5)
        ]
        assert answers[0] is not None
        assert answers[1] is not None
        assert [path.read_text() for path in answers[0].files.values()] == [
            path.read_text() for path in answers[1].files.values()
        ]

    def test_threshold_decides_how_many_questions_get_no_answer(
        self, tmp_path: Path, minilm: Any
    ) -> None:
        empty = []
        for threshold in (-1e6, 1e6):
            objective, model, _ = bind(
                tmp_path, minilm, version_2_with_negative=True, null_score_diff_threshold=threshold
            )
            evaluation = objective.evaluate("validation", forward_with(model, 8), tmp_path)
            assert evaluation is not None
            texts = json.loads(evaluation.files["predictions.json"].read_text()).values()
            empty.append(sum(text == "" for text in texts))
        assert empty == [24, 0]

    def test_samples_show_question_context_answers_and_prediction(
        self, tmp_path: Path, minilm: Any
    ) -> None:
        objective, model, splits = bind(tmp_path, minilm)
        evaluation = objective.evaluate("validation", forward_with(model, 8), tmp_path)
        assert evaluation is not None
        examples = splits["validation"].examples
        predictions = json.loads(evaluation.files["predictions.json"].read_text())
        assert [sample["id"] for sample in evaluation.samples] == [
            examples[0]["id"],
            examples[8]["id"],
            examples[16]["id"],
        ]
        for sample in evaluation.samples:
            assert sample["prediction"] == predictions[sample["id"]]
            assert all(answer in sample["context"] for answer in sample["answers"][:1])


class _TokenModel:
    """Logits that depend on a token and its distance from the first real one alone."""

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> Any:
        place = attention_mask.cumsum(1) * attention_mask
        start = torch.sin(input_ids.float() + place) + place.float() * 1e-3
        end = torch.cos(input_ids.float() * 2 + place)
        hidden = attention_mask == 0
        return SimpleNamespace(
            start_logits=start.masked_fill(hidden, -1e4), end_logits=end.masked_fill(hidden, -1e4)
        )


def _mean_loss(objective: QuestionAnsweringObjective, model: Any, split: PreparedSplit) -> float:
    """One window at a time, by the model itself."""
    losses: list[float] = []
    for feature in split.features:
        with torch.no_grad():
            losses.append(model(**objective.collate([feature])).loss.item())
    return sum(losses) / len(losses)
