"""The tasks that a model can be trained for."""

from fastapi import APIRouter

from service.api.http.principal import NEEDS_KEY
from service.api.openapi.document import problems
from service.api.schemas.system import TaskColumn, TaskInfo, TaskList
from service.contract.spec.training import TrainingSpec
from service.contract.tasks.metric_directions import greater_is_better
from service.contract.tasks.tasks import TASKS, TaskDescription

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], dependencies=[NEEDS_KEY])


@router.get("", summary="List the tasks", responses=problems(401, 503))
def list_tasks() -> TaskList:
    """Each task with the JSON schema of its parameters, its columns and its defaults."""
    return TaskList(
        data=[_info(task) for task in TASKS.values()],
        training_schema=TrainingSpec.model_json_schema(),
        training_defaults=TrainingSpec().model_dump(mode="json"),
    )


def _info(task: TaskDescription) -> TaskInfo:
    return TaskInfo(
        type=task.type,
        title=task.title,
        columns=[
            TaskColumn(name=column.name, required=column.required, description=column.description)
            for column in task.columns
        ],
        metrics=list(task.metrics),
        greater_is_better={name: greater_is_better(name) for name in task.metrics},
        parameters_schema=task.parameters.model_json_schema(),
        defaults=task.parameters().model_dump(mode="json"),
    )
