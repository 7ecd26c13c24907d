"""`finetune projects`, `members`, `keys --project` and `--project`, against a real service."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


class TestProjects:
    def test_made_limited_and_archived(self, cli: Cli, api: str) -> None:
        made = cli("projects", "create", "search", "--max-gpus", "4", "--json").json()
        assert (made["name"], made["max_gpus"], made["weight"]) == ("search", 4, 1.0)
        changed = cli("projects", "set", "search", "--max-gpus", "none", "--weight", "2", "--json")
        assert (changed.json()["max_gpus"], changed.json()["weight"]) == (None, 2.0)
        assert cli("projects", "archive", "search", "--json").json()["archived_at"] is not None
        opened = cli("projects", "set", "search", "--no-archived", "--json").json()
        assert opened["archived_at"] is None
        names = [each["name"] for each in cli("projects", "list", "--json").json()["data"]]
        assert names == ["default", "search"]
        assert cli("projects", "set", "search").status == 2

    def test_renamed(self, cli: Cli, api: str) -> None:
        made = cli("projects", "create", "search", "--json").json()
        renamed = cli("projects", "rename", "search", "find", "--json").json()
        assert (renamed["id"], renamed["name"]) == (made["id"], "find")
        taken = cli("projects", "rename", "find", "default")
        assert (taken.status, "already" in taken.err) == (2, True)

    def test_a_members_role_is_changed(self, cli: Cli, api: str) -> None:
        ada = cli("members", "add", "ada", "--json").json()["id"]
        out = cli("members", "set", "ada", "--role", "viewer").out
        assert out == f"{ada}  ada is viewer of default\n"
        [listed] = cli("members", "list", "--json").json()["data"]
        assert (listed["id"], listed["role"]) == (ada, "viewer")

    def test_a_project_is_chosen(
        self, cli: Cli, api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("projects", "create", "search")
        (tmp_path / "rows.jsonl").write_text("{}\n")
        file = cli("--project", "search", "files", "upload", str(tmp_path / "rows.jsonl")).out
        assert cli("--project", "default", "files", "list", "--json").json()["data"] == []
        monkeypatch.setenv("FINETUNE_PROJECT", "search")
        [listed] = cli("files", "list", "--json").json()["data"]
        assert listed["id"] == file.strip()
        unknown = cli("--project", "unknown", "files", "list")
        assert (unknown.status, "There is no project 'unknown'" in unknown.err) == (2, True)

    def test_members_and_their_keys(self, cli: Cli, api: str) -> None:
        cli("projects", "create", "search")
        assert cli("--project", "search", "members", "add", "ada", "--role", "viewer").status == 0
        create = ("keys", "create", "hers", "--project", "search", "--member", "ada")
        made = cli(*create, "--expires", "30d", "--json").json()
        assert (made["role"], made["expires_at"] is not None) == ("viewer", True)
        rotated = cli("keys", "rotate", "hers", "--project", "search", "--grace", "1h", "--json")
        assert rotated.json()["key"] != made["key"]
        removed = cli("--project", "search", "members", "remove", "ada", "--json").json()
        assert sorted(removed["revoked_keys"]) == sorted([made["id"], rotated.json()["id"]])
        assert cli("keys", "list", "--json").json()["data"][0]["project"] == made["project"]
