from typing import Any

from service.store.database import Database
from service.store.projects import keys
from tests.cli.conftest import Cli


class TestKeys:
    def test_a_new_key_is_the_only_output_and_works(self, cli: Cli, store: Database) -> None:
        outcome = cli("keys", "create", "laptop")
        assert outcome.status == 0
        with store.connect() as connection:
            found = keys.who(connection, outcome.out.strip())
        with store.read() as session:
            (row,) = keys.list_all(session)
        assert found is not None
        assert (found.key_id, row.name) == (row.id, "laptop")
        assert row.id in outcome.err

    def test_the_list_holds_no_key(self, cli: Cli) -> None:
        made = cli("keys", "create", "laptop", "--json").json()
        outcome = cli("keys", "list", "--json")
        (listed,) = outcome.json()["data"]
        assert listed["id"] == made["id"]
        assert listed["revoked_at"] is None
        assert made["key"] not in outcome.out

    def test_a_revoked_key_works_no_more(self, cli: Cli, store: Database) -> None:
        made = cli("keys", "create", "laptop", "--json").json()
        assert cli("keys", "revoke", made["id"], "--json").json() == {
            "id": made["id"],
            "revoked": True,
        }
        with store.connect() as connection:
            assert keys.who(connection, made["key"]) is None
        again = cli("keys", "revoke", made["id"])
        assert again.status == 2
        assert "no active key" in again.err

    def test_by_its_name(self, cli: Cli) -> None:
        made = cli("keys", "create", "laptop", "--json").json()
        cli("keys", "create", "server")
        assert cli("keys", "revoke", "laptop").out == f"{made['id']} is revoked\n"
        revoked = {row["name"]: row["revoked_at"] for row in self.rows(cli)}
        assert (revoked["laptop"] is not None, revoked["server"]) == (True, None)
        again = cli("keys", "revoke", "laptop")
        assert (again.status, "no active key 'laptop'" in again.err) == (2, True)

    def test_a_name_of_several_keys_is_refused(self, cli: Cli) -> None:
        made = [cli("keys", "create", "laptop", "--json").json()["id"] for _ in range(2)]
        outcome = cli("keys", "revoke", "laptop")
        assert outcome.status == 2
        assert "several keys are called 'laptop'; give the id of one:" in outcome.err
        assert all(key_id in outcome.err for key_id in made)
        assert [row["revoked_at"] for row in self.rows(cli)] == [None, None]
        cli("keys", "revoke", made[0])
        assert cli("keys", "revoke", "laptop").out == f"{made[1]} is revoked\n"

    def test_an_id_means_its_key_although_another_key_is_called_so(self, cli: Cli) -> None:
        first = cli("keys", "create", "laptop", "--json").json()["id"]
        cli("keys", "create", first)
        assert cli("keys", "revoke", first).out == f"{first} is revoked\n"

    def rows(self, cli: Cli) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = cli("keys", "list", "--json").json()["data"]
        return rows
