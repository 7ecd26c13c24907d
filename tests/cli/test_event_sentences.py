"""Each event as a sentence; its data as service/store writes them."""

import re
from typing import Any

import pytest

from service.event_sentences import SENTENCES, Narrator, of_metric
from service.store.jobs import state

FAILURE = {"code": "network", "message": "Could not reach the Hub.", "action": "Check the network."}


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": 1, "at": "2026-11-23T12:00:00Z", "type": kind, "epoch": 1, "data": data}


class TestSentences:
    def test_each_type_has_one(self) -> None:
        """The types are listed by the module that writes most of them."""
        listed = set(re.findall(r"`([a-z_]+)`", state.__doc__ or "")) - {"from", "to", "events"}
        assert len(listed) > 20
        assert set(SENTENCES) == listed

    @pytest.mark.parametrize(
        ("kind", "data", "sentence"),
        [
            ("submitted", {}, "submitted"),
            ("submitted", {"cloned_from": "job-1"}, "submitted; cloned from job-1"),
            (
                "stage_finished",
                {"stage": "prepare", "seconds": 75.2, "next_stage": "train"},
                "prepare finished after 1 min 15 s; next is train",
            ),
            (
                "stage_finished",
                {"stage": "publish", "seconds": 0.4},
                "publish finished after 0 s; the job has succeeded",
            ),
            (
                "released",
                {"stage": "train", "to": "paused"},
                "the worker stopped attempt 0 of train; the job is paused",
            ),
            (
                "retried",
                {"stage": "prepare", "missing": []},
                "retry requested: starts again at prepare",
            ),
            (
                "promote_requested",
                {"stage": "train", "follow_up": {"action": "promote", "step": 20}, "missing": []},
                "promotion requested: the checkpoint of step 20 becomes the model",
            ),
            (
                "publish_requested",
                {"stage": "publish", "follow_up": {"hub": {"model_id": "org/m"}}, "missing": []},
                "push of the model to org/m requested",
            ),
            ("phase", {"phase": "writing_model_card"}, "writing model card"),
            ("notice", {"message": "2 rows left out", "data": {}}, "2 rows left out"),
            (
                "checkpoint",
                {"step": 1500, "bytes": 270951383, "metric": 61.23456, "best": True},
                "checkpoint at step 1,500, 258.4 MiB, metric 61.23, best so far",
            ),
            (
                "checkpoint",
                {"step": 5, "bytes": 10, "metric": None, "best": False},
                "checkpoint at step 5, 10 bytes",
            ),
            ("checkpoint_pruned", {"step": 5}, "checkpoint of step 5 removed to make room"),
            (
                "artifact",
                {"name": "predictions.json", "bytes": 3400},
                "wrote predictions.json, 3.3 KiB",
            ),
            ("resumed", {"step": 10}, "resumed from the checkpoint of step 10"),
            (
                "resumed",
                {"step": 10, "job": "job-2"},
                "resumed from the checkpoint of step 10 of job job-2",
            ),
            ("derived", {"job": "job-3"}, "job job-3 starts from this job's model"),
        ],
    )
    def test_its_words(self, kind: str, data: dict[str, Any], sentence: str) -> None:
        assert Narrator().say(event(kind, **data)) == sentence

    def test_a_failure_says_what_follows(self) -> None:
        sentence = Narrator().say(
            event("attempt_failed", stage="prepare", failure=FAILURE, retry=True, wait_seconds=20)
        )
        assert sentence.endswith("failed (network): Could not reach the Hub. Retry in 20 s.")
        sentence = Narrator().say(
            event("attempt_failed", stage="train", failure=FAILURE, retry=False)
        )
        assert sentence.endswith("Could not reach the Hub. Check the network.")

    def test_attempts_are_counted_for_each_stage(self) -> None:
        narrator = Narrator()
        start = {"worker": "w1", "gpus": []}
        sentence = [
            narrator.say(event("stage_started", stage="prepare", **start)),
            narrator.say(event("stage_started", stage="train", worker="w1", gpus=["GPU-1"])),
            narrator.say(event("stage_started", stage="train", worker="w1", gpus=["a", "b"])),
            narrator.say(event("lease_expired", stage="train", failure=FAILURE, retry=True)),
            narrator.say(event("retried", stage="train", missing=["checkpoints"])),
            narrator.say(event("stage_started", stage="train", **start)),
        ]
        assert sentence == [
            "attempt 1 of prepare started on worker w1",
            "attempt 1 of train started on worker w1 with 1 GPU",
            "attempt 2 of train started on worker w1 with 2 GPUs",
            "attempt 2 of train lost its worker (network): Could not reach the Hub. Retry at once.",
            "retry requested: starts again at train; made again because it was removed: "
            "checkpoints",
            "attempt 1 of train started on worker w1",
        ]

    def test_a_type_of_a_later_release_is_shown_as_it_is(self) -> None:
        assert Narrator().say(event("moved", to="ü")) == 'moved {"to": "ü"}'


class TestOfMetric:
    def test_a_logging_step(self) -> None:
        values = {
            "loss": 1.23456,
            "learning_rate": 2e-05,
            "grad_norm": 3.14159,
            "examples_per_second": 14.72,
            "memory_rss_bytes": 10**9,
        }
        point = {"kind": "train", "step": 1200, "epoch": 0.75, "values": values}
        assert of_metric(point) == (
            "step 1,200  epoch 0.75  loss 1.23  lr 2e-05  grad_norm 3.14  14.7 examples/s"
        )

    def test_a_loss_that_is_not_finite(self) -> None:
        point = {"kind": "train", "step": 1, "epoch": None, "values": {"loss": "nan"}}
        assert of_metric(point) == "step 1  loss nan"

    def test_an_evaluation(self) -> None:
        values = {"eval_loss": 1.5, "eval_f1": 48.2512, "eval_exact_match": 30.0}
        point = {"kind": "eval", "step": 50, "epoch": 0.5, "values": values}
        assert of_metric(point) == "evaluation at step 50: exact_match 30, f1 48.25, loss 1.5"
        assert of_metric({**point, "step": 0}).startswith("evaluation before training: ")
