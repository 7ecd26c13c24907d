"""POST /v1/files/{id}/check: the rows of an upload, and uploads that mean harm."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.api.files import checks
from tests.api.conftest import Server, uploaded
from tests.data.squad_sample import squad_file

pytestmark = pytest.mark.usefixtures("processes")


def upload(client: httpx.Client, content: bytes) -> str:
    """Id of a file whose name does not tell its format."""
    return uploaded(client, content, "a.bin")


def check(client: httpx.Client, file_id: str, task: Any = "causal-lm", **query: Any) -> Any:
    given = {"task": task if isinstance(task, str) else json.dumps(task), **query}
    answer = client.post(f"/v1/files/{file_id}/check", params=given)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["object"], found["file_id"]) == ("file.check", file_id)
    return found


class TestCheck:
    def test_a_file_without_faults(self, client: httpx.Client) -> None:
        file_id = upload(client, squad_file("train").read_bytes())
        task = {"type": "question-answering", "version_2_with_negative": True}
        found = check(client, file_id, task)
        assert (found["rows_read"], found["rows_usable"], found["rows_bad"]) == (52, 52, 0)
        assert (found["format"], found["complete"]) == ("squad", True)
        assert (found["usable_with"], found["failure"]) == (["fail", "skip"], None)

    def test_names_bad_rows_and_counts_them_by_reason(self, client: httpx.Client) -> None:
        good = {"passage": "It was Ada.", "question": "Who?"}
        good["answers"] = {"text": ["Ada"], "answer_start": [5]}  # type: ignore[assignment]
        rows = [good] * 18 + [good | {"passage": "It was Eve."}]
        lines = "".join(json.dumps(row) + "\n" for row in rows) + '{"passage": \n'
        file_id = upload(client, lines.encode())
        columns = json.dumps({"context": "passage"})
        found = check(client, file_id, "question-answering", columns=columns)
        assert (found["rows_read"], found["rows_bad"], found["realigned"]) == (20, 2, 18)
        assert found["bad_by_reason"] == {"answer_not_found": 1, "invalid_json": 1}
        assert [row["place"] for row in found["bad_rows"]] == [
            "a.bin, line 19",
            "a.bin, line 20",
        ]
        assert found["usable_with"] == []
        found = check(client, file_id, "question-answering", columns=columns, max_bad_fraction=0.1)
        assert found["usable_with"] == ["skip"]

    def test_conversations_and_preferences(self, client: httpx.Client) -> None:
        user, answer = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}
        rows = [
            {"messages": [user, answer]},
            {"messages": [{"role": "usr", "content": "Who?"}, {"role": "assistant"}]},
            {"prompt": "Who?", "completion": "Ada."},
            {"question": "Who?"},
        ]
        file_id = upload(client, "".join(json.dumps(row) + "\n" for row in rows).encode())
        found = check(client, file_id, "chat")
        assert found["bad_by_reason"] == {"unknown_role": 1, "missing_value": 1}
        assert [(row["place"], row["problem"][:80]) for row in found["bad_rows"]] == [
            (
                "a.bin, line 2",
                "messages[0] has the unknown role 'usr'; did you mean 'user'?; messages[1] has no",
            ),
            (
                "a.bin, line 4",
                "the row has no `messages`, no `prompt` with `completion`, no `instruction` with ",
            ),
        ]
        pairs = [
            {"input": {"messages": [user]}, "preferred_output": [answer]},
            {"prompt": "Who?", "chosen": "Ada.", "rejected": "Ada."},
        ]
        file_id = upload(client, "".join(json.dumps(row) + "\n" for row in pairs).encode())
        reasons = {"missing_value": 1, "equal_answers": 1}
        for task in ("preference", "reward"):
            assert check(client, file_id, task)["bad_by_reason"] == reasons

    def test_what_no_job_could_use(self, client: httpx.Client) -> None:
        file_id = upload(client, b'{"txt": "x", "url": "y"}\n')
        failure = check(client, file_id)["failure"]
        assert failure["code"] == "missing_column"
        assert "Did you mean 'txt' for 'text'?" in failure["message"]
        assert check(client, upload(client, b""))["failure"]["code"] == "empty_dataset"

    def test_a_test_split_needs_no_labels(self, client: httpx.Client) -> None:
        file_id = upload(client, b'{"text": "x"}\n')
        assert check(client, file_id, "text-classification")["failure"] is not None
        assert check(client, file_id, "text-classification", split="test")["failure"] is None

    def test_lists_of_labels_are_read_as_all_rows_together_say(self, client: httpx.Client) -> None:
        def checked(labels: list[Any], **task: Any) -> Any:
            lines = [json.dumps({"text": "x", "label": label}) + "\n" for label in labels]
            file_id = upload(client, "".join(lines).encode())
            return check(client, file_id, {"type": "text-classification", **task})

        names = {"label_names": ["a", "b", "c"]}
        assert checked([[1, 0, 1], [0, 0, 0]], **names)["rows_usable"] == 2
        refused = checked([[1, 0, 1], [0, 2]])["failure"]
        assert refused["code"] == "invalid_option"
        assert "`task.label_format` is needed" in refused["message"]
        found = checked([[1, 0, 1], [0, 2]], label_format="vector")
        assert (found["failure"], found["bad_by_reason"]) == (None, {"length_mismatch": 1})

    def test_parquet(self, client: httpx.Client, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": ["x", None]}), tmp_path / "a")
        found = check(client, upload(client, (tmp_path / "a").read_bytes()))
        assert (found["rows_read"], found["bad_by_reason"]) == (2, {"not_text": 1})

    def test_faults_of_the_question_are_named(self, client: httpx.Client) -> None:
        file_id = upload(client, b"x")
        for query, path in (
            ({"task": "question-answring"}, "task"),
            ({"task": '{"type": "causal-lm", "block_sise": 3}'}, "task.block_sise"),
            ({"task": "{"}, "query.task"),
            ({"task": "causal-lm", "columns": "["}, "query.columns"),
            ({"task": "causal-lm", "columns": '{"text": 3}'}, "dataset.columns.text"),
            ({"task": "causal-lm", "format": "xml"}, "query.format"),
            ({"task": "causal-lm", "split": "dev"}, "query.split"),
            ({"task": "causal-lm", "max_bad_fraction": "2"}, "query.max_bad_fraction"),
            ({}, "query.task"),
            ({"task": "\U0001f600" * 4001, "columns": "\U0001f600" * 1001}, "query.task"),
        ):
            answer = client.post(f"/v1/files/{file_id}/check", params=query)
            assert answer.status_code == 422
            assert path in [fault["path"] for fault in answer.json()["errors"]], query

    def test_an_unknown_file(self, client: httpx.Client) -> None:
        answer = client.post("/v1/files/file-1/check", params={"task": "causal-lm"})
        assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found")


class TestAttacks:
    """Nothing that is in a file reaches the API's own memory or time."""

    def test_deep_json(self, client: httpx.Client) -> None:
        content = b'{"text": ' + b"[" * 2_000_000 + b"\n"
        found = check(client, upload(client, content), format="jsonl")
        assert found["bad_by_reason"] == {"invalid_json": 1}

    def test_a_row_that_needs_too_much_memory(
        self, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checks, "MEMORY_MIB", 80)
        content = b'[{"text": "fine"}, {"text": [' + b"{}," * 950_000 + b"{}]}]"
        found = check(client, upload(client, content))
        assert found["failure"]["code"] == "unreadable_row"
        assert "80 MiB" in found["failure"]["message"]
        assert found["complete"] is False

    def test_a_parquet_bomb(
        self, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A few hundred bytes that say 200 GB."""
        monkeypatch.setattr(checks, "SECONDS", 1.0)
        text = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), ["x" * 2**20])
        pq.write_table(pa.table({"text": text}), tmp_path / "a", compression="zstd")
        content = (tmp_path / "a").read_bytes()
        assert len(content) < 2000
        found = check(client, upload(client, content))
        assert found["complete"] is False
        assert 0 < found["rows_read"] < 200_000

    def test_a_row_that_takes_too_long_is_killed(
        self, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checks, "SECONDS", 0.0)
        monkeypatch.setattr(checks, "_PATIENCE", 0.01)
        found = check(client, upload(client, b"x"))
        assert "could not be checked" in found["failure"]["message"]
        assert found["failure"]["action"] == (
            "Split the file or shorten its rows; or leave out this check: a worker has more memory "
            "and time."
        )

    def test_no_more_than_two_at_once(
        self, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checks, "_slots", threading.BoundedSemaphore(1))
        file_id = upload(client, b"x\n")
        with checks._slots:
            answer = client.post(f"/v1/files/{file_id}/check", params={"task": "causal-lm"})
            assert (answer.status_code, answer.json()["code"]) == (429, "too_many_checks")
            assert answer.headers["Retry-After"] == "2"
        assert check(client, file_id)["rows_read"] == 1

    def test_the_process_gets_no_secret(
        self, server: Server, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FINETUNE_HUB_TOKEN", "hf_secret")
        spy = tmp_path / "python"
        spy.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
        spy.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(spy))
        check(client, upload(client, b"x\n"))
        seen = (tmp_path / "seen").read_text()
        assert "PATH=" in seen
        assert "FINETUNE" not in seen
