from service.store import keys
from service.store.database import Database
from tests.cli.conftest import Cli


class TestKeys:
    def test_a_new_key_is_the_only_output_and_works(self, cli: Cli, store: Database) -> None:
        outcome = cli("keys", "create", "laptop")
        assert outcome.status == 0
        with store.connect() as connection:
            visitor = keys.who(connection, outcome.out.strip())
        with store.read() as session:
            (row,) = keys.list_all(session)
        assert (visitor.key_id, row.name) == (row.id, "laptop")
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
            assert keys.who(connection, made["key"]) == keys.Visitor(None, is_open=False)
        again = cli("keys", "revoke", made["id"])
        assert again.status == 2
        assert "no active key" in again.err
