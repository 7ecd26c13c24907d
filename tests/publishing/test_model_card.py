"""The card as the Hub's own library reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from service.contract.stage.stages import BaseCard
from tests.publishing.conftest import PREPARED, TRAINED, make_request
from worker.publishing import model_card


def card(workspace: Path, trained: Any = TRAINED, *, prepared: Any = PREPARED, **spec: Any) -> Any:
    """A ModelCard; its `data` has the fields that the card's metadata have."""
    return ModelCard(model_card.render(make_request(workspace, spec=spec), prepared, trained))


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
            ("chat", "text-generation", "tokenizer.apply_chat_template("),
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
        ],
        ids=["the last", "no choice"],
    )
    def test_names_the_step_of_the_model(
        self, tmp_path: Path, changes: dict[str, Any], expected: str
    ) -> None:
        text = card(tmp_path, TRAINED.model_copy(update=changes)).text
        assert f"20 optimizer steps, 2 epochs.{expected}\n\n" in text

    @pytest.mark.parametrize(
        "dataset",
        [
            {"source": "path", "train": ["/srv/secret/layout/train.json"]},
            {"source": "upload", "train": ["file-1"]},
        ],
    )
    def test_local_paths_are_not_published(self, tmp_path: Path, dataset: dict[str, Any]) -> None:
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

    @pytest.mark.parametrize("used", ["bf16", "fp32", "fp16"])
    def test_the_precision_that_was_used(self, tmp_path: Path, used: str) -> None:
        text = card(tmp_path, TRAINED.model_copy(update={"precision": used})).text
        assert f"| `precision` | {used} |" in text
        assert f"| `bf16` | {used == 'bf16'} |" in text
        assert f"| `fp16` | {used == 'fp16'} |" in text

    def test_a_scored_test_split(self, tmp_path: Path) -> None:
        metrics = {**TRAINED.metrics, "test_f1": 70.25, "test_loss": 1.75, "test_runtime": 3.0}
        dataset = {"source": "hub", "name": "squad", "validation": "dev", "test": "test[:9]"}
        made = card(tmp_path, TRAINED.model_copy(update={"metrics": metrics}), dataset=dataset)
        found = {
            (result.dataset_split, result.metric_type): result.metric_value
            for result in made.data.eval_results or []
        }
        assert found["test[:9]", "f1"] == 70.25
        assert found["test[:9]", "loss"] == 1.75
        assert found["dev", "f1"] == 72.5
        assert len(found) == 5
        assert (
            "On the test split:\n\n| metric | value |\n| --- | ---: |\n| loss | 1.75 |" in made.text
        )
        assert made.data.metrics == ["exact_match", "f1"]

    def test_only_a_test_split(self, tmp_path: Path) -> None:
        trained = TRAINED.model_copy(update={"metrics": {"test_f1": 70.25}, "baseline": {}})
        made = card(tmp_path, trained)
        assert [result.metric_value for result in made.data.eval_results or []] == [70.25]
        assert "| f1 | 70.25 |" in made.text
        assert "was not evaluated" not in made.text


class TestBaseCard:
    BASE = BaseCard(language=["en"], license="apache-2.0", tags=["legal", "question-answering"])

    def test_its_metadata_is_adopted(self, tmp_path: Path) -> None:
        prepared = PREPARED.model_copy(update={"base_card": self.BASE})
        data = card(tmp_path, prepared=prepared).data
        assert (data.language, data.license) == (["en"], "apache-2.0")
        assert data.tags == ["finetune-service", "question-answering", "legal"]

    def test_the_jobs_own_license_wins(self, tmp_path: Path) -> None:
        base = BaseCard(license="other", license_name="own", license_link="https://example.org")
        prepared = PREPARED.model_copy(update={"base_card": base})
        hub = {"model_id": "org/tiny-qa", "license": "mit"}
        head = card(tmp_path, prepared=prepared, hub=hub).data.to_dict()
        assert head["license"] == "mit"
        assert "license_name" not in head
        inherited = card(tmp_path, prepared=prepared, hub={"model_id": "org/tiny-qa"}).data
        assert inherited.to_dict()["license_name"] == "own"


class TestEvaluations:
    """From the log history of the training."""

    def history(self, workspace: Path, entries: list[dict[str, float]]) -> None:
        folder = workspace / "attempts" / "1" / "results"
        folder.mkdir(parents=True)
        content = {"log_history": entries}
        (folder / "trainer_state.json").write_text(json.dumps(content))

    def test_by_step(self, tmp_path: Path) -> None:
        self.history(
            tmp_path,
            [
                {
                    "step": 0,
                    "epoch": 0.0,
                    "eval_loss": 5.5,
                    "eval_exact_match": 0.5,
                    "eval_f1": 3.25,
                },
                {"step": 5, "epoch": 0.5, "loss": 4.0, "learning_rate": 1e-3},
                {"step": 10, "epoch": 1.0, "loss": 2.5, "learning_rate": 1e-3},
                {
                    "step": 10,
                    "epoch": 1.0,
                    "eval_loss": 1.5,
                    "eval_exact_match": 61.25,
                    "eval_f1": 72.5,
                },
                {"step": 20, "epoch": 2.0, "eval_loss": 2.0, "eval_exact_match": 60.0},
                {"step": 20, "epoch": 2.0, "train_loss": 2.0},
            ],
        )
        text = card(tmp_path).text
        assert (
            "| step | epoch | training loss | loss | exact_match | f1 |\n"
            "| --- | ---: | ---: | ---: | ---: | ---: |\n"
            "| 0 | 0 | n/a | 5.5 | 0.5 | 3.25 |\n"
            "| 10 | 1 | 2.5 | 1.5 | 61.25 | 72.5 |\n"
            "| 20 | 2 | 2.5 | 2 | 60 | n/a |\n"
        ) in text

    def test_many(self, tmp_path: Path) -> None:
        entries = [
            {"step": n, "epoch": n / 9, "eval_loss": 1.0, "eval_f1": 2.0} for n in range(301)
        ]
        self.history(tmp_path, entries)
        text = card(tmp_path).text
        assert "(50 of 301):" in text
        assert "| 0 | 0 | n/a | 1 | 2 |" in text
        assert "| 300 | 33.3333 | n/a | 1 | 2 |" in text

    def test_only_those_of_the_table_above(self, tmp_path: Path) -> None:
        entries = [{"step": step, "epoch": 0.5, "eval_f1": 2.0} for step in (0, 20)]
        self.history(tmp_path, entries)
        assert "| step |" not in card(tmp_path).text


@pytest.mark.parametrize("folder", ["", "base_model_config"])
def test_the_threshold_of_squad_v2(tmp_path: Path, folder: str) -> None:
    output = tmp_path / "attempts" / "1" / "output" / folder
    output.mkdir(parents=True)
    (output / "config.json").write_text(json.dumps({"null_score_diff_threshold": -1.5}))
    assert "has no answer when its score for that is above `-1.5`" in card(tmp_path).text
    (output / "config.json").write_text("{}")
    assert "above `" not in card(tmp_path).text
