"""Which tests a process of pytest-xdist collects, which it runs in a row, and in which order.

A file that needs the ML stack is collected only by the first process of the fast tier, and by all
but the last where every test runs: the others have their first test after a few seconds, not after
a quarter of a minute.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Their tests share fixtures that take many seconds to start.
_WHOLE_FOLDERS: Final = ("tests/e2e/", "tests/stages/prepare/")
_ML_STACK: Final = (
    *("accelerate", "datasets", "mlflow", "peft", "torch", "transformers"),
    *("worker.data", "worker.stages", "worker.tasks", "worker.training"),
    *("chaos", "tests.stages.prepare.hostile_models", "tests.tasks", "tests.training"),
)
"""Packages of which an import takes seconds, and ours that import them."""
_IMPORT: Final = re.compile(r"^(?:import|from) ([\w.]+)", re.MULTILINE)


def imports_ml_stack(path: Path) -> bool:
    """Whether collecting this file, or its folder's conftest.py, imports the ML stack."""
    file = path / "conftest.py" if path.is_dir() else path
    if file.suffix != ".py" or not file.exists():
        return False
    imported = _IMPORT.findall(file.read_text())
    return any(f"{name}.".startswith(f"{ours}.") for name in imported for ours in _ML_STACK)


def is_left_to_another(path: Path, config: pytest.Config) -> bool:
    """Whether this process need not collect the file or folder.

    Tests that are named on the command line are few: every process collects them.
    """
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and _is_light(config)
        and imports_ml_stack(path)
    )


def _is_light(config: pytest.Config) -> bool:
    """Not the first process, nor one that takes the place of a process that has crashed."""
    started = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    number, count = int(started["workerid"].removeprefix("gw")), int(started["workercount"])
    first = 1 if config.getoption("tier") == "fast" else max(1, count - 1)
    return first <= number < count


def unit_of(nodeid: str) -> str:
    """The file of a test, or the folder if one process runs all of it."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in _WHOLE_FOLDERS if file.startswith(folder)), file)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Spread the units with `long` tests over the first two thirds of the others.

    Long tests mostly wait, which costs least while short ones compute in the other processes, and
    none of them may begin when those have run out. Folders come first: they take longest.
    """
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[unit_of(item.nodeid)].append(item)
    long = [unit for unit, tests in units.items() if tests[0].get_closest_marker("long")]
    long.sort(key=lambda unit: unit not in _WHOLE_FOLDERS)
    order = [unit for unit in units if unit not in long]
    between = len(order) * 2 // 3 // max(1, len(long))
    for place, unit in enumerate(long):
        order.insert(place * (between + 1), unit)
    return [item for unit in order for item in units[unit]]


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process one unit after another, of those that it has collected whole."""

    registered_collections: dict[WorkerController, list[str]]

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._collected: dict[WorkerController, set[str]] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._collected[node] = set(collection)

    def schedule(self) -> None:
        if self.collection is None:  # It becomes what the first of them has collected.
            found = sorted(self.registered_collections.items(), key=lambda pair: -len(pair[1]))
            self.registered_collections = dict(found)
        super().schedule()

    def _check_nodes_have_same_collection(self) -> bool:
        everything, *parts = map(set, self.registered_collections.values())
        if all(part <= everything for part in parts):
            return True
        return bool(super()._check_nodes_have_same_collection())

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._next_unit(node) is None:
            node.shutdown()
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = self._next_unit(node)
        if unit is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_unit(self, node: WorkerController) -> str | None:
        """The first that this process can run; what no other can run comes before the rest."""
        others = [self._collected[other] for other in self.nodes if other in self._collected]
        units = {
            unit: all(map(frozenset(tests).issubset, others))
            for unit, tests in self.workqueue.items()
            if self._collected[node].issuperset(tests)
        }
        return next((unit for unit, shared in units.items() if not shared), next(iter(units), None))

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
