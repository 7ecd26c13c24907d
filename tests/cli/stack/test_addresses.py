from pathlib import Path

import pytest

from service.cli.stack.addresses import check_address, is_loopback, local_url
from service.cli.terminal.exit_codes import UsageError
from tests.cli.conftest import Cli


class TestIsLoopback:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
    def test_this_machine_only(self, host: str) -> None:
        assert is_loopback(host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", ""])
    def test_anything_else(self, host: str) -> None:
        assert not is_loopback(host)


class TestLocalUrl:
    @pytest.mark.parametrize(
        ("host", "url"),
        [
            ("127.0.0.1", "http://127.0.0.1:80"),
            ("0.0.0.0", "http://127.0.0.1:80"),
            ("::", "http://[::1]:80"),
            ("localhost", "http://localhost:80"),
        ],
    )
    def test_how_this_machine_reaches_it(self, host: str, url: str) -> None:
        assert local_url(host, 80) == url


class TestCheckAddress:
    def test_without_keys_only_this_machine_may_reach_it(self) -> None:
        check_address("0.0.0.0", "required")
        check_address("127.0.0.1", "off")
        with pytest.raises(UsageError, match=r"with FINETUNE_AUTH=off anyone"):
            check_address("0.0.0.0", "off")


@pytest.fixture
def _off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `home`, which removes the variable."""
    monkeypatch.setenv("FINETUNE_AUTH", "off")


@pytest.mark.usefixtures("_off")
class TestCommands:
    def test_api_refuses_a_public_address(self, cli: Cli) -> None:
        outcome = cli("api", "--host", "0.0.0.0", "--port", "0")
        assert outcome.status == 2
        assert "refused to listen on 0.0.0.0" in outcome.err

    def test_api_refuses_one_from_the_settings_too(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_HOST", "192.0.2.1")
        assert cli("api").status == 2
