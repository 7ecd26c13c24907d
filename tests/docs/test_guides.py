"""The messages that the pages of docs/guides explain are the real ones."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from datasets import Dataset

from service.contract.failures import StageError
from service.contract.spec.spec import JobSpec
from tests.docs import guides
from tests.docs.guides import Guide
from worker.data.cleaning import RowChecker
from worker.data.formats import open_table
from worker.data.table import RowError, Source
from worker.tasks import row_checks
from worker.tasks.chat import templates
from worker.tasks.classification.labels import Classes
from worker.tasks.language_modeling.features import write_blocks
from worker.tasks.language_modeling.masked_lm import require_mask_token

# The page, what a reader may have instead of what it shows, and a number of its error table.
BROKEN: Final[list[tuple[str, str, str | bytes, int]]] = [
    ("text-classification", "text,label", "review,stars", 0),
    ("text-classification", "The battery lasts for", "Well, it lasts for", 1),
    ("text-classification", "days.,positive", "days.,", 2),
    ("token-classification", "O O B-LOC O\nGrace", "O O B-LOC\nGrace", 0),
    (
        "token-classification",
        "Ada Lovelace lived in London .,B-PER I-PER O O B-LOC O",
        "\"['Ada', 'Lovelace']\",\"['B-PER', 'I-PER']\"",
        1,
    ),
    ("question-answering", ",the workshop\n", ",the work shop\n", 0),
    ("question-answering", ",at nine\n", ",at\n", 1),
    ("question-answering", ",four weeks\n", ",\n", 2),
    ("summarization", ";Screen flickers since the update", ";", 0),
    ("summarization", "Hello, since", b"Gr\xfc\xdfe, since", 1),
    ("summarization", "my screen", 'my "screen"', 2),
    ("translation", "id,en,de", "id,english,german", 0),
    ("translation", "Schließen Sie vor dem Start den Deckel.", "", 1),
    ("translation", '"Remove the filter, rinse it and let it dry."', "Rinse it, let it dry.", 2),
    ("causal-lm", "text\n", "body\n", 0),
    ("causal-lm", '"Item 1: The minutes', "Item 1, 2: The minutes", 1),
    ("chat", "prompt,completion", "question,answer", 0),
    ("chat", "Two years from the day of purchase.", "", 1),
    ("preference", "prompt,chosen,rejected", "prompt,good,bad", 0),
    ("preference", "Two years from the day of purchase.", "Long enough.", 1),
    ("preference", "It says so on the box.", "", 2),
    ("reward", "prompt,chosen,rejected", "prompt,good,bad", 0),
    ("reward", "Two years from the day of purchase.", "Long enough.", 1),
    ("reward", "It says so on the box.", "", 2),
    ("masked-lm", ",note", ",text", 0),
    ("masked-lm", '"Patient reports headache since Monday, no fever."', "Headache, no fever.", 1),
]


def messages(guide: Guide, before: str, after: str | bytes, folder: Path) -> str:
    """What a job says about the page's file with `after` in place of `before`."""
    name, text = guide.file(".csv")
    assert before in text
    content = after if isinstance(after, bytes) else after.encode()
    (folder / name).write_bytes(text.encode().replace(before.encode(), content, 1))
    body: Any = yaml.safe_load(guide.file(".yaml")[1])
    body["dataset"]["train"] = "file-1"
    spec = JobSpec.model_validate(body)
    checking = RowChecker(
        row_checks.columns(spec.task.type, "train", spec.columns, spec.task),
        row_checks.ROW_CHECKS[spec.task.type].cleaner("train", spec.task),
        limit=None,
        skips=False,
    )
    try:
        list(checking.rows([open_table(Source(folder / name, name), "auto")]))
    except StageError as error:
        return error.failure.message
    return "\n".join(f"{name}, {bad.place}: {bad.problem}" for bad in checking.tally.bad_rows)


class TestGuides:
    @pytest.mark.parametrize("task", guides.TASKS)
    def test_the_file_of_the_page_has_ten_good_rows(self, task: str, tmp_path: Path) -> None:
        guide = Guide.read(task)
        name, _ = guide.file(".csv")
        assert messages(guide, "", "", tmp_path) == ""
        assert len(list(open_table(Source(tmp_path / name, name), "auto").rows(()))) == 10

    @pytest.mark.parametrize(("task", "before", "after", "number"), BROKEN)
    def test_the_errors_of_the_page_are_those_of_a_job(
        self, task: str, before: str, after: str | bytes, number: int, tmp_path: Path
    ) -> None:
        guide = Guide.read(task)
        assert guide.errors[number] in messages(guide, before, after, tmp_path)

    def test_a_label_that_no_training_row_has(self) -> None:
        with pytest.raises(RowError) as raised:
            Classes(("B-PER", "O")).require(["B-ORG"])
        assert str(raised.value).startswith(Guide.read("token-classification").errors[2])

    def test_too_little_text_for_a_block(self, tmp_path: Path) -> None:
        context: Any = SimpleNamespace(
            tokenizer=lambda *_, **__: {"input_ids": [list(range(35))]},
            progress=lambda *_: None,
            measures=SimpleNamespace(tokens=SimpleNamespace(add=list)),
            max_length=64,
        )
        rows = Dataset.from_dict({"text": ["of 35 tokens"]})
        with pytest.raises(StageError) as raised:
            write_blocks("validation", rows, context, tmp_path / "blocks", None)
        assert str(raised.value) == Guide.read("causal-lm").errors[2]

    def test_a_tokenizer_that_has_no_mask(self) -> None:
        with pytest.raises(StageError, match=re.escape(Guide.read("masked-lm").errors[2])):
            require_mask_token(SimpleNamespace(mask_token_id=None))

    def test_a_tokenizer_that_has_no_chat_template(self) -> None:
        tokenizer = SimpleNamespace(chat_template=None)
        with pytest.raises(StageError, match=re.escape(Guide.read("chat").errors[2])):
            templates.chosen(tokenizer, None)

    @pytest.mark.parametrize("task", guides.TASKS)
    def test_a_page_is_short_and_explains_three_errors(self, task: str) -> None:
        guide = Guide.read(task)
        assert len(guide.errors) == 3
        assert len(guide.text.splitlines()) < 130
        assert f"type: {task}\n" in guide.file(".yaml")[1]
