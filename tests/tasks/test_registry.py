import pytest

from service.contract.tasks import TASKS
from worker.tasks import registry


class TestRegistry:
    def test_has_the_tasks_of_the_contract(self) -> None:
        assert set(registry.REGISTRY) == set(TASKS)

    @pytest.mark.parametrize("name", TASKS)
    def test_each_task_knows_its_name_and_only_known_columns(self, name: str) -> None:
        task = registry.get(name)
        columns = {column.name for column in TASKS[name].columns}
        assert task.name == name
        assert set(task.required_columns("train")) <= columns
        assert set(task.example_schema()) == columns
