"""What the spec leaves open and what of the rows is not used: events and data report."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.events import Notice
from tests.support.models import save_tiny_bert, save_tiny_llama, save_tiny_t5
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN

WORDS: list[dict[str, Any]] = [
    {"id": str(n), "tokens": ["the", "board"], "pos_tags": [0, 1], "ner_tags": [n % 2, 1]}
    for n in range(4)
]
NER = (
    "Inferred `dataset.columns.tags: ner_tags`: the rows have no `tags`; found by its name, as "
    "run_ner does"
)
POS = "The column `pos_tags` is not used: run_ner trains it with `--task_name pos`"
OWN = "Inferred `task.chat_template: default`: the chat template of the model's tokenizer writes "


def job(home: Path, task: Any, model: Path, rows: list[dict[str, Any]]) -> StagedJob:
    return job_of(home, task, model, {"train": rows, "validation": rows}, PLAIN)


def reported(done: StagedJob) -> list[str]:
    notices = [event for event in done.notices if isinstance(event, Notice)]
    return [
        notice.message
        for notice in notices
        if not {"inferred", "unused_column"}.isdisjoint(notice.data)
    ]


class TestJob:
    def test_reports_each_once_also_if_its_data_is_prepared_already(self, tmp_path: Path) -> None:
        model = save_tiny_bert(tmp_path / "model")
        for _ in range(2):
            done = job(tmp_path, "token-classification", model, WORDS)
            prepared = done.prepare()
            messages = reported(done)
            assert (messages.count(NER), messages.count(POS)) == (1, 1)
            assert prepared.data_report is not None
            inferred = prepared.data_report["inferred"]["dataset.columns.tags"]
            assert inferred["value"] == "ner_tags"
            for split in ("train", "validation"):
                assert prepared.data_report["splits"][split]["unused_columns"] == ["pos_tags"]
        assert any("Reusing the prepared data" in str(event) for event in done.notices)

    def test_reports_which_template_writes_conversations(self, tmp_path: Path) -> None:
        model = save_tiny_llama(tmp_path / "model", positions=256)
        rows = [{"instruction": f"who wrote {n}?", "output": "Ada"} for n in range(4)]
        done = job(tmp_path / "own", "chat", model, rows)
        done.prepare()
        assert sum(message.startswith(OWN) for message in reported(done)) == 1
        assert sum("after an empty line" in message for message in reported(done)) == 1
        given = job(tmp_path / "given", {"type": "chat", "chat_template": "zephyr"}, model, rows)
        given.prepare()
        assert not any("chat_template" in message for message in reported(given))

    @pytest.mark.parametrize("task", ["preference", "reward"])
    def test_reports_which_template_writes_pairs(self, tmp_path: Path, task: str) -> None:
        model = save_tiny_llama(tmp_path / "model", positions=256)
        rows = [{"prompt": f"who {n}?", "chosen": "Ada", "rejected": "Bob"} for n in range(4)]
        done = job(tmp_path, task, model, rows)
        done.prepare()
        assert sum(message.startswith(OWN) for message in reported(done)) == 1

    def test_trains_the_same_under_other_names(self, tmp_path: Path) -> None:
        texts = ["the report was read by the board", "it was written in the morning"] * 4
        model = save_tiny_t5(tmp_path / "model", texts)
        found = []
        for text, summary in (("text", "summary"), ("article", "highlights"), ("a", "b")):
            rows = [{text: each, summary: each[:9]} for each in texts]
            done = job(tmp_path / text, "summarization", model, rows)
            done.body["training"] = PLAIN | {"max_steps": 2, "save_strategy": "no"}
            found.append(done.train()[0].weights_sha256)
        assert len(set(found)) == 1
