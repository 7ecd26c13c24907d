"""worker.data.column_names, worker.tasks.usual_columns: the columns of other tools' rows, in files.

What is expected is what the reference scripts take (transformers 5: `run_glue.py`, `run_ner.py`,
`run_qa.py`, `run_summarization.py`, `run_clm.py`), where they take something that can be trained.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from worker.data.cleaning import RowChecker, Tally
from worker.data.formats import open_table
from worker.data.inferences import Inferences
from worker.data.table import Source
from worker.tasks import row_checks

Rows = list[dict[str, Any]]
VALUES: dict[str, Any] = {
    **{"words": ["a", "b"], "tokens": ["a", "b"], "messages": [], "conversations": []},
    **{"tags": [0, 1], "ner_tags": [1, 1], "pos_tags": [2, 2], "chunk_tags": [3, 3]},
    **{"label": 1, "labels": 2, "idx": 3, "id": "4", "answers": {"text": [], "answer_start": []}},
}
NLI = "text=premise text_pair=hypothesis"
PAIR = "text=sentence1 text_pair=sentence2"
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def row(*columns: str) -> dict[str, Any]:
    return {name: VALUES.get(name, f"text of {name}") for name in columns}


def as_cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write(folder: Path, rows: Rows, suffix: str = "jsonl") -> Source:
    path = folder / f"rows.{suffix}"
    with path.open("w", newline="") as file:
        if suffix == "jsonl":
            file.writelines(json.dumps(each) + "\n" for each in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({name: as_cell(each[name]) for name in each} for each in rows)
    return Source(path, path.name)


class Reader:
    """Reads splits of one job; the first one decides."""

    def __init__(self, task: Any, columns: dict[str, str] | None = None) -> None:
        body = {"source": "path", "train": "/a", "columns": columns or {}}
        spec = {"task": task, "model": {"name_or_path": "m"}, "dataset": body}
        self.spec = JobSpec.model_validate(spec)
        self.inferences = Inferences()
        self.finder = row_checks.finder(self.spec.task.type, self.spec.columns, self.inferences)

    def read(self, source: Source, split: str = "train") -> tuple[Rows, Tally]:
        """The rows under the task's names, and their tally."""
        task = self.spec.task
        checking = RowChecker(
            row_checks.columns(task.type, split, self.spec.columns, task),
            dict,
            limit=None,
            skips=True,
            finder=self.finder,
        )
        return list(checking.rows([open_table(source, "auto")])), checking.tally

    @property
    def found(self) -> dict[str, Any]:
        inferred = self.inferences.as_json()
        return {name.rpartition(".")[2]: each["value"] for name, each in inferred.items()}


