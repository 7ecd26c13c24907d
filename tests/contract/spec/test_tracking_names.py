"""No project can name an experiment or a registered model of another in MLflow."""

from itertools import product

import pytest

from service.contract.spec import tracking_names
from service.contract.spec.tracking_names import experiment, registered_model

PROJECTS = ["default", "search", "search-2"]
EXPERIMENTS = ["finetune", "projects/search/finetune", "projects/default/a", "search/finetune", "/"]
MODELS = ["squad", "project.search.squad", "project.default.a", "search.squad", "project."]


def owner_of(name: str, prefix: str, separator: str) -> str:
    """What a reader of a name in MLflow takes for the project."""
    if not name.startswith(prefix):
        return "default"
    return name.removeprefix(prefix).partition(separator)[0]


class TestExperiments:
    def test_the_default_project_keeps_plain_names(self) -> None:
        assert experiment("default", "finetune") == "finetune"
        assert experiment("search", "finetune") == "projects/search/finetune"

    def test_no_two_meet(self) -> None:
        names = [experiment(*each) for each in product(PROJECTS, EXPERIMENTS)]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize(("project", "given"), list(product(PROJECTS, EXPERIMENTS)))
    def test_a_name_tells_its_owner(self, project: str, given: str) -> None:
        assert owner_of(experiment(project, given), "projects/", "/") == project


class TestModels:
    def test_no_two_meet(self) -> None:
        names = [registered_model(*each) for each in product(PROJECTS, MODELS)]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize(("project", "given"), list(product(PROJECTS, MODELS)))
    def test_a_name_tells_its_owner_and_has_no_slash(self, project: str, given: str) -> None:
        name = tracking_names.registered_model(project, given)
        assert owner_of(name, "project.", ".") == project
        assert "/" not in name
