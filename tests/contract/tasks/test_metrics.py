"""Metrics that evaluations report: those of the contract are those of the worker."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from service.contract.spec.spec import JobSpec
from service.contract.tasks import metrics
from service.contract.tasks.metric_directions import GREATER_IS_BETTER, greater_is_better
from service.contract.tasks.tasks import TASKS
from tests.api.factories import spec
from worker.tasks.classification import metrics as classification
from worker.tasks.classification import span_metrics
from worker.tasks.common.token_scores import _metrics as token_metrics
from worker.tasks.question_answering import metrics as qa
from worker.tasks.seq2seq.summarization import rouge
from worker.tasks.seq2seq.translation import bleu

_GOLDS: Any = {"a": ["x"], "b": []}
_TEXTS = {"a": "x", "b": ""}
_TABLE = np.array([[1, 0], [0, 1]])
_VECTOR = np.array([0, 1])
_NUMBERS = np.array([0.5, 1.5])


def known(task: Any) -> set[str]:
    return set(metrics.names(JobSpec.model_validate(spec(task=task)).task))


class TestNames:
    def test_question_answering(self) -> None:
        v1 = qa.squad_v1(_GOLDS | {"b": ["y"]}, _TEXTS)
        v2 = qa.squad_v2(_GOLDS, _TEXTS, {"a": 0.1, "b": 0.9})
        task = {"type": "question-answering"}
        assert known(task) == {"loss", *v1}
        assert known(task | {"version_2_with_negative": True}) == {"loss", *v2}

    @pytest.mark.parametrize(
        ("problem", "reported"),
        [
            ("single_label_classification", classification.single_label(_VECTOR, _VECTOR, 2)),
            ("multi_label_classification", classification.multi_label(_TABLE, _TABLE)),
            ("regression", classification.regression(_NUMBERS, _NUMBERS)),
        ],
    )
    def test_text_classification(self, problem: str, reported: dict[str, float]) -> None:
        task = {"type": "text-classification"}
        assert known(task | {"problem_type": problem}) == {"loss", *reported}
        assert known(task) >= {"loss", *reported}

    @pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
    def test_language_modelling(self, task: str) -> None:
        assert known(task) == set(token_metrics(1.0, 1, 1))

    def test_chat(self) -> None:
        of_tokens, generate = set(token_metrics(1.0, 1, 1)), {"exact_match": "#### (.*)"}
        assert known("chat") == known({"type": "chat", "generate": {}}) == of_tokens
        assert known({"type": "chat", "generate": generate}) == {*of_tokens, "exact_match"}

    def test_token_classification_has_some_of_each_type(self) -> None:
        task = JobSpec.model_validate(spec(task="token-classification")).task
        reported = span_metrics.scores([["B-PER"]], [["B-PER"]])
        assert "PER_f1" in reported
        assert all(metrics.is_reported(task, name) for name in reported)
        assert not metrics.is_reported(task, "f2")

    def test_text_generation(self) -> None:
        translation = {"type": "translation", "source_lang": "en", "target_lang": "ro"}
        assert known("summarization") == {"loss", "gen_len", *rouge(["a"], ["a"])}
        assert bleu(["a"], ["a"]) >= 0
        assert known(translation) == {"loss", "gen_len", "bleu"}
        assert known(translation | {"predict_with_generate": False}) == {"loss"}


class TestDirections:
    @pytest.mark.parametrize("name", sorted({n for t in TASKS.values() for n in t.metrics}))
    def test_every_metric_of_every_task_has_an_entry(self, name: str) -> None:
        assert name in GREATER_IS_BETTER

    def test_so_has_what_is_reported_of_groups(self) -> None:
        v2 = qa.squad_v2(_GOLDS, _TEXTS, {"a": 0.1, "b": 0.9})
        spans = span_metrics.scores([["B-PER"]], [["B-PER"]])
        without = {name for name in (*v2, *spans) if greater_is_better(name) is None}
        thresholds = {"best_exact_thresh", "best_f1_thresh"}
        assert without == {*thresholds, "total", "HasAns_total", "NoAns_total", "PER_number"}

    @pytest.mark.parametrize(
        ("metric", "better"),
        [
            ("eval_loss", False),
            ("my_set_perplexity", False),
            ("eval_kl", False),
            ("wordy_rewards/margins", True),
            ("eval_best_f1_thresh", None),
            ("HasAns_f1", True),
            ("gen_len", None),
            ("closs", None),
        ],
    )
    def test_of_a_name(self, metric: str, better: bool | None) -> None:
        assert greater_is_better(metric) is better

    def test_without_a_direction_the_spec_must_give_one(self) -> None:
        training: dict[str, Any] = {
            "eval_strategy": "epoch",
            "metric_for_best_model": "gen_len",
        }
        dataset = {"source": "hub", "name": "org/data", "validation": "test"}
        summarization = spec(task="summarization", training=training, dataset=dataset)
        with pytest.raises(ValidationError, match="for which no direction is better") as caught:
            JobSpec.model_validate(summarization)
        assert "set `training.greater_is_better`, or choose one of `loss`, `rouge1`" in str(
            caught.value
        )
        training["greater_is_better"] = False
        assert JobSpec.model_validate(summarization)
        del training["greater_is_better"]
        assert JobSpec.accepted(summarization).training.greater_is_better is None


class TestUnreported:
    def sentences(self, metric: str, sets: tuple[str, ...] = (), **task: Any) -> list[str]:
        task = {"type": "question-answering"} | task
        job = JobSpec.model_validate(spec(task=task))
        return list(metrics.unreported(job.task, metric, sets))

    def test_a_name_that_is_not_reported(self) -> None:
        assert self.sentences("exact_mach") == [
            "`training.metric_for_best_model` is `exact_mach`, which the evaluation does not "
            "report; it reports `loss`, `exact_match`, `f1`; did you mean `exact_match`?"
        ]
        assert len(self.sentences("HasAns_f1")) == 1

    @pytest.mark.parametrize("metric", ["loss", "eval_loss", "f1", "eval_f1"])
    def test_names_that_are(self, metric: str) -> None:
        assert self.sentences(metric) == []
        assert self.sentences("HasAns_f1", version_2_with_negative=True) == []

    def test_of_several_validation_sets(self) -> None:
        assert self.sentences("eval_easy_f1", ("easy", "hard")) == []
        [sentence] = self.sentences("f1", ("easy", "hard"))
        assert "`easy_loss`" in sentence
        assert "`hard_f1`" in sentence