class TestFound:
    @pytest.mark.parametrize("suffix", ["jsonl", "csv"])
    @pytest.mark.parametrize(
        ("task", "columns", "found"),
        [
            # run_ner: `tokens`, else the first column; `ner_tags`, else the second one
            ("token-classification", "id tokens pos_tags chunk_tags ner_tags", "tags=ner_tags"),
            ("token-classification", "tokens pos_tags", "tags=pos_tags"),
            ("token-classification", "id tokens chunk_tags", "tags=chunk_tags"),
            ("token-classification", "words ner_tags", "tags=ner_tags tokens=words"),
            ("token-classification", "words entities", "tokens=words tags=entities"),
            ("token-classification", "tokens tags ner_tags", ""),
            # run_glue: `sentence1` and `sentence2`, else the first two besides `label`
            ("text-classification", "sentence1 sentence2 label idx", PAIR),
            ("text-classification", "topic sentence1 sentence2 label", PAIR),
            ("text-classification", "premise hypothesis label idx", NLI),
            ("text-classification", "idx sentence label", "text=sentence"),
            ("text-classification", "text labels id", "label=labels"),
            ("text-classification", "review labels", "label=labels text=review"),
            ("text-classification", "text url label", ""),
            # run_summarization: the names of known data sets, else the first and the second column
            ("summarization", "document summary id", "text=document"),
            ("summarization", "article highlights id", "text=article summary=highlights"),
            ("summarization", "id dialogue summary", "text=dialogue"),
            ("summarization", "url body summary", "text=body"),
            ("summarization", "text headline", "summary=headline"),
            ("summarization", "maintext headline", "text=maintext summary=headline"),
            ("summarization", "headline document", "text=document summary=headline"),
            ("summarization", "text summary document", ""),
            # run_qa: by name, else the first, second and third column
            ("question-answering", "id question passage answers", "context=passage"),
            ("question-answering", "q passage a", "question=q context=passage answers=a"),
            # run_clm and run_mlm: `text`, else the first column
            ("causal-lm", "id content", "text=content"),
            ("masked-lm", "line", "text=line"),
        ],
    )  # fmt: skip
    def test_as_the_scripts_do(
        self, tmp_path: Path, task: str, columns: str, found: str, suffix: str
    ) -> None:
        reader = Reader(task)
        given = row(*columns.split())
        rows, tally = reader.read(write(tmp_path, [given, given], suffix))
        expected = dict(each.split("=") for each in found.split())
        assert reader.found == expected
        assert (len(rows), tally.bad) == (2, 0)
        cell = (lambda value: value) if suffix == "jsonl" else as_cell
        assert {ours: rows[0][ours] for ours in expected} == {
            ours: cell(given[theirs]) for ours, theirs in expected.items()
        }

    def test_is_reported_with_its_reason(self, tmp_path: Path) -> None:
        reader = Reader("token-classification")
        reader.read(write(tmp_path, [row("words", "ner_tags")]))
        messages = [notice.message for notice in reader.inferences.unreported()]
        assert set(messages) == {
            "Inferred `dataset.columns.tokens: words`: the rows have no `tokens`; found by the "
            "order of the columns, as run_ner does",
            "Inferred `dataset.columns.tags: ner_tags`: the rows have no `tags`; found by its "
            "name, as run_ner does",
        }

    def test_the_spec_comes_first(self, tmp_path: Path) -> None:
        source = write(tmp_path, [row("tokens", "pos_tags", "ner_tags")])
        reader = Reader("token-classification", {"tags": "pos_tags"})
        rows, _ = reader.read(source)
        assert (rows[0]["tags"], reader.found) == ([2, 2], {})
        with pytest.raises(StageError, match="Missing column 'tag'"):
            Reader("token-classification", {"tags": "tag"}).read(source)

    def test_the_training_rows_decide(self, tmp_path: Path) -> None:
        reader = Reader("token-classification")
        reader.read(write(tmp_path, [row("tokens", "pos_tags")]))
        rows, _ = reader.read(
            write(tmp_path, [row("tokens", "ner_tags", "pos_tags")]), "validation"
        )
        assert rows[0]["tags"] == [2, 2]
        rows, _ = reader.read(write(tmp_path, [row("tokens")]), "test")
        assert rows == [{"tokens": ["a", "b"]}]
        rows, _ = reader.read(write(tmp_path, [row("tokens", "tags", "pos_tags")]), "test")
        assert rows[0]["tags"] == [0, 1]

    def test_other_files_may_not_have_other_names(self, tmp_path: Path) -> None:
        reader = Reader("summarization")
        reader.read(write(tmp_path, [row("article", "highlights")]))
        with pytest.raises(StageError, match="Missing column 'text', 'summary'"):
            reader.read(write(tmp_path, [row("document", "summary_text")]), "validation")
        rows, _ = reader.read(write(tmp_path, [row("text", "summary")]), "test")
        assert rows[0]["text"] == "text of text"

    def test_rows_to_predict_may_have_labels(self, tmp_path: Path) -> None:
        for columns, expected in (
            ("tokens ner_tags", {"tags": "ner_tags"}),
            ("words", {"tokens": "words"}),
        ):
            reader = Reader("token-classification")
            reader.read(write(tmp_path, [row(*columns.split())]), "test")
            assert reader.found == expected

    def test_a_first_row_that_lacks_a_column_decides_nothing(self, tmp_path: Path) -> None:
        reader = Reader("text-classification")
        given = [
            row("sentence1"),
            row("sentence1", "sentence2", "label"),
            row("sentence1", "label"),
        ]
        rows, tally = reader.read(write(tmp_path, given))
        assert reader.found == {"text": "sentence1", "text_pair": "sentence2"}
        assert (len(rows), tally.reasons) == (2, {"missing_value": 1})

    def test_conversations(self, tmp_path: Path) -> None:
        reader = Reader("chat")
        rows, _ = reader.read(write(tmp_path, [{"conversations": TURNS}]))
        assert (rows, reader.found) == ([{"messages": TURNS}], {"messages": "conversations"})

    def test_a_column_for_each_label_leaves_only_texts_to_find(self, tmp_path: Path) -> None:
        reader = Reader({"type": "text-classification", "label_columns": ["cat", "dog"]})
        given = {"review": "a b", "labels": [1], "cat": 1, "dog": 0}
        rows, _ = reader.read(write(tmp_path, [given]))
        assert rows == [{"text": "a b", "label.cat": 1, "label.dog": 0}]
        assert reader.found == {"text": "review"}

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ("instruction input output", "after an empty line"),
            ("prompt completion", "each is one turn"),
        ],
    )
    def test_how_rows_become_turns(self, tmp_path: Path, columns: str, words: str) -> None:
        reader = Reader("chat")
        reader.read(write(tmp_path, [row(*columns.split())]))
        (notice,) = reader.inferences.unreported()
        assert words in notice.message


