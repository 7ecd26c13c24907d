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


def owner_of_experiment(name: str) -> str:
    """The name of the project that this experiment belongs to."""
    if not name.startswith(_EXPERIMENTS):
        return DEFAULT_PROJECT
    return name.removeprefix(_EXPERIMENTS).partition("/")[0]


def owner_of_model(name: str) -> str:
    """The name of the project that this registered model belongs to."""
    if not name.startswith(_MODELS):
        return DEFAULT_PROJECT
    return name.removeprefix(_MODELS).partition(".")[0]
