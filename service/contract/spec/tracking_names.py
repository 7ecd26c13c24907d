"""Names in MLflow, which has no projects: no project can name what belongs to another.

The default project has the names as they are given, but for those that look like another
project's. A project's name has neither a slash nor a dot, so no two can be confused.
"""

from typing import Final

from service.contract.roles import DEFAULT_PROJECT

_EXPERIMENTS: Final = "projects/"
_MODELS: Final = "project."


def experiment(project: str, given: str) -> str:
    """The experiment of the project with this name."""
    if project == DEFAULT_PROJECT and not given.startswith(_EXPERIMENTS):
        return given
    return f"{_EXPERIMENTS}{project}/{given}"


def registered_model(project: str, given: str) -> str:
    """The registered model of the project with this name; MLflow allows no slash here."""
    if project == DEFAULT_PROJECT and not given.startswith(_MODELS):
        return given
    return f"{_MODELS}{project}.{given}"
