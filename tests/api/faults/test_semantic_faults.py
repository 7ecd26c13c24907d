"""Faults that only this server can find: unknown files, paths outside of the roots."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Server
from tests.api.factories import spec


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


class TestSemantic:
    def errors(self, client: httpx.Client, body: dict[str, Any]) -> list[tuple[str, str]]:
        answer = client.post("/v1/jobs/validate", json=body).json()
        return [(fault["path"], fault["code"]) for fault in answer["errors"]]

    def test_unknown_files(self, server: Server) -> None:
        answer = server.client.post(
            "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "fine-tune"}
        )
        known = answer.json()["id"]
        body = spec(dataset={"source": "upload", "train": [known, "file-0"], "test": "file-1"})
        assert self.errors(server.client, body) == [
            ("dataset.test.0", "unknown_file"),
            ("dataset.train.1", "unknown_file"),
        ]

    def test_unknown_files_of_named_validation_sets(self, client: httpx.Client) -> None:
        sets = {"easy": "file-1", "hard": ["file-2", "x"]}
        body = spec(dataset={"source": "upload", "train": "file-0", "validation": sets})
        assert self.errors(client, body) == [
            ("dataset.train.0", "unknown_file"),
            ("dataset.validation.easy.0", "unknown_file"),
            ("dataset.validation.hard.0", "unknown_file"),
            ("dataset.validation.hard.1", "invalid_value"),
        ]

    def test_unknown_files_are_found_next_to_other_faults(self, client: httpx.Client) -> None:
        body = spec(dataset={"source": "upload", "train": ["file-0"]}, priority=99)
        assert self.errors(client, body) == [
            ("dataset.train.0", "unknown_file"),
            ("priority", "invalid_value"),
        ]

    def test_paths_outside_the_roots(self, server: Server, tmp_path: Path) -> None:
        (root,) = server.settings.data_roots
        (root / "out").symlink_to(tmp_path)
        good = str(root / "a.jsonl")
        bad = ["/etc/passwd", f"{root}/../x", str(root / "out" / "x"), "a.jsonl", "/x" * 2000]
        body = spec(dataset={"source": "path", "train": [good, *bad]})
        assert self.errors(server.client, body) == [
            (f"dataset.train.{number}", "path_not_allowed") for number in range(1, 6)
        ]

    def test_model_paths_without_any_roots(self, client: httpx.Client) -> None:
        body = spec(
            model={"name_or_path": "/srv/m", "tokenizer_name": "../t", "config_name": "o/c"}
        )
        assert self.errors(client, body) == [
            ("model.name_or_path", "path_not_allowed"),
            ("model.tokenizer_name", "path_not_allowed"),
        ]

    def test_thousands_of_unknown_files_are_not_all_listed(self, client: httpx.Client) -> None:
        """21,000 were."""
        sets = {f"v{s}": [f"file-{s}x{n}" for n in range(300)] for s in range(10)}
        body = spec(dataset={"source": "upload", "train": "file-0", "validation": sets})
        errors = self.errors(client, body)
        assert len(errors) == 100
        assert {path.partition(".")[0] for path, _ in errors} == {"dataset"}

    def test_a_path_of_thousands_of_folders_is_not_resolved(self, client: httpx.Client) -> None:
        """256 of them took 35 s."""
        deep = {"source": "path", "train": ["/srv/" + "a/" * 2000]}
        answer = client.post("/v1/jobs/validate", json=spec(dataset=deep)).json()
        [message] = [fault["message"] for fault in answer["errors"]]
        assert message == "a path may have at most 30 folders"