class TestRefused:
    @pytest.mark.parametrize("suffix", ["jsonl", "csv"])
    @pytest.mark.parametrize(
        ("task", "columns", "message"),
        [
            (
                "token-classification",
                "tokens pos_tags chunk_tags",
                "Missing column 'tags', which can be 'pos_tags' or 'chunk_tags': set "
                "`dataset.columns` to `{tags: pos_tags}` or `{tags: chunk_tags}`",
            ),
            (
                "summarization",
                "article document summary",
                "set `dataset.columns` to `{text: article}` or `{text: document}`",
            ),
            ("causal-lm", "title body", "set `dataset.columns: {text: <your column>}`"),
            ("summarization", "url title body", "{text: <your column>, summary: <your column>}"),
            ("text-classification", "a b c label", "{text: <your column>}"),
            # its place alone does not make the second column a label
            ("text-classification", "text sentiment", "{label: <your column>}"),
        ],
    )
    def test_two_readings(
        self, tmp_path: Path, task: str, columns: str, message: str, suffix: str
    ) -> None:
        reader = Reader(task)
        with pytest.raises(StageError) as caught:
            reader.read(write(tmp_path, [row(*columns.split())], suffix))
        assert caught.value.failure.code is FailureCode.MISSING_COLUMN
        assert message in caught.value.failure.message
        assert reader.found == {}


class TestUnused:
    @pytest.mark.parametrize("suffix", ["jsonl", "csv"])
    @pytest.mark.parametrize(
        ("task", "columns", "unused"),
        [
            ("chat", "messages system history id", ["system", "history"]),
            ("chat", "messages chat_template_kwargs images", ["images", "chat_template_kwargs"]),
            ("causal-lm", "text completion_mask url", ["completion_mask"]),
            ("preference", "prompt chosen rejected ref_chosen_logps", ["ref_chosen_logps"]),
            ("reward", "prompt chosen rejected margin", []),
            ("question-answering", "question context answers is_impossible", ["is_impossible"]),
            ("token-classification", "tokens ner_tags pos_tags", ["pos_tags"]),
            ("text-classification", "text sentence2 label idx", ["sentence2"]),
            ("text-classification", "sentence1 sentence2 label", []),
            ("text-classification", "text label sample_weight", ["sample_weight"]),
            ("summarization", "prefix text summary", ["prefix"]),
            ("translation", "prefix source target", ["prefix"]),
            ("masked-lm", "text chinese_ref", ["chinese_ref"]),
        ],
    )
    def test_is_noted(
        self, tmp_path: Path, task: str, columns: str, unused: list[str], suffix: str
    ) -> None:
        _, tally = Reader(task).read(write(tmp_path, [row(*columns.split())] * 2, suffix))
        assert tally.unused == unused

    def test_not_where_it_is_always_empty(self, tmp_path: Path) -> None:
        given = {"messages": TURNS, "system": "", "history": [], "images": None}
        _, tally = Reader("chat").read(write(tmp_path, [given, given]))
        assert tally.unused == []
