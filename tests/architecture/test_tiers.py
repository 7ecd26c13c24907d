"""What `make test` runs, and what `make test CHANGED=1` does of it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.changed_tests import folders_of
from tests.support import distribution, tiers


def item(*fixtures: str, tier: str = "fast", **parameters: str) -> Any:
    return SimpleNamespace(
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=parameters),
        config=SimpleNamespace(getoption={"tier": tier}.get),
    )


class TestTier:
    def test_follows_from_the_fixtures(self) -> None:
        on_sqlite, on_postgres = (item(database_url=kind) for kind in ("sqlite", "postgres"))
        plain, with_broker = item("tmp_path"), item("broker_url", "processes")
        assert tiers.fast([plain, with_broker]) == [plain]
        assert tiers.fast([on_sqlite, on_postgres]) == [on_sqlite]

    def test_a_process_without_the_fixture_fails(self) -> None:
        with (
            pytest.raises(pytest.fail.Exception, match="fixture `processes`"),
            tiers.watched(item()),
        ):
            subprocess.run(["true"], check=True)

    def test_matplotlib_may_ask_for_the_fonts_of_the_machine(self) -> None:
        with tiers.watched(item()):
            sys.audit("subprocess.Popen", "fc-list", ["fc-list"], None, None)

    def test_one_whose_failure_was_caught_fails_all_the_same(self) -> None:
        def start_and_catch() -> None:
            with tiers.watched(item()), pytest.raises(pytest.fail.Exception):
                subprocess.run(["true"], check=True)

        with pytest.raises(pytest.fail.Exception, match=r"subprocess\.Popen true"):
            start_and_catch()

    @pytest.mark.usefixtures("processes")
    def test_in_the_other_tier_nothing_is_watched(self) -> None:
        with tiers.watched(item(tier="all")):
            subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("import torch", True),
        ("from worker.training.loop import train", True),
        ("import torchless", False),
        ("    import torch", False),
        ("from worker.failures import Failure", False),
    ],
)
def test_who_imports_the_ml_stack(tmp_path: Path, line: str, needs: bool) -> None:
    file = tmp_path / "conftest.py"
    file.write_text(f'"""Text."""\n\n{line}\n')
    assert distribution.imports_ml_stack(file) == needs
    assert distribution.imports_ml_stack(tmp_path) == needs


class Process:
    """A process of pytest-xdist, as its scheduler sees it."""

    def __init__(self, collected: list[str]) -> None:
        self.collected = collected
        self.given: list[int] = []
        self.send_runtest_some = self.given.extend
        self.shutting_down = False

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def tests(self) -> set[str]:
        return {self.collected[number] for number in self.given}


def test_a_process_gets_no_folder_of_which_it_has_collected_a_part() -> None:
    others = {f"tests/a{number}.py::test" for number in range(4)}
    folder = {"tests/e2e/a.py::test", "tests/e2e/b.py::test"}
    heavy = Process(sorted(others | folder))
    light = Process(sorted(others | {"tests/e2e/a.py::test"}))
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda _: ["2*popen"], option=options)
    scheduler: Any = distribution.ByUnit(config, None)
    for process in (heavy, light):
        scheduler.add_node(process)
        scheduler.add_node_collection(process, process.collected)
    scheduler.schedule()
    for process in (light, light, light, light, heavy, heavy):
        for number in list(process.given):
            scheduler.mark_test_complete(process, number)
    assert heavy.tests >= folder
    assert light.tests == others - heavy.tests
    assert light.shutting_down


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        (["service/api/jobs/list.py"], ["tests/api/jobs"]),
        (["service/api/app.py", "service/api/new/a.py"], ["tests/api"]),
        (
            ["worker/data/load.py", "client/finetune_client/client.py"],
            ["tests/client", "tests/data"],
        ),
        (["README.md", "service/store/README.md"], ["tests/docs"]),
        (["tests/api/jobs/test_jobs.py"], ["tests/api/jobs/test_jobs.py"]),
        (["tests/api/test_removed.py"], ["tests/api"]),
        (["tests/api/conftest.py"], ["tests/api"]),
        (["tests/api/jobs/test_jobs.py", "pyproject.toml"], ["tests"]),
        (["tests/conftest.py"], ["tests"]),
        (["tests/support/models.py"], ["tests"]),
        (["service/settings.py"], ["tests"]),
        ([], []),
    ],
)
def test_folders_of_changes(tmp_path: Path, changed: list[str], folders: list[str]) -> None:
    for name in ("api/jobs", "client", "data", "docs", "support"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    (tmp_path / "tests/api/jobs/test_jobs.py").touch()
    assert folders_of(changed, tmp_path) == folders
