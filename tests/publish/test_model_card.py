"""The card as the Hub's own library reads it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.publish.conftest import PREPARED, TRAINED, make_request
from worker import model_card


def card(workspace: Path, trained: Any = TRAINED, **spec: Any) -> ModelCard:
    return ModelCard(model_card.render(make_request(workspace, spec=spec), PREPARED, trained))


class TestRender:
    def test_metadata_of_a_hub_job(self, tmp_path: Path) -> None:
        data = card(
            tmp_path,
            hub={"model_id": "org/tiny-qa", "license": "mit"},
            dataset={"source": "hub", "name": "squad", "validation": "validation[:10%]"},
        ).data
        assert data.license == "mit"
        assert data.library_name == "transformers"
        assert data.pipeline_tag == "question-answering"
        assert data.base_model == "org/model"
        assert data.datasets == ["squad"]
        assert data.metrics == ["exact_match", "f1"]
        assert data.tags == ["finetune-service", "question-answering"]
        assert data.model_name == "tiny-qa"
        results = {result.metric_type: result for result in data.eval_results or []}
        values = {name: result.metric_value for name, result in results.items()}
        assert values == {"loss": 1.5, "exact_match": 61.25, "f1": 72.5}
        f1 = results["f1"]
        assert (f1.task_type, f1.dataset_type) == ("question-answering", "squad")
        assert (f1.dataset_split, f1.dataset_revision) == ("validation[:10%]", "b" * 40)

    @pytest.mark.parametrize(
        ("task", "tag", "call"),
        [
            ("causal-lm", "text-generation", 'pipeline("text-generation", model="'),
            ("masked-lm", "fill-mask", 'pipeline("fill-mask", model="'),
        ],
    )
    def test_language_models(self, tmp_path: Path, task: str, tag: str, call: str) -> None:
        trained = TRAINED.model_copy(update={"metrics": {"eval_perplexity": 12.5}, "baseline": {}})
        made = card(tmp_path, trained, task=task)
        assert made.data.pipeline_tag == tag
        (result,) = made.data.eval_results or []
        assert (result.task_type, result.metric_type, result.metric_value) == (
            tag,
            "perplexity",
            12.5,
        )
        assert call in made.text

    def test_a_model_from_scratch(self, tmp_path: Path) -> None:
        model = {"config": {"model_type": "gpt2"}, "tokenizer_name": "org/tokenizer"}
        made = card(tmp_path, task="causal-lm", model=model)
        assert made.data.base_model is None
        assert ", trained from scratch for causal language modelling on " in made.text

    @pytest.mark.parametrize("task", ["text-classification", "token-classification"])
    def test_classification_on_several_validation_sets(self, tmp_path: Path, task: str) -> None:
        metrics = {"eval_a_f1": 0.5, "eval_a_b_f1": 0.75, "eval_a_b_loss": 1.5, "eval_f1": 1.0}
        trained = TRAINED.model_copy(update={"metrics": metrics, "baseline": {"eval_a_f1": 0.25}})
        sets = {"a": "validation[:9]", "a_b": "validation[9:]"}
        dataset = {"source": "hub", "name": "squad", "validation": sets}
        made = card(tmp_path, trained, task=task, dataset=dataset)
        assert made.data.pipeline_tag == task
        assert made.data.metrics == ["f1"]
        results = [
            (result.metric_type, result.metric_value, result.dataset_split)
            for result in made.data.eval_results or []
        ]
        assert results == [
            ("f1", 0.5, "validation[:9]"),
            ("loss", 1.5, "validation[9:]"),
            ("f1", 0.75, "validation[9:]"),
        ]
        assert "| a_f1 | 0.25 | 0.5 |" in made.text
        assert f'pipeline("{task}", model="' in made.text

    def test_text(self, tmp_path: Path) -> None:
        text = card(tmp_path, training={"learning_rate": 3e-5}).text
        for expected in (
            "[`org/model`](https://huggingface.co/org/model) at revision `" + "a" * 40,
            "`" + "c" * 64 + "`",
            "- Train: 90 examples, 113 features",
            "| f1 | 3.25 | 72.5 |",
            "| exact_match | 0.5 | 61.25 |",
            "| `learning_rate` | 3e-05 |",
            "| `doc_stride` | 128 |",
            "20 optimizer steps, 2 epochs. The weights are those of step 10 (`f1`: 72.5).",
            "finetune-service 0.1.0",
        ):
            assert expected in text

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            (
                {"model_step": 20},
                " The weights are those of the last step; the best evaluation was that of step 10 "
                "(`f1`: 72.5).",
            ),
            ({"best_step": None, "best_metric": None, "model_step": 20}, ""),
            ({"best_metric": None, "model_step": None}, ""),
        ],
        ids=["the last", "no choice", "of an older release"],
    )
    def test_which_step_it_is(self, tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
        text = card(tmp_path, TRAINED.model_copy(update=changes)).text
        assert f"20 optimizer steps, 2 epochs.{expected}\n\n" in text

    @pytest.mark.parametrize(
        "dataset",
        [
            {"source": "path", "train": ["/srv/secret/layout/train.json"]},
            {"source": "upload", "train": ["file-1"]},
        ],
    )
    def test_local_things_are_not_told(self, tmp_path: Path, dataset: dict[str, Any]) -> None:
        found = card(tmp_path, model={"name_or_path": "/srv/models/minilm"}, dataset=dataset)
        assert "/srv" not in found.content
        assert "`minilm`" in found.text
        assert found.data.base_model is None
        assert found.data.datasets is None
        assert found.data.model_name == "minilm-question-answering"
        assert {result.dataset_type for result in found.data.eval_results or []} == {"custom"}

    def test_without_an_evaluation(self, tmp_path: Path) -> None:
        trained = TRAINED.model_copy(update={"metrics": {"train_loss": 2.0}, "baseline": {}})
        found = card(tmp_path, trained)
        assert found.data.eval_results is None
        assert "had no validation split" in found.text
