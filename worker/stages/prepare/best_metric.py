"""`training.metric_for_best_model` where the rows decide what an evaluation reports: checked before
a GPU is needed."""

from collections.abc import Mapping

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import is_validation, metric_prefix
from worker.failures import unreported_metric
from worker.tasks.base import PreparedSplit, Task, train_examples


def require_reported(spec: JobSpec, task: Task, splits: Mapping[str, PreparedSplit]) -> None:
    """StageError(invalid_option) if no evaluation of these validation rows reports the metric."""
    given = spec.training.metric_for_best_model
    if given is None or not spec.trains or spec.training.eval_strategy == "no":
        return
    train = train_examples(splits)
    reported = {
        f"{metric_prefix(name)}{metric}"
        for name, split in splits.items()
        if is_validation(name)
        for metric in task.reported_metrics(spec, split.examples, train)
    }
    if f"eval_{given.removeprefix('eval_')}" not in reported:
        raise unreported_metric(given, reported)
