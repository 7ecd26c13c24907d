"""`finetune tasks`: the API's tasks, readable in 80 columns."""

import pytest

from service.cli.terminal import layout
from service.contract.tasks.tasks import TASKS
from tests.cli.conftest import Cli


@pytest.mark.usefixtures("api")
class TestTasks:
    def test_each_has_its_columns_and_metrics(self, cli: Cli) -> None:
        lines = cli("tasks").out.splitlines()
        assert [line for line in lines if not line.startswith(" ")] == list(TASKS)
        start = lines.index("translation")
        assert lines[start + 1 : start + 4] == [
            "  does     Translation",
            "  columns  source, target, [translation]",
            "  metrics  loss, bleu, gen_len",
        ]

    def test_one_in_detail(self, cli: Cli) -> None:
        outcome = cli("tasks", "translation")
        assert outcome.out.startswith("translation: Translation\n")
        assert '  source_prefix              "": Put before every source' in outcome.out
        assert "Optional." in outcome.out
        assert cli("tasks", "translation", "--json").json()["type"] == "translation"

    @pytest.mark.parametrize("name", TASKS)
    def test_fits_80_columns(self, cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layout, "_WIDEST", 80)
        for outcome in (cli("tasks"), cli("tasks", name)):
            assert max(map(len, outcome.out.splitlines())) <= 80

    def test_an_unknown_name(self, cli: Cli) -> None:
        outcome = cli("tasks", "translate")
        assert outcome.status == 2
        assert "there is no task 'translate': did you mean translation?" in outcome.err
